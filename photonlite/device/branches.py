"""Work that runs beside what follows it, inside one CUDA graph."""

import contextlib
from collections.abc import Iterator

import torch

from photonlite.device.parts import in_part


class Branch:
    """A second stream, which leaves the stream of a capture and comes back to it.

    ```
    with branch.beside():        a ─┬─ c ── d ─┬─ e
        b                           └─ b ──────┘
    c, d
    branch.join()
    e
    ```

    Outside of a capture b runs in its place: what the host launches one by one is no quicker on two streams. So it does
    in a part of a card, where another stream would have all multiprocessors. b may be read behind `join`, and what b
    reads has to live until then: the memory of each stream is reused in that stream's order.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[int, torch.cuda.Stream] = {}  # by priority: a graph's kernels keep that of their stream
        self._left: torch.cuda.Stream | None = None

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Let what is launched in a block run beside what is launched behind it, up to `join`."""
        self._left = None  # a capture that failed may not have come to `join`
        if not self._may_leave():
            yield
            return
        main = torch.cuda.current_stream(self._device)
        priority = main.priority
        if priority not in self._streams:
            self._streams[priority] = torch.cuda.Stream(self._device, priority=priority)  # type: ignore[no-untyped-call]
        self._left = self._streams[priority]
        self._left.wait_stream(main)
        with torch.cuda.stream(self._left):
            yield

    def join(self) -> None:
        """Let what follows wait for the block."""
        if self._left is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._left)
            self._left = None

    def _may_leave(self) -> bool:
        return self._device.type == "cuda" and torch.cuda.is_current_stream_capturing() and not in_part()
