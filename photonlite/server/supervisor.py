"""The supervisor of `photonlite serve`: keeps the port, and starts the serving process again when it dies or hangs.

```
supervisor ──── listening socket, restarts so far ────> serving process: loads the model, accepts connections
    │ <─────────── ready, then a beat a second ───────────┘
    │
    ├─ its end of the link closes ──> it has ended: exit code or signal
    ├─ no beat for SILENT_S ────────> it hangs so that not even its watchdog runs: SIGABRT (all stacks), SIGKILL
    └─ SIGTERM, SIGINT, SIGHUP ─────> passed on; after the first two its exit code is returned
```

The serving process has a watchdog of its own (`watchdog`), which ends it when the engine hangs. Connections made while
there is no process wait in the backlog of the listening socket.

A process that ends before it has ever served is not started again: its error has been reported, and its exit code is
returned. Later ends are followed by a restart, at once the first time in a row, then after 1, 2, 4 ... `LONGEST_WAIT_S`
seconds. `STABLE_S` seconds of serving end a row; one longer than `max_restarts` is given up, with the last exit code.

This is not `uvicorn.supervisors.Multiprocess`, which restarts without end or delay, waits for a process that does not
stop for ever, returns no exit codes and takes SIGHUP for a restart. Nothing here imports torch, uvicorn or starlette.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from photonlite.server.link import BEAT, READY, VARIABLE
from photonlite.server.watchdog import ENGINE_DIED, HUNG, PERIOD_S

SUPPORTED: Final = os.name == "posix"  # elsewhere a socket cannot be handed to a new program

STABLE_S = 60.0
LONGEST_WAIT_S = 30.0
SILENT_S = 60.0
_ABORTING_S = 5.0  # seconds in which a hanging process must have printed its stacks
_ENDING_S = 10.0  # seconds after closing its link in which a process must have ended
_REASONS: Final = {ENGINE_DIED: "engine_died", HUNG: "hung"}
_STOP: Final = (signal.SIGTERM, signal.SIGINT)
_PASSED_ON: Final = (*_STOP, *([signal.SIGHUP] if SUPPORTED else []))


class Supervisor:
    """Runs a command that serves at a listening socket, as often as it takes; closes the socket when told to stop."""

    def __init__(self, command: Sequence[str], listener: socket.socket, max_restarts: int) -> None:
        self._command = command
        self._listener = listener
        self._max_restarts = max_restarts
        self._process: ServingProcess | None = None
        self._stopping = False
        self._reload = False  # SIGHUP has come while a process was loading
        self._restarts: Counter[str] = Counter()
        self._in_a_row = 0
        self._device: str | None = None  # where a process has served

    def run(self) -> int:
        """Supervise until a process has stopped in order or failed for good; returns its exit code.

        Only on the main thread. Raises OSError where the first process cannot be started.
        """
        with _signal_bytes() as signals:
            self._signals = signals
            while True:
                end = self._run_once()
                if self._stopping:
                    return end.code if end.served_s else 0  # one that was loading had accepted nothing
                if self._device is None:
                    return end.code
                if not self._wait_to_restart(end):
                    return 0 if self._stopping else end.code or 1

    def _run_once(self) -> "End":
        """Run a process to its end."""
        self._reload = False
        try:
            self._process = process = ServingProcess(self._command, self._listener, self._restarts, self._device)
        except OSError as error:
            if self._device is None:
                raise
            print(f"photonlite: error: the serving process does not start: {error}", file=sys.stderr, flush=True)
            return End(1, "exit", 0.0)
        try:
            hangs = self._watch(process)
            return process.end(hangs=hangs)
        finally:
            self._process = None

    def _watch(self, process: "ServingProcess") -> bool:
        """Pass signals on until the process has ended or hangs; returns whether it hangs."""
        silent = 0.0
        # Observations are counted, so that a suspended machine does not look like a silent process.
        while silent < SILENT_S or not process.ready:
            readable, _, _ = select.select([process.link, self._signals], [], [], PERIOD_S)
            if process.link in readable:
                silent = 0.0
                if not process.read():
                    return False
                self._device = self._device or process.device
                if self._reload and process.ready:
                    process.signal(signal.SIGHUP)
                    self._reload = False
            elif not readable:
                silent += PERIOD_S
            self._take_signals()  # after reading: whether it is ready decides about some
            if os.getpid() == 1:
                _reap_orphans(process.pid)
        return True

    def _wait_to_restart(self, end: "End") -> bool:
        """Log the end of a process, and wait; returns whether to start another one."""
        fields: dict[str, Any] = {"reason": end.reason, "exit_code": end.code}
        self._in_a_row = 1 if end.served_s >= STABLE_S else self._in_a_row + 1
        if self._in_a_row > self._max_restarts:
            _log("gave up", "critical", **fields, restarts=self._restarts.total())
            return False
        self._restarts[end.reason] += 1
        wait_s = delay_s(self._in_a_row)
        _log("restarting", "error", **fields, restarts=self._restarts.total(), seconds=wait_s)
        until = time.monotonic() + wait_s
        while not self._stopping:
            left = until - time.monotonic()
            if left <= 0:
                return True
            select.select([self._signals], [], [], left)
            self._take_signals()
        return False

    def _take_signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in self._signals.recv(64):
                if number in _STOP:
                    self._stopping = True
                    self._listener.close()  # the port is free as soon as the serving process has closed it
                if self._process is not None and (number in _STOP or self._process.ready):
                    self._process.signal(number)
                else:  # a process that loads would end at SIGHUP, and may have read the keys before they changed
                    self._reload = number == signal.SIGHUP


def delay_s(in_a_row: int) -> float:
    """Return how long to wait before the restart of this number in a row, from 1."""
    return 0.0 if in_a_row == 1 else min(LONGEST_WAIT_S, 2.0 ** (in_a_row - 2))


class End(NamedTuple):
    """How a process has ended."""

    code: int  # its exit code; 128 and the number of the signal that has ended it
    reason: str  # a label of the metrics
    served_s: float  # seconds for which it has served; 0 if it has not


class ServingProcess:
    """A process that serves, and the supervisor's end of the link to it."""

    def __init__(
        self, command: Sequence[str], listener: socket.socket, restarts: dict[str, int], device: str | None
    ) -> None:
        self.device: str | None = None  # of its model, once it serves
        self._since = 0.0
        self.link, theirs = socket.socketpair()
        with theirs:
            files = {"listener": listener.fileno(), "link": theirs.fileno()}
            told = json.dumps({**files, "restarts": restarts, "device": device})
            # It must find exactly the modules that this process finds.
            environment = {**os.environ, VARIABLE: told, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
            # In a process group of its own: the terminal's Ctrl-C reaches it once, through the supervisor.
            self._process = subprocess.Popen(command, env=environment, pass_fds=tuple(files.values()), process_group=0)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ready(self) -> bool:
        return self.device is not None

    def read(self) -> bool:
        """Read what it has sent; returns whether it lives."""
        try:
            told = self.link.recv(4096)
        except OSError:
            return False
        for line in told.split(BEAT):
            if line.startswith(READY):
                self.device, self._since = line.removeprefix(READY).decode(), time.monotonic()
        return bool(told)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self, *, hangs: bool) -> End:
        """Wait for the end of a process that is ending, or end one that hangs."""
        served_s = time.monotonic() - self._since if self.ready else 0.0
        if hangs:
            self._process.send_signal(signal.SIGABRT)
        try:
            code = self._process.wait(_ABORTING_S if hangs else _ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self.link.close()
        reason = "signal" if code < 0 else _REASONS.get(code, "exit")
        return End(128 - code if code < 0 else code, "hung" if hangs else reason, served_s)


@contextlib.contextmanager
def _signal_bytes() -> Iterator[socket.socket]:
    """Turn signals into bytes of a socket while a block runs: nothing happens in the middle of something else."""
    reading, writing = socket.socketpair()
    with reading, writing:
        reading.setblocking(False)
        writing.setblocking(False)
        before = {number: signal.signal(number, lambda *_: None) for number in _PASSED_ON}
        wakeup = signal.set_wakeup_fd(writing.fileno())
        try:
            yield reading
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)


def _reap_orphans(child: int) -> None:
    """Wait for ended processes that lost their parent: as process 1 of a container this one inherits them."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != child:
            os.waitpid(ended.si_pid, 0)


def _log(event: str, level: str, **fields: Any) -> None:
    """Write a line like those of the serving process (`transport.logs`)."""
    time_ = datetime.now(UTC).isoformat(timespec="milliseconds")
    with contextlib.suppress(OSError):
        print(json.dumps({"time": time_, "event": event, "level": level, **fields}), flush=True)
