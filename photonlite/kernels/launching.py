"""How kernels are launched one behind the other.

On cards of capability 9.0 and later a kernel may start before the one in front of it has ended (programmatic dependent
launch): it does what does not depend on that one's results, such as asking for its weights, and then waits. Every
kernel of such a chain must wait before it reads anything that another kernel writes, and before it writes anything that
another kernel reads: a wait covers the kernel in front alone, and only because that one has waited too does it cover
those before.
"""

import functools
from typing import Any

import torch
from torch import Tensor

_DEPENDENT_LAUNCH = (9, 0)


def dependent_launch(x: Tensor) -> dict[str, Any]:
    """Give the options of a dependent launch for kernels with a `PDL` constant, as far as the device of `x` has it."""
    if x.is_cuda and _capability(x.device) >= _DEPENDENT_LAUNCH:
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


def power_of_2(least: int) -> int:
    """Give the smallest power of two that is no smaller."""
    return 1 << (least - 1).bit_length()


def shared_memory(x: Tensor) -> int:
    """Give the bytes of shared memory that a program may have on the device of `x`."""
    return _shared_memory(x.device) if x.is_cuda else 2**31


@functools.cache
def _shared_memory(device: torch.device) -> int:
    properties = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)  # type: ignore[attr-defined]  # missing from the stubs


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
