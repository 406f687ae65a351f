"""Tensor parallelism inside a decoder: each rank holds some heads and some columns of the MLP (Megatron-LM, 2019).

```
x (whole) ─ norm ─ q, k, v of own heads ─ attention ─ proj: partial sum ── add up ── x (whole)
x (whole) ─ norm ─ own columns of the MLP ──────────── down: partial sum ── add up ── x (whole)
hidden (whole) ─ norm ─ head over own part of the vocabulary ── join ── logits (whole)
```

Norms, embeddings and heads of numbers are whole on every rank; the image encoder is on rank 0 alone.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from photonlite.device.collectives import RankGroup
from photonlite.errors import SettingsError


def check_ranks(count: int, sizes: Mapping[str, int], able: Sequence[str]) -> None:
    """Raise SettingsError unless so many ranks divide the sizes of a decoder, by names of config.json.

    There are none where a checkpoint cannot be divided; `able` are titles of those that can.
    """
    setting = f"engine setting 'tensor_parallel' is {count}"
    if not sizes:
        raise SettingsError(
            f"{setting}, but this checkpoint cannot be divided: leave it at 1 ({', '.join(able)} can be)"
        )
    for name, size in sizes.items():
        if size % count:
            most = math.gcd(*sizes.values())
            numbers = ", ".join(str(number) for number in range(1, most + 1) if most % number == 0)
            raise SettingsError(f"{setting}, which does not divide {name}, {size}: this checkpoint takes {numbers}")


class SummedLinear(nn.Linear):
    """A linear layer over a rank's share of the inputs; its outputs are added up over all ranks."""

    def __init__(self, linear: nn.Linear, ranks: RankGroup) -> None:
        super().__init__(linear.in_features // ranks.count, linear.out_features, linear.bias is not None)
        self._ranks = ranks

    def forward(self, x: Tensor) -> Tensor:
        return self._ranks.sum(super().forward(x))


def fewer_outputs(linear: nn.Linear, count: int) -> nn.Linear:
    return nn.Linear(linear.in_features, linear.out_features // count, linear.bias is not None)


def fewer_inputs(linear: nn.Linear, count: int) -> nn.Linear:
    return nn.Linear(linear.in_features // count, linear.out_features, linear.bias is not None)


def keep_own_heads(attention: Any, count: int) -> None:
    """Leave a rank's share of the heads in a module with `heads`, `kv_heads` and one projection `qkv`."""
    attention.heads //= count
    attention.kv_heads //= count
    attention.qkv = fewer_outputs(attention.qkv, count)


def share_of(whole: Tensor, shape: Sequence[int], rank: int) -> Tensor:
    """Return a rank's part of a tensor: an equal part along the dimension in which `shape` is smaller, if one is."""
    for dim, (size, stored) in enumerate(zip(shape, whole.shape, strict=True)):
        if size != stored:
            return whole.narrow(dim, rank * size, size)
    return whole
