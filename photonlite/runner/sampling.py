"""What finalize does on the device: the heads that rows need, and the choice from what they say.

```
hidden ─> logits ────────────┐
       ─> coordinate logits ─┼─ kernels.sampling ─> results, pending
       ─> size logits ───────┘
       ─> logits, where rows want probabilities ─ kernels.sampling ─> scores
```

It has fixed shapes and never waits for the device, so that a CUDA graph can hold it; none holds scores, which are rare.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from photonlite.kernels.reference.sampling import Logits, SamplingOutput
from photonlite.kernels.sampling import sample_tokens, score_ids
from photonlite.kernels.small_batch_gemm import small_batch_gemm
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.base import Head, Heads, Model
from photonlite.runner.choices import WITH_COORDINATES, WITH_IDS, WITH_SIZES, Variant

COORDINATE_SHARE = 0.01
"""Bins within this share of the image of the chosen one count towards a coordinate's mass."""

SIZE_RATIO = 1.1
"""Bins within this factor of the chosen one count towards a size's mass."""


def coordinate_radius(bins: int) -> float:
    """Give the bins on either side that count towards a coordinate's mass: 1 % of the image."""
    return bins * COORDINATE_SHARE


def size_radius(bins: int, octaves: float) -> float:
    """Give the bins on either side that count towards a size's mass: 10 %, on their logarithmic scale."""
    return math.log2(SIZE_RATIO) * (bins - 1) / octaves


@dataclass(frozen=True, slots=True)
class Scores:
    """Probabilities that rows want beside their tokens.

    Attributes:
        ids: Of which ids, int32 ``[B, MAX_SCORED]``; -1 for none.
        values: Written to, float32 ``[B, MAX_SCORED]``.
    """

    ids: Tensor
    values: Tensor


def choose_tokens(
    model: Model,
    hidden: Tensor,
    params: Tensor,
    masks: Tensor,
    target: SamplingOutput,
    scores: Scores | None = None,
    *,
    variant: Variant,
    sampled: bool,
) -> None:
    """Choose a token for each row.

    Args:
        model: Whose heads are read, those of the variant alone.
        hidden: Raw hidden states ``[B, dim]``.
        params: int32 ``[B, PARAM_COLUMNS]``, written by `runner.choices.write_choice`.
        masks: Allowed ids as bits, int32 ``[B, words]``; not read where the id is forced.
        target: Takes the results, which `runner.choices.read_results` reads, and the rows of the pending table.
        scores: Takes the probabilities of ids; None where no row wants some.
        variant: Heads; all that a row may need are among them, as `runner.choices.Needs` sees to.
        sampled: Whether any row draws; if not, nothing is sorted and temperatures are not read.
    """
    logits = read_heads(model, hidden, variant)
    sample_tokens(logits, hidden, params, masks, target, sampled=sampled)
    if scores is not None and logits.ids is not None:
        score_ids(logits.ids, masks, scores.ids, scores.values)


def read_heads(model: Model, hidden: Tensor, variant: Variant) -> Logits:
    """Read the heads of a variant for raw hidden states ``[B, dim]``."""
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
    """Map raw hidden states ``[B, dim]`` to ``[B, bins]``, likewise."""
    heads = _fused_heads(model, hidden)
    return model.coordinate_logits(hidden) if heads is None else apply_head(heads.coordinate, hidden)


def size_logits(model: Model, hidden: Tensor) -> Tensor:
    """Map raw hidden states ``[B, dim]`` to ``[B, 2, bins]``, likewise."""
    heads = _fused_heads(model, hidden)
    return model.size_logits(hidden) if heads is None else apply_head(heads.size, hidden).view(len(hidden), 2, -1)


def apply_head(head: Head, hidden: Tensor) -> Tensor:
    """Apply a head to raw hidden states ``[B, dim]``; rounded as the model's own layers are, but for GELU's input."""
    x, norm = hidden, head.norm
    for number, (weight, bias) in enumerate(head.layers, 1):
        x = small_batch_gemm(x, weight, bias, norm=norm, gelu=number < len(head.layers))
        norm = None
    return x


def _fused_heads(model: Model, hidden: Tensor) -> Heads | None:
    return model.heads if hidden.is_cuda and HAS_TRITON else None
