"""The whole model: a vision tower and a text decoder, as the engine runs them (`models.base.Model`)."""

import functools
from collections.abc import Sequence

from torch import Tensor, nn

from photonlite.device.collectives import RankGroup
from photonlite.kernels import cards
from photonlite.models.base import Head, Heads, ModelShape, StepDecoder
from photonlite.models.layers import Attention
from photonlite.models.quantised import obstacle, refuse_fp8, stored_weight
from photonlite.models.qwen.config import QwenConfig
from photonlite.models.qwen.fused.prefill import FusedPrefill
from photonlite.models.qwen.fused.text import FusedText
from photonlite.models.qwen.fused.vision import FusedTower
from photonlite.models.qwen.images import ImageSettings
from photonlite.models.qwen.positions import prompt_positions
from photonlite.models.qwen.text import TextDecoder
from photonlite.models.qwen.vision import VisionTower
from photonlite.sequence import PromptTurns


class QwenModel(nn.Module):
    """Modules `vision` and `text`, created without values."""

    input_weights = None
    numbers = None

    def __init__(self, config: QwenConfig, images: ImageSettings) -> None:
        super().__init__()
        self.config, self.crop_spec = config, images
        self.vision = VisionTower(config.vision, config.version, images)
        self.text = TextDecoder(config.text, config.version)

    @functools.cached_property
    def shape(self) -> ModelShape:
        text = self.config.text
        return ModelShape(
            layers=text.layers,
            kv_heads=text.kv_heads,
            head_dim=text.head_dim,
            max_context=text.max_context,
            prefix_length=None,
            bos_id=None,
            dim=text.dim,
            vocab_size=text.vocab_size,
            axes=3,
            levels=1 + len(self.config.vision.deepstack),
        )

    def crop_encoder(self, *, fp8: bool = False) -> VisionTower | FusedTower:
        if fp8:
            refuse_fp8(self)
        return self.vision if self._encoder_obstacle() else FusedTower(self.vision)

    @functools.cached_property
    def _fused(self) -> FusedText:
        return FusedText(self.text)

    def prompt_decoder(self, *, fp8: bool = False) -> FusedPrefill | None:
        return self._fused.prompt_decoder(fp8=fp8)

    def step_decoder(self, ranks: RankGroup | None = None) -> StepDecoder | None:
        return self._fused.step_decoder(ranks)

    def plain_parts(self) -> dict[str, str]:
        reason = self._encoder_obstacle()
        return ({} if reason is None else {"image encoder": reason}) | self._fused.plain_parts()

    def _encoder_obstacle(self) -> str | None:
        words = self.text.words
        unfit = obstacle(self.vision) or cards.wrong_type(words.dtype, cards.HALF)
        return unfit or cards.obstacle(cards.card_of(words.device), cards.encoder_needs())

    @property
    def heads(self) -> Heads:
        text = self.text
        words = text.words if text.head is None else stored_weight(text.head)
        return Heads(Head((text.norm.weight, None, text.norm.eps), ((words, None),)))

    def kv_statistics(self) -> Sequence[tuple[float, float]]:
        return self.text.kv_statistics()

    def embed(self, ids: Tensor) -> Tensor:
        return nn.functional.embedding(ids, self.text.words)

    def forward(self, x: Tensor, positions: Tensor, attention: Attention, deepstack: Tensor | None = None) -> Tensor:
        return self.text(x, positions, attention, deepstack)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.text.logits(hidden)

    def turns(self, parts: Sequence[int | tuple[int, int]]) -> PromptTurns:
        placed = prompt_positions(parts)
        return PromptTurns(placed.axes.T, placed.delta)
