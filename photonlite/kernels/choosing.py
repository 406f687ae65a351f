"""Choosing on the device: ids among what masks allow, bins of coordinates and sizes, and how sure the model was.

```
logits over ids ────────── mask, decide, draw ─> id ─┐
       over coordinates ── draw ─> bin, mass ────────┼─> results [B, 7], whose first three columns are pending
       over sizes ──────── draw ─> bins, masses ─────┘   bins count only where the id is that of a coordinate or size
```

On CUDA the greedy choice is one launch. A row has one program for its hidden state, one for each distribution over
bins, and one for each tile of the vocabulary; every program leaves a few numbers, and the one that arrives last merges
them in the order of the tiles, so that results do not depend on who that was.
"""

import torch
from torch import Tensor

from photonlite.kernels import choosing_kernel, reference_choosing
from photonlite.kernels.choosing_kernel import HAS_TRITON, LEFT
from photonlite.kernels.launching import dependent_launch, power_of_2
from photonlite.kernels.reference_choosing import Logits, Target
from photonlite.kernels.skinny import arrival_counters

BLOCK = 1024
"""Ids of a program: some fifty programs for a vocabulary of 51200."""


def choose(logits: Logits, hidden: Tensor, params: Tensor, masks: Tensor, target: Target, *, sampled: bool) -> None:
    """Choose for each row; rows do not affect each other.

    An id that is not forced is the one of the largest logit among those that the mask allows, the first of equals.
    Where END is set, any other id counts as COORDINATE, and the probability of that is the one of not ending. A bin is
    the one of the largest logit; its mass is the probability of the bins within a radius. A row that draws chooses by
    its temperature, top-p and random numbers instead; what that does to neither probabilities nor masses.

    Args:
        logits: What the heads say; all that a row may need is among it.
        hidden: Raw hidden states ``[B, dim]``: a row of which one number is not finite is reported as such.
        params: int32 ``[B, CHOICE_COLUMNS]``, contiguous; see `kernels.columns`.
        masks: Allowed ids as bits, int32 ``[B, words]``; not read where the id is forced.
        target: Written to.
        sampled: Whether any row draws; if not, temperatures are not read.
    """
    if sampled or not _usable(logits, hidden):
        reference_choosing.choose(logits, hidden, params, masks, target, sampled=sampled)
    else:
        triton_choose(logits, hidden, params, masks, target)


def triton_choose(logits: Logits, hidden: Tensor, params: Tensor, masks: Tensor, target: Target) -> None:
    """Choose greedily with the Triton kernel; see :func:`choose`.

    Raises:
        ValueError: Results or the pending table are not contiguous.
    """
    if not (target.results.is_contiguous() and target.pending.is_contiguous()):
        raise ValueError(
            f"strides {target.results.stride()} and {target.pending.stride()}: the kernel writes whole rows"
        )
    rows, dim = hidden.shape
    hidden = hidden.contiguous()
    heads = [None if head is None else head.contiguous() for head in (logits.ids, logits.coordinate, logits.size)]
    vocab, coordinates, sizes = (0 if head is None else head.shape[-1] for head in heads)
    ids, coordinate, size = (hidden if head is None else head for head in heads)  # some pointer, which nobody follows
    tiles = -(-vocab // BLOCK)
    units = 1 + bool(coordinates) + 2 * bool(sizes) + tiles
    left = torch.empty(rows, units, LEFT, dtype=torch.int32, device=hidden.device)
    choosing_kernel.choose_kernel[(units, rows)](
        ids,
        coordinate,
        size,
        hidden,
        params.contiguous(),
        masks.contiguous(),
        target.results,
        target.results.view(torch.float32),
        target.pending,
        target.rows,
        left,
        arrival_counters(hidden.device, rows),
        masks.shape[1],
        target.rows.stride(0),
        logits.coordinate_radius,
        logits.size_radius,
        VOCAB=vocab,
        COORDINATES=coordinates,
        SIZES=sizes,
        DIM=dim,
        DIM_WIDTH=power_of_2(dim),
        COORDINATES_WIDTH=power_of_2(max(1, coordinates)),
        SIZES_WIDTH=power_of_2(max(1, sizes)),
        BLOCK=BLOCK,
        TILES=tiles,
        TILES_WIDTH=power_of_2(max(1, tiles)),
        num_warps=4,
        **dependent_launch(hidden),
    )


def _usable(logits: Logits, hidden: Tensor) -> bool:
    heads = [head for head in (logits.ids, logits.coordinate, logits.size) if head is not None]
    return hidden.is_cuda and HAS_TRITON and all(head.dtype != torch.float64 for head in (hidden, *heads))
