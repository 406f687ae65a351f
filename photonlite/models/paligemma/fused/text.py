"""Which parts of a decoder run on fused kernels on its device."""

import functools

import torch
from torch import Tensor

from photonlite.kernels import cards
from photonlite.models.paligemma.fused.decode import FusedDecode
from photonlite.models.paligemma.fused.layers import BlockWeights, block_weights, rotary_rows
from photonlite.models.paligemma.fused.prefill import FusedPrefill
from photonlite.models.paligemma.text import TextDecoder
from photonlite.models.quantised import obstacle


class FusedText:
    """The fused parts of a decoder in evaluation mode; None where its device, its weights or a window forbid."""

    def __init__(self, text: TextDecoder) -> None:
        self._text = text

    def step_decoder(self) -> FusedDecode | None:
        return None if self._step_obstacle() else FusedDecode(self._blocks, self._rotary)

    def prompt_decoder(self) -> FusedPrefill | None:
        return None if self._prompt_obstacle() else FusedPrefill(self._blocks, self._rotary)

    def plain_parts(self) -> dict[str, str | None]:
        """Return why parts run in operations of PyTorch; None for those that do not."""
        return {"prompts": self._prompt_obstacle(), "decode steps": self._step_obstacle()}

    @functools.cached_property
    def _blocks(self) -> tuple[BlockWeights, ...]:
        return block_weights(self._text)

    @functools.cached_property
    def _rotary(self) -> Tensor:
        return rotary_rows(self._text.config, self._text.words.device)

    def _step_obstacle(self) -> str | None:
        config = self._text.config
        return self._obstacle(cards.step_needs(config.head_dim, config.heads // config.kv_heads))

    def _prompt_obstacle(self) -> str | None:
        config = self._text.config
        # The attention of the last block is that of decode steps.
        needs = cards.prompt_needs(config.head_dim, config.heads // config.kv_heads)
        return self._obstacle(needs) or self._step_obstacle()

    def _obstacle(self, needs: list[cards.Need]) -> str | None:
        """Return what keeps a part from fused kernels; float16 has no room for Gemma's activations."""
        config, words = self._text.config, self._text.words
        if config.window is not None and any(config.sliding) and config.window < config.max_context:
            return f"fused attention sees all of {config.max_context} positions, a layer {config.window}"
        unfit = obstacle(self._text) or cards.wrong_type(words.dtype, (torch.bfloat16,))
        return unfit or cards.obstacle(cards.card_of(words.device), needs)
