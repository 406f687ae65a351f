"""The bandwidth of swapping pages beside that of plain page-locked copies, on a card."""

from collections.abc import Callable

import torch

from bench.gpu.samples import Sample
from bench.memory.load import PAGE
from photonlite.batch import Transfer
from photonlite.grammar.decoding.grammars import TextGrammar, Vocabulary
from photonlite.kernels.columns import PENDING_COLUMNS
from photonlite.models.base import ModelShape
from photonlite.request import Request, SamplingSettings, Token
from photonlite.runner.buffers import PagedCache
from photonlite.runner.memory import bytes_of_page
from photonlite.runner.swap import HostPages
from photonlite.sequence import Sequence

_PAGES, _MOVED = 400, 128
"""Pages of the cache, and of the sequence that is swapped: 2,048 positions."""

_VOCABULARY = Vocabulary(0, 1, 2, 3, 4, 5, any_id_continues=False)

AIM = 0.8
"""Least share of the bandwidth of a plain copy."""


class _Silent:
    def on_token(self, token: Token) -> None: ...

    def on_finish(self, sequence: Sequence) -> None: ...


def measure(shape: ModelShape, device: torch.device, rounds: int) -> list[tuple[str, float, float]]:
    """Return for both directions the name, and GB/s of swapping and of one plain copy of as many bytes."""
    cache = PagedCache(shape, _PAGES, PAGE, device, torch.bfloat16)
    host = HostPages(cache, torch.zeros(4, PENDING_COLUMNS, dtype=torch.int32, device=device), _MOVED)
    size = _MOVED * bytes_of_page(shape, torch.bfloat16, PAGE)
    locked = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device=device)
    request = Request("bench", (Token(1),), TextGrammar(_VOCABULARY, 1), 1, SamplingSettings())
    sequence = Sequence(0, request, _Silent(), 1)
    # Scattered on the card, as pages come to be.
    pages = tuple((1 + torch.randperm(_PAGES - 1)[:_MOVED]).tolist())
    places = tuple(range(1, _MOVED + 1))
    out = Transfer(0, "out", sequence, 0, pages, places, 1)
    back = Transfer(1, "in", sequence, 0, pages, places, 1)
    works: tuple[tuple[str, Callable[[], object], Callable[[], object]], ...] = (
        ("out", lambda: host.move(out), lambda: locked.copy_(there, non_blocking=True)),
        ("in", lambda: host.move(back), lambda: there.copy_(locked, non_blocking=True)),
    )
    found = []
    with torch.inference_mode(), torch.cuda.device(device):
        for name, swap, plain in works:
            swapped, copied = _seconds(swap, rounds), _seconds(plain, rounds)
            found.append((name, size / swapped / 1e9, size / copied / 1e9))
    return found


def _seconds(work: Callable[[], object], rounds: int) -> float:
    """Return the median seconds that work takes on the current stream, after a warm-up."""
    work()
    seconds = []
    for _ in range(rounds):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begun.record()
        work()
        ended.record()
        ended.synchronize()
        seconds.append(begun.elapsed_time(ended) / 1e3)
    return Sample.of(seconds).median
