"""Sampling on the device: ids that the masks allow, bins of coordinates and sizes, and their probabilities.

```
logits over ids ────────── mask, decide, draw ─> id ─┐
       over coordinates ── draw ─> bin, mass ────────┼─> results [B, 7], whose first three columns are pending
       over sizes ──────── draw ─> bins, masses ─────┘   bins count only where the id is that of a coordinate or size
```

On CUDA greedy sampling is one launch. A row has one program for its hidden state, one for each distribution over
bins, and one for each tile of the vocabulary; every program leaves a few numbers, and the last one to arrive merges
them in the order of the tiles, so that results do not depend on which one that was.
"""

import torch
from torch import Tensor

from photonlite.kernels import sampling_kernel
from photonlite.kernels.reference import sampling as reference
from photonlite.kernels.reference.sampling import Logits, SamplingOutput, masked, wide
from photonlite.kernels.sampling_kernel import LEFT
from photonlite.kernels.triton_utils import arrival_counters, dependent_launch, power_of_2, use_triton

BLOCK = 1024
"""Ids of a program: some fifty programs for a vocabulary of 51200."""


def sample_tokens(
    logits: Logits, hidden: Tensor, params: Tensor, masks: Tensor, out: SamplingOutput, *, sampled: bool
) -> None:
    """Sample a token for each row; rows do not affect each other.

    An id that is not forced is the one of the largest logit among those that the mask allows, the first of equals.
    Where END is set, any other id counts as COORDINATE, and its probability is that of not ending. A bin is
    the one of the largest logit; its mass is the probability of the bins within a radius. A row that draws chooses by
    its temperature, top-p and random numbers instead; probabilities and masses do not depend on them.

    Args:
        logits: Of the heads that some row may need.
        hidden: Raw hidden states ``[B, dim]``: a row with a number that is not finite is reported as such.
        params: int32 ``[B, PARAM_COLUMNS]``, contiguous; see `kernels.columns`.
        masks: Allowed ids as bits, int32 ``[B, words]``; not read where the id is forced.
        out: Written to; contiguous where the kernel runs.
        sampled: Whether any row draws; if not, temperatures are not read.
    """
    heads = [None if head is None else head.contiguous() for head in (logits.ids, logits.coordinate, logits.size)]
    double = any(head is not None and head.dtype == torch.float64 for head in (hidden, *heads))
    if sampled or double or not use_triton(hidden):
        return reference.sample_tokens(logits, hidden, params, masks, out, sampled=sampled)
    if not (out.results.is_contiguous() and out.pending.is_contiguous()):
        raise ValueError(f"strides {out.results.stride()} and {out.pending.stride()}: the kernel writes whole rows")
    rows, dim = hidden.shape
    hidden = hidden.contiguous()
    vocab, coordinates, sizes = (0 if head is None else head.shape[-1] for head in heads)
    ids, coordinate, size = (hidden if head is None else head for head in heads)  # an unread pointer without a head
    tiles = -(-vocab // BLOCK)
    units = 1 + bool(coordinates) + 2 * bool(sizes) + tiles
    left = torch.empty(rows, units, LEFT, dtype=torch.int32, device=hidden.device)
    sampling_kernel.sample_kernel[(units, rows)](
        ids, coordinate, size, hidden, params.contiguous(), masks.contiguous(),
        out.results, out.results.view(torch.float32), out.pending, out.rows, left,
        arrival_counters(hidden.device, rows), masks.shape[1], out.rows.stride(0),
        logits.coordinate_radius, logits.size_radius,
        VOCAB=vocab, COORDINATES=coordinates, SIZES=sizes, DIM=dim,
        DIM_WIDTH=power_of_2(dim), COORDINATES_WIDTH=power_of_2(max(1, coordinates)),
        SIZES_WIDTH=power_of_2(max(1, sizes)), BLOCK=BLOCK, TILES=tiles, TILES_WIDTH=power_of_2(max(1, tiles)),
        num_warps=4, **dependent_launch(hidden),
    )  # fmt: skip


def score_ids(logits: Tensor, masks: Tensor, ids: Tensor, scores: Tensor) -> None:
    """Write the probabilities of ids, at temperature 1 and among those that the masks allow.

    PyTorch operations of fixed shapes that never wait for the device; no graph holds them, since they run only where a
    row asks for scores.

    Args:
        logits: Over ids, ``[B, vocab]``, any floating type.
        masks: Allowed ids as bits, int32 ``[B, words]``.
        ids: int32 ``[B, n]``; entries below 0 ask for nothing.
        scores: Written to, float32 ``[B, n]``: 0 for an id that is not allowed, undefined where nothing is asked for.
    """
    probabilities = masked(wide(logits), masks).softmax(dim=-1)
    scores.copy_(probabilities.gather(1, ids.clamp(min=0).long()))
