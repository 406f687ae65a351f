"""One of the other ranks: a process that rank 0 starts, tells what to run, and ends.

What both sides send are pickles, over a socket that only they have.
"""

import contextlib
import importlib
import io
import os
import pickle
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, Final

import torch

from photonlite.errors import EngineError
from photonlite.models.loading import ModelFiles
from photonlite.processes.worker import module_command

_MODULE: Final = "photonlite.runner.ranks.follower"
_EXIT_S: Final = 5.0  # seconds that a rank which was told to end gets for it


@dataclass(frozen=True)
class RankSetup:
    """What a rank has to know before it can load its share of a model."""

    rank: int
    count: int
    files: ModelFiles
    device: torch.device
    dtype: torch.dtype
    max_context: int | None
    cpu_threads: int
    store: int  # file in which the ranks meet; see `RankGroup.connect`
    memory: int  # file of `ranks.memory.SharedMemory`
    parent: int  # process id of rank 0


class RankProcess:
    """A running rank; it inherits the files of its setup."""

    def __init__(self, setup: RankSetup) -> None:
        self.rank = setup.rank
        ours, theirs = socket.socketpair()
        with theirs:
            self._connection = Connection(ours.detach())
            try:
                self._process = subprocess.Popen(
                    module_command(_MODULE, str(theirs.fileno())),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    # It must find exactly the modules that this process finds. Progress bars are rank 0's.
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path)), "TQDM_DISABLE": "1"},
                    pass_fds=(theirs.fileno(), setup.store, setup.memory),
                    start_new_session=True,  # the terminal's Ctrl-C does not reach it
                )
                self.send(_pickled(setup))
            except OSError as cause:
                self._connection.close()
                raise EngineError(f"rank {setup.rank} does not start: {cause}") from cause

    def send(self, message: bytes) -> None:
        """Send a message; raises an OSError where the process has ended."""
        self._connection.send_bytes(message)

    def wait_loaded(self) -> None:
        """Wait until it has loaded its share; EngineError if it ends instead."""
        try:
            reason: str | None = self._connection.recv()
        except (EOFError, OSError):
            reason = how_ended(self._process.wait(_EXIT_S))
        if reason is not None:
            raise EngineError(f"rank {self.rank} of the model could not load its share: {reason}")

    def wait(self) -> int:
        """Wait until it has ended; return its exit code, below 0 the number of a signal."""
        return self._process.wait()

    def kill(self) -> None:
        """Kill it; from any thread, at any time."""
        self._process.kill()

    def end(self) -> None:
        """Make it end, if it has not, and wait until it has."""
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_S)
        self.kill()
        self._process.wait()


def how_ended(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"it was ended by {signal.Signals(-code).name}"
    return f"it was ended by signal {-code}"


def read_setup(connection: Connection) -> RankSetup:
    setup: RankSetup = pickle.loads(connection.recv_bytes())
    return setup


def _pickled(setup: RankSetup) -> bytes:
    data = io.BytesIO()
    pickler = pickle.Pickler(data)
    pickler.dispatch_table = {ModuleType: lambda module: (importlib.import_module, (module.__name__,))}  # a family
    pickler.dump(setup)
    return data.getvalue()


def record(name: str, *arguments: Any) -> bytes:
    """Return a message that makes the other ranks call a method of `follower.Follower`."""
    return pickle.dumps((name, arguments))
