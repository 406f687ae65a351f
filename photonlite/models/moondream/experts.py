"""Mixture of experts: a router chooses a few of many MLPs for each position, and their outputs are added by its shares.

```
x ─┬─ router ── largest logits ── softmax over these ── shares ────┐
   └─ fc1 of each chosen expert ── gelu(h) (g + 1) ── fc2 ──── share * out, summed
```
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from photonlite.kernels.reference import experts as reference
from photonlite.kernels.reference.attention import FP8
from photonlite.kernels.reference.experts import ExpertWeight, Routes
from photonlite.models.adapters.layers import AdaptedLayer, CurrentRows
from photonlite.models.moondream.config import MixtureConfig


class ExpertLinear(nn.Module):
    """Matrices ``[experts, out, in]`` without biases; quantised ones are e4m3 with scales ``[experts, out]``."""

    def __init__(self, experts: int, dim_in: int, dim_out: int, *, fp8: bool) -> None:
        super().__init__()
        self.precision = "fp8" if fp8 else None
        self.weight = nn.Parameter(torch.empty(experts, dim_out, dim_in, dtype=FP8 if fp8 else None), not fp8)
        self.scale = nn.Parameter(torch.empty(experts, dim_out, dtype=torch.float32), False) if fp8 else None

    @property
    def in_features(self) -> int:
        return self.weight.shape[2]

    def forward(self, rows: Tensor, routes: Routes) -> Tensor:
        """Multiply rows of sorted pairs, ``[P, in]``, with the matrices of their experts: ``[P, out]``."""
        return reference.expert_product(rows, routes, self.stored)

    def with_adapters(self, current: CurrentRows) -> AdaptedLayer:
        return AdaptedExperts(self, current)

    @property
    def stored(self) -> ExpertWeight:
        return ExpertWeight(self.weight, self.scale)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ExpertLinear":
        """Move quantised numbers as integers: they keep their types when a model is cast."""
        if self.scale is None:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
            return self
        weight, scale = self.weight.data, self.scale.data
        self.weight = nn.Parameter(fn(weight.view(torch.uint8)).view(weight.dtype), requires_grad=False)
        self.scale = nn.Parameter(fn(scale.view(torch.int32)).view(scale.dtype), requires_grad=False)
        return self


class MixtureMLP(nn.Module):
    """The experts of one block."""

    def __init__(self, dim: int, config: MixtureConfig) -> None:
        super().__init__()
        self.rank_count = config.experts_per_token
        experts, inner = config.num_experts, config.expert_inner_dim
        self.router = nn.Linear(dim, experts)
        self.fc1 = ExpertLinear(experts, dim, 2 * inner, fp8=config.fp8)  # rows of h, then those of the gate
        self.fc2 = ExpertLinear(experts, inner, dim, fp8=config.fp8)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., dim]`` to the same shape."""
        rows = x.flatten(0, -2)
        routes = reference.route(self.router(rows), self.rank_count)
        inside = reference.gate(self.fc1(rows[routes.order.long() // self.rank_count], routes))
        return reference.join(self.fc2(inside, routes), routes).sum(dim=1).view_as(x)


class AdaptedExperts(AdaptedLayer):
    """Matrices of experts, and terms of adapters for each of them."""

    def forward(self, x: Tensor, *args: Routes) -> Tensor:
        (routes,) = args
        y: Tensor = self.base(x, routes)
        rows = self.current()
        tokens = len(x) // routes.rank_count
        slots = rows.index.repeat_interleave(tokens // rows.units)[routes.order.long() // routes.rank_count]
        for stack in self.stacks.values():
            for slot, _ in rows.by_slot():
                if rank := stack.ranks[slot]:
                    low = reference.expert_product(x, routes, ExpertWeight(stack.a[slot, :, :rank]))
                    own = low * (slots == slot)[:, None]
                    y += reference.expert_product(own, routes, ExpertWeight(stack.b[slot, :, :, :rank]))
        return y
