"""Which of several ways to the same result is the fastest, measured on the card that will run it."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
"""Attention backends worth measuring. cuDNN plans for each new shape: good for shapes known before requests arrive."""

GAIN = 0.03  # share of its time by which a candidate must beat an earlier one: less may be noise
ROUNDS = 5


@contextlib.contextmanager
def only_backend(backend: SDPBackend) -> Iterator[None]:
    """Restrict attention to one backend; RuntimeError where it cannot run. Suppress PyTorch's warnings about why."""
    with warnings.catch_warnings(), sdpa_kernel([backend]):
        warnings.simplefilter("ignore")
        yield


def plan_free_attention(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Exclude backends that plan for each new shape: cuDNN takes 40 to 500 ms for that (H200, PyTorch 2.11).

    The choice holds for all threads, of which a CPU may have two inside such blocks.
    """
    if device.type == "cpu":
        return contextlib.nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def fastest(candidates: Sequence[Callable[[], object]]) -> int:
    """Return the index of the candidate that takes the least time on the current CUDA stream; the first among equals.

    Each has run before. They take turns, so that a changing clock affects all alike; the shortest time of each counts.
    """
    if len(candidates) == 1:
        return 0
    times: list[list[float]] = [[] for _ in candidates]
    for candidate, own in list(zip(candidates, times, strict=True)) * ROUNDS:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        candidate()
        end.record()
        end.synchronize()
        own.append(float(start.elapsed_time(end)))
    return first_of_least([min(own) for own in times])


def first_of_least(times: Sequence[float]) -> int:
    """Return the index of the first time that no later one beats by more than `GAIN`."""
    best = 0
    for index, time in enumerate(times):
        if time < times[best] * (1 - GAIN):
            best = index
    return best
