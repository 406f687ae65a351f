"""The whole model: a vision tower and a text decoder, as the engine runs them (`models.base.Model`)."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from photonlite.device.collectives import RankGroup
from photonlite.kernels import cards
from photonlite.models.base import ModelShape
from photonlite.models.layers import Attention
from photonlite.models.paligemma.config import PaliGemmaConfig
from photonlite.models.paligemma.fused.decode import FusedDecode
from photonlite.models.paligemma.fused.prefill import FusedPrefill
from photonlite.models.paligemma.fused.text import FusedText
from photonlite.models.paligemma.fused.vision import FusedTower
from photonlite.models.paligemma.images import SquareImages
from photonlite.models.paligemma.text import TextDecoder
from photonlite.models.paligemma.vision import VisionTower
from photonlite.models.quantised import obstacle, refuse_fp8

LOCATIONS = 1024
"""Bins of a coordinate, each with a token of its own; the first one is at 0, the last one at 1."""


class PaliGemmaModel(nn.Module):
    """Modules `vision` and `text`, created without values.

    Location tokens are coordinates for the engine: one id stands for all of them, the bin is chosen among their logits,
    and what is fed back is the embedding of the token that was meant. `first_location` is the id of bin 0.
    """

    input_weights = None
    heads = None  # fused heads have no soft cap
    size_octaves = 0.0  # there are no sizes

    def __init__(self, config: PaliGemmaConfig, first_location: int) -> None:
        super().__init__()
        self.config, self.first_location = config, first_location
        self.crop_spec = SquareImages.of(config.vision)
        self.vision = VisionTower(config.vision, config.text.dim)
        self.text = TextDecoder(config.text)

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
            prefix_lm=True,
        )

    def crop_encoder(self, *, fp8: bool = False) -> VisionTower | FusedTower:
        if fp8:
            refuse_fp8(self)
        elif self._encoder_obstacle() is not None:
            return self.vision
        return FusedTower(self.vision, fp8=fp8)

    @functools.cached_property
    def _fused(self) -> FusedText:
        return FusedText(self.text)

    def prompt_decoder(self, *, fp8: bool = False) -> FusedPrefill | None:
        return self._fused.prompt_decoder()  # whose products stay in 16 bits

    def step_decoder(self, ranks: RankGroup | None = None) -> FusedDecode | None:
        return None if ranks is not None else self._fused.step_decoder()

    def plain_parts(self) -> dict[str, str]:
        reasons = {"image encoder": self._encoder_obstacle()} | self._fused.plain_parts()
        return {part: reason for part, reason in reasons.items() if reason is not None}

    def _encoder_obstacle(self) -> str | None:
        words = self.text.words
        unfit = obstacle(self.vision) or cards.wrong_type(words.dtype, cards.HALF)
        return unfit or cards.obstacle(cards.card_of(words.device), cards.encoder_needs())

    def kv_statistics(self) -> Sequence[tuple[float, float]]:
        return self.text.kv_statistics()

    def embed(self, ids: Tensor) -> Tensor:
        return self.text.embed(ids)

    def forward(self, x: Tensor, positions: Tensor, attention: Attention, deepstack: Tensor | None = None) -> Tensor:
        return self.text(x, positions, attention)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.text.logits(hidden)

    def turns(self, parts: Sequence[int | tuple[int, int]]) -> None: ...

    # ---- locations, see `models.base.NumberHeads`

    @property
    def numbers(self) -> "PaliGemmaModel":
        return self

    def embed_coordinates(self, values: Tensor) -> Tensor:
        return self.embed(self.first_location + (values * (LOCATIONS - 1)).round().long())

    def coordinate_logits(self, hidden: Tensor) -> Tensor:
        return self.text.logits(hidden, self.first_location, LOCATIONS)

    def coordinate_of(self, index: Tensor, bins: int) -> Tensor:
        return index.to(torch.float32) / (bins - 1)
