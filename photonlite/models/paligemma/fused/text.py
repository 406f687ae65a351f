"""Which parts of a decoder run on fused kernels on its device."""

import torch

from photonlite.kernels import cards
from photonlite.models.paligemma.text import TextDecoder
from photonlite.models.quantised import obstacle


def step_obstacle(text: TextDecoder) -> str | None:
    """Return what keeps decode steps from fused kernels; float16 has no room for Gemma's activations."""
    config, words = text.config, text.words
    if config.window is not None and any(config.sliding) and config.window < config.max_context:
        return f"the kernel decode_attention sees all of {config.max_context} positions, a layer {config.window}"
    needs = cards.step_needs(config.head_dim, config.heads // config.kv_heads)
    unfit = obstacle(text) or cards.wrong_type(words.dtype, (torch.bfloat16,))
    return unfit or cards.obstacle(cards.card_of(words.device), needs)
