"""Play frames into a real-time loop at a steady rate, on a thread of its own."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from photonlite.errors import InputError, SettingsError
from photonlite.realtime.loop import RealtimeLoop
from photonlite.realtime.sources import Frames
from photonlite.settings import plain


def paced(
    frames: Iterator[Any], rate: float | None, clock: Callable[[], float], wait: Callable[[float], bool]
) -> Iterator[Any]:
    """Yield frames at so many per second, counted from the first; None yields them as they come.

    A source that falls behind by more than a frame starts counting anew, as a camera that has lost frames: it does not
    catch up in a burst. `wait` waits for so many seconds, and returns whether to stop.
    """
    due = clock()
    for frame in frames:
        now = clock()
        if rate is not None:
            if now - due > 1 / rate:
                due = now
            elif now < due and wait(due - now):
                return
            due += 1 / rate
        elif wait(0):
            return
        yield frame


class Feed:
    """Plays a source into a loop until it ends, a time is over, or it is stopped.

    `rate` is in frames per second, by default the source's own. A source that can be played again is, if `repeat`.
    """

    def __init__(
        self,
        loop: RealtimeLoop,
        frames: Frames,
        *,
        rate: float | None = None,
        duration_s: float | None = None,
        repeat: bool = False,
    ) -> None:
        for name, value in (("rate", rate), ("duration_s", duration_s)):
            number = isinstance(plain(value), int | float) and not isinstance(value, bool)
            if value is not None and not (number and 0 < value < float("inf")):
                raise SettingsError(f"{name} is {value!r:.60}: give a number above 0")
        self.rate = frames.rate if rate is None else float(rate)
        self._loop = loop
        self._frames = frames
        self._end = None if duration_s is None else time.monotonic() + duration_s
        self._repeat = repeat and frames.repeatable
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="photonlite-feed", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether no more frames will come."""
        return not self._thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the frames, for so many seconds at most; raises what the source has raised."""
        self._thread.join(timeout)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Play no more."""
        self._stopping.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _work(self) -> None:
        try:
            for frame in paced(self._played(), self.rate, time.monotonic, self._stopping.wait):
                if self._loop.closed or (self._end is not None and time.monotonic() >= self._end):
                    return
                self._loop.submit(frame)
        except Exception as error:
            if not (isinstance(error, InputError) and self._loop.closed):
                self._error = error

    def _played(self) -> Iterator[Any]:
        played = True
        while played:
            played = False
            for frame in self._frames.play():
                yield frame
                played = self._repeat
