"""Programs that tests wait for, run beside the other tests: most of those keep one core busy, and there are two."""

import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 1800

Program = tuple[str, ...]
"""The name of a module that is run, and its arguments."""

Ended = subprocess.CompletedProcess[str]


class Beside:
    """Runs programs, one at a time and in order.

    Args:
        programs: What tests will ask for.
    """

    def __init__(self, programs: Iterable[Program]) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._closing = False
        self._worker = ThreadPoolExecutor(1, "beside")
        self._runs: dict[Program, Future[Ended]] = {
            program: self._worker.submit(self._run, program) for program in dict.fromkeys(programs)
        }

    def wait_for(self, program: Program) -> Ended:
        """Give how a program ended. One that has not begun is run by the caller, who would wait for others first."""
        run = self._runs[program]
        return self._run(program) if run.cancel() else run.result()

    def close(self) -> None:
        """End what nobody waits for any more."""
        self._closing = True
        self._worker.shutdown(wait=False, cancel_futures=True)
        for process in tuple(self._running):
            process.kill()
        self._worker.shutdown()

    def _run(self, program: Program) -> Ended:
        # One thread each: PyTorch's others would wait for work in a loop, on the core of the other tests.
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", *program]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._running.add(process)
        if self._closing:
            process.kill()
        with process:
            try:
                out, err = process.communicate(timeout=LIMIT_S)
            finally:
                process.kill()
                self._running.discard(process)
        return Ended(command, process.returncode, out, err)
