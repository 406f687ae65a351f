"""Which parts of a decoder run on fused kernels on its device."""

import functools

import torch
from torch import Tensor

from photonlite.device.collectives import RankGroup
from photonlite.kernels import cards
from photonlite.models.base import StepDecoder
from photonlite.models.quantised import fused_obstacle, obstacle
from photonlite.models.qwen.fused.decode import FusedDecode, RankDecode
from photonlite.models.qwen.fused.layers import BlockWeights, block_weights, rotary_rows
from photonlite.models.qwen.fused.prefill import FusedPrefill
from photonlite.models.qwen.text import TextDecoder, axes_on


class FusedText:
    """The fused parts of a decoder in evaluation mode; None where its device or the type of its weights forbids."""

    def __init__(self, text: TextDecoder) -> None:
        self._text = text

    def step_decoder(self, ranks: RankGroup | None = None) -> StepDecoder | None:
        if self._step_obstacle():
            return None
        if ranks is not None:
            return RankDecode(self._blocks, self._rotary, ranks)
        return FusedDecode(self._blocks, self._rotary)

    def prompt_decoder(self, *, fp8: bool = False) -> FusedPrefill | None:
        if not fp8 and self._prompt_obstacle():
            return None
        text = self._text
        axes = axes_on(text.config, text.words.device)
        short = self._step_obstacle() is None
        return FusedPrefill(self._blocks, self._rotary, axes, text.config.heads, fp8=fp8, short=short)

    def plain_parts(self) -> dict[str, str]:
        """Return the parts that run in operations of PyTorch, with the reason."""
        reasons = {"prompts": self._prompt_obstacle(), "decode steps": self._step_obstacle()}
        return {part: reason for part, reason in reasons.items() if reason is not None}

    @functools.cached_property
    def _blocks(self) -> tuple[BlockWeights, ...]:
        return block_weights(self._text)

    @functools.cached_property
    def _rotary(self) -> Tensor:
        return rotary_rows(self._text.config, self._text.words.device)

    def _step_obstacle(self) -> str | None:
        """Return what keeps decode steps from fused kernels.

        These multiply the stream with the weight of its norm before they divide: float16 has no room for that.
        """
        config = self._text.config
        return self._obstacle((torch.bfloat16,), cards.step_needs(config.head_dim, config.heads // config.kv_heads))

    def _prompt_obstacle(self) -> str | None:
        config = self._text.config
        needs = cards.prompt_needs(config.head_dim, config.heads // config.kv_heads)
        return self._obstacle((*cards.HALF, torch.float32), needs)

    def _obstacle(self, dtypes: tuple[torch.dtype, ...], needs: list[cards.Need]) -> str | None:
        words = self._text.words
        if obstacle(self._text) is not None and (reason := fused_obstacle(self._text)) is not None:
            return reason
        return cards.wrong_type(words.dtype, dtypes) or cards.obstacle(cards.card_of(words.device), needs)
