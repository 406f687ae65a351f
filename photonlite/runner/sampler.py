"""Finalize on the device: the heads that rows need, and sampling from their logits.

```
hidden ─> logits ────────────┐
       ─> coordinate logits ─┼─ kernels.sampling ─> results, pending
       ─> size logits ───────┘
       ─> logits, where rows need probabilities ─ score_ids ─> scores
```

Shapes are fixed and nothing waits for the device, so that a CUDA graph can hold it; none holds scores, which are rare.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from photonlite.kernels.reference.sampling import Logits, SamplingOutput
from photonlite.kernels.sampling import sample_tokens, score_ids
from photonlite.kernels.small_batch_gemm import small_batch_gemm
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.base import Head, Heads, Model
from photonlite.runner.sampling_params import WITH_COORDINATES, WITH_IDS, WITH_SIZES, Variant

COORDINATE_SHARE = 0.01
"""Bins within this share of the image of the chosen one count towards a coordinate's mass."""

SIZE_RATIO = 1.1
"""Bins within this factor of the chosen one count towards a size's mass."""


def coordinate_radius(bins: int) -> float:
    """Return the bins on either side that count towards a coordinate's mass: 1 % of the image."""
    return bins * COORDINATE_SHARE


def size_radius(bins: int, octaves: float) -> float:
    """Return the bins on either side that count towards a size's mass: 10 %, on their logarithmic scale."""
    return math.log2(SIZE_RATIO) * (bins - 1) / octaves


@dataclass(frozen=True, slots=True)
class Scores:
    """Ids that rows need probabilities of, int32 ``[B, MAX_SCORED]``, -1 for none; and these, float32, written to."""

    ids: Tensor
    values: Tensor


def sample_from_hidden(
    model: Model,
    hidden: Tensor,
    params: Tensor,
    masks: Tensor,
    out: SamplingOutput,
    scores: Scores | None = None,
    *,
    variant: Variant,
    sampled: bool,
) -> None:
    """Sample a token for each row from raw hidden states ``[B, dim]``; see `kernels.sampling` for the other tensors.

    The heads are those of `variant`, as `RequiredHeads` determines it. Unless `sampled`, nothing is sorted and
    temperatures are not read.
    """
    logits = compute_heads(model, hidden, variant)
    sample_tokens(logits, hidden, params, masks, out, sampled=sampled)
    if scores is not None and logits.ids is not None:
        score_ids(logits.ids, masks, scores.ids, scores.values)


def compute_heads(model: Model, hidden: Tensor, variant: Variant) -> Logits:
    """Compute the heads of a variant for raw hidden states ``[B, dim]``."""
    ids = coordinate = size = None
    near = around = 0.0
    if variant in WITH_IDS:
        ids = text_logits(model, hidden)
    if variant in WITH_COORDINATES:
        coordinate = coordinate_logits(model, hidden)
        near = coordinate_radius(coordinate.shape[-1])
    if variant in WITH_SIZES:
        size = size_logits(model, hidden)
        around = size_radius(size.shape[-1], model.size_octaves)
    return Logits(ids, coordinate, size, near, around)


def text_logits(model: Model, hidden: Tensor) -> Tensor:
    """Map raw hidden states ``[B, dim]`` to ``[B, vocab]``: fused on CUDA where the model offers its heads."""
    heads = _fused_heads(model, hidden)
    return model.logits(hidden) if heads is None else apply_head(heads.text, hidden)


def coordinate_logits(model: Model, hidden: Tensor) -> Tensor:
    """Map raw hidden states ``[B, dim]`` to ``[B, bins]``, in the same way."""
    heads = _fused_heads(model, hidden)
    return model.coordinate_logits(hidden) if heads is None else apply_head(heads.coordinate, hidden)


def size_logits(model: Model, hidden: Tensor) -> Tensor:
    """Map raw hidden states ``[B, dim]`` to ``[B, 2, bins]``, in the same way."""
    heads = _fused_heads(model, hidden)
    return model.size_logits(hidden) if heads is None else apply_head(heads.size, hidden).view(len(hidden), 2, -1)


def apply_head(head: Head, hidden: Tensor) -> Tensor:
    """Apply a head to raw hidden states ``[B, dim]``; rounds as the model's own layers do, except the input of GELU."""
    x, norm = hidden, head.norm
    for number, (weight, bias) in enumerate(head.layers, 1):
        x = small_batch_gemm(x, weight, bias, norm=norm, gelu=number < len(head.layers))
        norm = None
    return x


def _fused_heads(model: Model, hidden: Tensor) -> Heads | None:
    return model.heads if hidden.is_cuda and HAS_TRITON else None
