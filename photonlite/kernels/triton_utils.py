"""Triton where it is installed, and what every kernel launch needs: sizes, row splits, dependent launches.

On cards of capability 9.0 and later a kernel may start before the one in front of it has ended (programmatic dependent
launch): it does what does not depend on that kernel's results, such as fetching weights, and then waits. Every kernel
of such a chain must wait before it reads anything that another kernel writes, and before it writes anything that
another kernel reads: a wait covers the kernel in front alone, and earlier ones only because that kernel waited too.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["tl", "triton"]  # the other names are defined here


class _NoTriton:
    """Stands in for `triton` and `triton.language`, so that kernel modules can be imported without them."""

    def jit(self, function: Any = None, **options: Any) -> Any:
        return function or (lambda decorated: decorated)

    def constexpr(self, value: Any) -> Any:
        return value


try:
    import triton
    import triton.language as tl
except ImportError:
    HAS_TRITON = False
    triton = tl = _NoTriton()
else:
    HAS_TRITON = True

LEAST_CAPABILITY = (8, 0)  # of cards that Triton supports
_DEPENDENT_LAUNCH = (9, 0)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def has_triton(device: torch.device) -> bool:
    """Return whether a device is a card that runs Triton kernels."""
    return HAS_TRITON and device.type == "cuda" and _capability(device) >= LEAST_CAPABILITY


def use_triton(x: Tensor) -> bool:
    """Return whether operations on `x` run as Triton kernels: on a card, and on the CPU in Triton's interpreter."""
    return has_triton(x.device) if x.is_cuda else HAS_TRITON and INTERPRETED


def dependent_launch(x: Tensor) -> dict[str, Any]:
    """Return the options of a dependent launch for kernels with a `PDL` constant, if the device of `x` supports it."""
    if x.is_cuda and _capability(x.device) >= _DEPENDENT_LAUNCH:
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


def tl_dtype(dtype: torch.dtype) -> Any:
    """Return Triton's name of a type."""
    return getattr(tl, str(dtype).removeprefix("torch."))


def power_of_2(least: int) -> int:
    """Return the smallest power of two that is not smaller than `least`."""
    return 1 << (least - 1).bit_length()


@functools.cache
def _shared_memory(device: torch.device) -> int:
    properties = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)  # type: ignore[attr-defined]  # missing from the stubs


def shared_memory(x: Tensor) -> int:
    """Return the bytes of shared memory that a program may use on the device of `x`."""
    return _shared_memory(x.device) if x.is_cuda else 2**31


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@dataclass(frozen=True, slots=True)
class RowSplit:
    """A row cut into two pieces, each held by an array as wide as a power of two; `right` is 0 without a second one.

    ```
    1152 = 1024 + 128         2048 = 2048         4304 = 4096 + 208 (of 256)         10240 = 8192 + 2048
    ```

    Padding a row to the next power of two would waste up to half of the arithmetic, which limits these kernels.
    """

    left: int
    right: int

    @property
    def left_width(self) -> int:
        return power_of_2(self.left)

    @property
    def right_width(self) -> int:
        return power_of_2(max(1, self.right))

    def warps(self, per_thread: int) -> int:
        """Return the warps that hold a row with about `per_thread` numbers in each thread."""
        return max(1, min(16, max(self.left_width, self.right_width) // (32 * per_thread)))


def split_row(dim: int) -> RowSplit:
    """Cut rows of `dim` numbers behind the largest power of two that fits."""
    left = 1 << (dim.bit_length() - 1)
    return RowSplit(left, dim - left)


Counters = dict[tuple[torch.device, int], Tensor]  # Arrival counters by device and size; empty before the first use
_shared: Counters = {}
_counters: ContextVar[Counters] = ContextVar("counters", default=_shared)


@contextlib.contextmanager
def counting_in(counters: Counters) -> Iterator[None]:
    """Use these counters for kernels launched inside: engines that run side by side on one card must share none."""
    token = _counters.set(counters)
    try:
        yield
    finally:
        _counters.reset(token)


def arrival_counters(device: torch.device, count: int) -> Tensor:
    """Return zeros, int32 ``[count]`` or more, which the last program to arrive resets to zero.

    Kernels that share counters must follow one another on one stream; to share a card, see `counting_in`.
    """
    counters, size = _counters.get(), power_of_2(max(count, 1024))
    if (device, size) not in counters:
        counters[device, size] = torch.zeros(size, dtype=torch.int32, device=device)
    return counters[device, size]
