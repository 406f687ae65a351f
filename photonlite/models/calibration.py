"""What goes into the layers of a model while it answers: moments that rounding to int4 makes use of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from photonlite.kernels.reference.quantised import group_of
from photonlite.models.precisions import Precisions
from photonlite.models.quantised import layers_of

Moments = dict[str, Tensor]
"""By layer, second moments of its inputs, float32 ``[K, K]``; of wide ones within groups of columns, ``[G, g, g]``."""

_WHOLE = 4096  # columns up to which moments of all pairs are kept: 64 MiB


@contextmanager
def input_moments(model: nn.Module, precisions: Precisions) -> Iterator[Moments]:
    """Sum up moments of the inputs of layers that are to be int4, while a model in full precision runs inside."""
    found: Moments = {}
    hooks = []
    for name, precision in layers_of(model, precisions).items():
        group = group_of(model.get_submodule(name).in_features)  # type: ignore[arg-type]
        if precision == "int4" and group is not None:
            hooks.append(model.get_submodule(name).register_forward_pre_hook(_summing(found, name, group)))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _summing(found: Moments, name: str, group: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def add(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        rows = inputs[0].detach().flatten(0, -2).float()
        if rows.shape[1] <= _WHOLE:
            sums = rows.T @ rows
        else:
            parts = rows.view(len(rows), -1, group).transpose(0, 1)  # [G, T, g]
            sums = parts.transpose(1, 2) @ parts
        found[name] = found[name].add_(sums) if name in found else sums

    return add
