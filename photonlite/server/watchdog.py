"""The watchdog of a serving process: ends it when the engine, or the event loop, makes no progress.

```
once a second     engine ticked, loop turned ──> beat to the supervisor
                  neither idle nor moving ─────> count; at the limit: all stacks on stderr, exit code HUNG
```

An idle engine ticks, so only one that is inside a step is silent. Where it waits for the device, the limit is `hang_s`;
where it works on the host, as while kernels compile, ten times as much. Seconds are counted by observations: a machine
or a process that was suspended has not been watched meanwhile.
"""

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Final, Protocol

ENGINE_DIED: Final = 70  # exit code of a server whose engine has died (EX_SOFTWARE of sysexits.h): start it again
HUNG: Final = 75  # exit code of a server that the watchdog has ended (EX_TEMPFAIL): start it again
PERIOD_S: Final = 1.0  # seconds between two observations
HANG_S: Final = {"cuda": 60.0, "cpu": 600.0}  # on the CPU, encoding a large image may take minutes

FROZEN_S: Final = 10.0  # seconds beyond the limit after which Python counts as frozen: the watchdog itself has not run
_TICKING_S: Final = 2.0  # an idle engine ticks twice a second
_ON_HOST: Final = 10
_LAST_S: Final = 5.0  # seconds that logging may take before the process ends without it

_logger = logging.getLogger("photonlite.server")


class WatchedModel(Protocol):
    @property
    def alive(self) -> bool: ...
    @property
    def last_tick_s(self) -> float: ...
    @property
    def waits_for_device(self) -> bool: ...


def end_hung(what: str, seconds: float) -> None:
    """End this process with exit code HUNG, with every thread's stack on stderr."""
    try:
        faulthandler.dump_traceback_later(_LAST_S, exit=True)  # a stuck thread may hold a lock that logging needs
        _logger.critical("hung", extra={"fields": {"what": what, "seconds": seconds, "exit_code": HUNG}})
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        logging.shutdown()
    finally:  # also where there is no stderr
        os._exit(HUNG)


class Watchdog:
    """Watches a model and the event loop that serves it from a thread of its own.

    Args:
        model: Watched from `start` on, until it has died: then the server ends by itself.
        hang_s: Seconds that a step on the device may take.
        loop: Whether the event loop is watched, too.
        beat: Called once a second, whatever hangs, as long as Python runs.
        put_off: Called once a second until the server stops: puts off the end of the process in which Python is frozen.
        end: Called with what hangs and for how long; does not return in production.
    """

    def __init__(
        self,
        model: WatchedModel,
        hang_s: float,
        beat: Callable[[], None] = lambda: None,
        end: Callable[[str, float], None] = end_hung,
        *,
        loop: bool = True,
        put_off: Callable[[], None] = lambda: None,
    ) -> None:
        self._model = model
        self._hang_s = hang_s
        self._beat = beat
        self._end = end
        self._put_off = put_off
        self._watches_loop = loop
        self._resting = self._turned = False
        # Observed without progress; of the engine also without a moment in which it did not wait for the device.
        self._loop_s = self._engine_s = self._device_s = 0.0

    def start(self) -> None:
        threading.Thread(target=self._run, name="photonlite-watchdog", daemon=True).start()

    def loop_turned(self) -> None:
        """Note that the event loop runs."""
        self._turned = True

    def rest(self) -> None:
        """Watch no more: the server stops, within a time that others see to."""
        self._resting = True

    def observe(self) -> None:
        """Look at the engine and the loop; to be called every `PERIOD_S` seconds."""
        self._beat()
        if self._resting or not self._model.alive:
            return
        self._put_off()
        moved = self._model.last_tick_s < _TICKING_S
        self._engine_s = 0.0 if moved else self._engine_s + PERIOD_S
        self._device_s = self._device_s + PERIOD_S if not moved and self._model.waits_for_device else 0.0
        self._loop_s = 0.0 if self._turned or not self._watches_loop else self._loop_s + PERIOD_S
        self._turned = False
        if self._loop_s >= self._hang_s:
            self._end("event loop", self._loop_s)
        if self._device_s >= self._hang_s:
            self._end("step on the device", self._device_s)
        elif self._engine_s >= self._hang_s * _ON_HOST:
            self._end("engine thread", self._engine_s)

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(PERIOD_S):
            self.observe()
