"""One worker process, seen from the process that uses it."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from photonlite.errors import GrammarWorkerError
from photonlite.grammar.compiler.frames import decode, encode, read_frame, write_frame
from photonlite.grammar.spec import GrammarSpec

COMMAND: Final = (sys.executable or "python3", "-P", "-m", "photonlite.grammar.compiler.worker")
"""Starts a worker. Multiprocessing would import the user's main module once more."""

START_S: Final = 60.0
"""Seconds that a worker may take to be ready: on a busy machine importing NumPy can take some."""

_GRACE_S: Final = 5.0
"""Seconds for which a process that has closed its pipes is given time to end."""

MEMORY: Final = 2 << 30
"""Bytes of address space that a worker may have, where the system keeps to such limits."""

_FROM_OUTSIDE: Final = tuple(-number for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)))
"""Exit codes of processes that others have ended: nothing that a worker does to itself has them."""

# Threads of linear algebra would only cost address space, which is limited: workers do none.
_ALONE: Final = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class NotTakenError(Exception):
    """The worker had ended before it took the job."""


class CrashedError(Exception):
    """The worker ended while it was at the job: of what it computed, or of the limit of its memory."""


class KilledError(Exception):
    """The worker was ended from outside while it was at the job: by the kernel for want of memory, or by somebody."""


class LateError(Exception):
    """The job took too long; the worker was killed for it."""


class WorkerProcess:
    """A process that compiles one spec after the other. One thread uses it; any thread may kill it.

    Args:
        command: Starts it.

    Raises:
        GrammarWorkerError: The system does not start it.
    """

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        try:
            self._process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                env=_environment(),
                start_new_session=True,  # Ctrl-C in the terminal is not for it, not even while it starts
            )
        except OSError as cause:
            self._complaints.close()
            raise _unstarted(str(cause)) from cause
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._pipes = self._process.stdin, self._process.stdout
        self._lock = threading.Lock()
        self._expiring: object = None
        self._late = False

    @property
    def alive(self) -> bool:
        """Whether it can take a job, as far as can be seen from here."""
        return not self._late and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """With which it ended, below 0 the number of a signal; None while it runs."""
        return self._process.poll()

    def prepare(self, setup: bytes) -> None:
        """Hand over what it needs to know, and wait until it is ready.

        Args:
            setup: The first frame; see `worker`.

        Raises:
            GrammarWorkerError: It ended instead, or took more than `START_S`.
        """
        jobs, results = self._pipes
        try:
            with self._killed_after(START_S):
                write_frame(jobs.fileno(), setup)
                read_frame(results.fileno())
        except (OSError, EOFError) as cause:
            reason = f"it was not ready after {START_S:g} s" if self._late else self._last_words()
            raise _unstarted(reason) from cause

    def ask(self, spec: GrammarSpec, limit_s: float) -> tuple[object, int]:
        """Have a spec compiled.

        Args:
            spec: What to compile.
            limit_s: Seconds after which the process is killed.

        Returns:
            The automaton, or the error that it met; and how many bytes it was.

        Raises:
            NotTakenError: The process had ended before.
            CrashedError: It ended instead of answering.
            KilledError: Another process ended it.
            LateError: It was killed.
        """
        jobs, results = self._pipes
        taken = False
        try:
            with self._killed_after(limit_s):
                write_frame(jobs.fileno(), encode(spec))
                read_frame(results.fileno())
                taken = True
                data = read_frame(results.fileno())
        except (OSError, EOFError) as cause:
            self.close()
            if self._late:
                raise LateError from cause
            if not taken:
                raise NotTakenError from cause
            # The limits of a job end its process by other signals: ABRT of an allocation that failed, SEGV, ALRM.
            raise (KilledError if self.exit_code in _FROM_OUTSIDE else CrashedError) from cause
        return decode(data), len(data)

    def kill(self) -> None:
        """End it now; whoever waits for its answer is told that it is lost."""
        self._process.kill()

    def close(self) -> None:
        """End it, and let go of what it held; only by the thread that uses it."""
        self._process.kill()
        self._process.wait()
        for file in (*self._pipes, self._complaints):
            file.close()

    def disown(self) -> None:
        """Forget it, in a process that was forked from the one that started it: it is still that one's."""
        nothing = os.open(os.devnull, os.O_RDWR)
        for pipe in self._pipes:
            if not pipe.closed:
                # While a copy of the pipe is open here, the worker would not see its own process end.
                os.dup2(nothing, pipe.fileno(), inheritable=False)
        os.close(nothing)
        self._process.returncode = 0  # nobody waits for it here, or kills it

    @contextlib.contextmanager
    def _killed_after(self, seconds: float) -> Iterator[None]:
        """Kill the process if the block takes longer: reading ends then, which nothing else could interrupt."""
        key = object()
        timer = threading.Timer(seconds, self._expire, [key])
        timer.daemon = True
        with self._lock:
            self._expiring = key
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            with self._lock:
                self._expiring = None

    def _expire(self, key: object) -> None:
        with self._lock:
            if self._expiring is key:  # a timer that was cancelled may still have been on its way
                self._late = True
                self._process.kill()

    def _last_words(self) -> str:
        try:
            code: int | None = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:  # it has closed its pipes and goes on
            code = None
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"it ended with exit code {code}"


def _environment() -> dict[str, str]:
    """Let the process find exactly the modules that this one finds."""
    return {**os.environ, **_ALONE, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}


def _unstarted(reason: str) -> GrammarWorkerError:
    return GrammarWorkerError(
        f"the process that compiles grammars does not start: {reason}; check that `{' '.join(COMMAND)}` runs"
    )
