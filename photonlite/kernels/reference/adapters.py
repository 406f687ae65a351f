"""Low-rank terms of several adapters in one batch, in PyTorch; see `kernels.adapters`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Units = slice | Tensor
"""Units of a batch: consecutive ones, or int64 indices on its device."""


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """Which adapter each unit of a batch has: a row, a position, a crop or an embedding's patches.

    `groups` are slots above 0 with their units, for operations of PyTorch; `index`, int32 ``[units]``, is the same for
    kernels, with 0 for units without an adapter. Without groups the index says it all: it may change between replays
    of a CUDA graph.
    """

    units: int
    groups: tuple[tuple[int, Units], ...] | None
    index: Tensor

    @classmethod
    def of(cls, slots: Sequence[int], counts: Sequence[int], device: torch.device) -> "AdapterRows":
        """Give slot ``slots[i]`` to the next ``counts[i]`` units, for each `i`."""
        ranges: dict[int, list[range]] = {}
        begin = 0
        for slot, count in zip(slots, counts, strict=True):
            if count:
                parts = ranges.setdefault(slot, [])
                if parts and parts[-1].stop == begin:
                    parts[-1] = range(parts[-1].start, begin + count)
                else:
                    parts.append(range(begin, begin + count))
            begin += count
        groups = tuple((slot, _units(parts, device)) for slot, parts in ranges.items() if slot)
        index = torch.repeat_interleave(torch.tensor(slots, dtype=torch.int32), torch.tensor(counts))
        return cls(begin, groups, _sent(index, device))

    def by_slot(self) -> tuple[tuple[int, Units], ...]:
        """Return the groups; without any the host waits for the index."""
        if self.groups is not None:
            return self.groups
        slots = sorted(set(self.index.tolist()) - {0})
        return tuple((slot, (self.index == slot).nonzero()[:, 0]) for slot in slots)


def _units(parts: Sequence[range], device: torch.device) -> Units:
    if len(parts) == 1:
        return slice(parts[0].start, parts[0].stop)
    return _sent(torch.tensor([unit for part in parts for unit in part]), device)


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to a device; from page-locked memory, so that the host does not wait for a card."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


@dataclass(frozen=True, slots=True)
class AdapterStack:
    """The terms of all slots at one layer: S slots of rank R at most, with zeros behind a smaller rank.

    They add to outputs ``[first, first + N)`` of the layer.
    """

    a: Tensor  # [S, R, K]
    b: Tensor  # [S, N, R]; includes the adapter's scale
    first: int
    ranks: list[int]  # of each slot; 0 where its adapter has no term here, and in slot 0


def add_adapters(y: Tensor, x: Tensor, rows: AdapterRows, stack: AdapterStack) -> None:
    """Add ``B_s A_s x`` to y in place, `s` being the slot of each unit.

    y ``[..., outputs]`` and x ``[..., K]`` have the same leading dimensions, which hold an equal number of rows for
    each unit.
    """
    outputs = y.view(rows.units, -1, y.shape[-1])[..., stack.first : stack.first + stack.b.shape[1]]
    inputs = x.reshape(rows.units, -1, x.shape[-1])
    for slot, units in rows.by_slot():
        if rank := stack.ranks[slot]:
            low = functional.linear(inputs[units], stack.a[slot, :rank])
            outputs[units] += functional.linear(low, stack.b[slot, :, :rank])
