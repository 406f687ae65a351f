"""How many numbers a head has in the image encoder's attention: its own, or more of them with zeros behind, if quicker.

Moondream 2 has heads of 72. Kernels for 80 waste a tenth of a step or less, but not every library has one for 72.
"""

import logging
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from photonlite.kernels.autotune import BACKENDS, fastest, only_backend
from photonlite.models.moondream.fused_layers import WideLinear
from photonlite.models.moondream.fused_vision import FusedBlock, attend_heads
from photonlite.models.moondream.vision import Block, VisionEncoder

HEAD_MULTIPLE = 16
"""Tensor cores take so many numbers at a time."""

CROPS = 8
"""Crops that the sizes are compared with: an image of average size."""

REPEATS = 10
"""Runs of a way, one behind the other: the card, not the host, must be what takes the time."""

_logger = logging.getLogger("photonlite")


@torch.inference_mode()
def quickest_head_size(encoder: VisionEncoder) -> int:
    """Measure with the first block's weights, projections included; on the CPU heads stay as they are.

    Args:
        encoder: In evaluation mode.
    """
    config = encoder.config
    own = config.enc_dim // config.enc_n_heads
    sizes = sorted({own, -(-own // HEAD_MULTIPLE) * HEAD_MULTIPLE})
    block = encoder.blocks[0] if len(encoder.blocks) else None
    if not encoder.pos_emb.is_cuda or len(sizes) == 1 or not isinstance(block, Block):
        return own
    x = torch.randn(CROPS * config.n_patches, config.enc_dim).to(encoder.pos_emb)
    found: list[tuple[int, SDPBackend]] = []
    ways: list[Callable[[], None]] = []
    for size in sizes:
        fused = FusedBlock(block, size, WideLinear)
        for backend in BACKENDS:
            way = partial(_attend, fused, x, backend, size, own)
            if _runs(way):
                found.append((size, backend))
                ways.append(way)
    if not found:
        return own
    size, backend = found[fastest(ways)]
    _logger.debug("heads of %d in the image encoder run quickest with %d numbers, by %s", own, size, backend.name)
    return size


def _attend(block: FusedBlock, x: Tensor, backend: SDPBackend, size: int, own: int) -> None:
    with only_backend(backend):
        for _ in range(REPEATS):
            block.proj((attend_heads(block.qkv((x,)), CROPS, size, own**-0.5),))


def _runs(way: Callable[[], None]) -> bool:
    try:
        way()
    except RuntimeError:
        return False
    return True
