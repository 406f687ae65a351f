"""One worker process, seen from the client."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from photonlite.errors import GrammarWorkerError
from photonlite.grammar.compiler.worker import decode, encode, read_frame, write_frame
from photonlite.grammar.spec import GrammarSpec

COMMAND: Final = (sys.executable or "python3", "-P", "-m", "photonlite.grammar.compiler.worker")
"""Starts a worker. Multiprocessing would import the user's main module once more."""

START_S: Final = 60.0
"""Seconds that a worker may take to be ready: on a busy machine importing NumPy can take some."""

MEMORY: Final = 2 << 30
"""Bytes of address space that a worker may have, where the system enforces such limits."""

_GRACE_S: Final = 5.0
"""Seconds that a process which has closed its pipes gets to exit."""

_FROM_OUTSIDE: Final = tuple(-number for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)))
"""Exit codes of processes that others ended. The limits of a job end it otherwise: by ABRT, SEGV or ALRM."""

# Threads of linear algebra would only cost address space, which is limited: workers use none.
_ONE_THREAD: Final = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class GrammarWorkerLostError(Exception):
    """A worker ended instead of answering.

    "not taken": before it had read the job. "crashed": of what it computed, or of its memory limit. "killed": from
    outside, as by the kernel for want of memory. "late": it took too long, and was killed for that.
    """

    def __init__(self, reason: Literal["not taken", "crashed", "killed", "late"]) -> None:
        super().__init__(reason)
        self.reason = reason


class WorkerProcess:
    """A process that compiles one spec after the other. One thread uses it; any thread may kill it."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        # The worker must find exactly the modules that this process finds.
        environment = {**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
        try:
            self._process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal is not for it, not even while it starts
            )
        except OSError as cause:
            self._stderr.close()
            raise _not_started(str(cause)) from cause
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._pipes = self._process.stdin, self._process.stdout
        self._lock = threading.Lock()
        self._deadline: object = None
        self._late = False

    @property
    def alive(self) -> bool:
        """Whether it can take a job, as far as this process can tell."""
        return not self._late and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, below 0 the number of a signal; None while it runs."""
        return self._process.poll()

    def prepare(self, setup: bytes) -> None:
        """Send the first frame, and wait until the worker is ready; raises a GrammarWorkerError where it never is."""
        jobs, results = self._pipes
        try:
            with self._killed_after(START_S):
                write_frame(jobs.fileno(), setup)
                read_frame(results.fileno())
        except (OSError, EOFError) as cause:
            reason = f"it was not ready after {START_S:g} s" if self._late else self._last_words()
            raise _not_started(reason) from cause

    def ask(self, spec: GrammarSpec, limit_s: float) -> tuple[object, int]:
        """Return the automaton of a spec or the error that the worker met, and its bytes.

        Raises:
            GrammarWorkerLostError: The process ended, or was killed because it took more than `limit_s` seconds.
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
                raise GrammarWorkerLostError("late") from cause
            if not taken:
                raise GrammarWorkerLostError("not taken") from cause
            raise GrammarWorkerLostError("killed" if self.exit_code in _FROM_OUTSIDE else "crashed") from cause
        return decode(data), len(data)

    def kill(self) -> None:
        """End it now; a thread that waits for its answer gets a GrammarWorkerLostError."""
        self._process.kill()

    def close(self) -> None:
        """End it and release its pipes; only by the thread that uses it."""
        self._process.kill()
        self._process.wait()
        for file in (*self._pipes, self._stderr):
            file.close()

    def disown(self) -> None:
        """Release the pipes in a forked process: with copies open here, a worker would not see its client end."""
        nothing = os.open(os.devnull, os.O_RDWR)
        for pipe in self._pipes:
            if not pipe.closed:
                os.dup2(nothing, pipe.fileno(), inheritable=False)
        os.close(nothing)
        self._process.returncode = 0  # it is not this process's child: it can be neither waited for nor killed

    @contextlib.contextmanager
    def _killed_after(self, seconds: float) -> Iterator[None]:
        """Kill the process if the block takes longer: nothing else could interrupt reading."""
        deadline = self._deadline = object()
        timer = threading.Timer(seconds, self._expire, [deadline])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            with self._lock:
                self._deadline = None

    def _expire(self, deadline: object) -> None:
        with self._lock:
            if self._deadline is deadline:  # a cancelled timer may already have fired
                self._late = True
                self._process.kill()

    def _last_words(self) -> str:
        try:
            code: int | None = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:  # it has closed its pipes and goes on
            code = None
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"it ended with exit code {code}"


def _not_started(reason: str) -> GrammarWorkerError:
    return GrammarWorkerError(
        f"the process that compiles grammars does not start: {reason}; check that `{' '.join(COMMAND)}` runs"
    )
