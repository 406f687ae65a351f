"""A service on a Ray of its own, in a child process: `photonlite.ray.build` as users run it, on this machine."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

SMALL: Final[Mapping[str, Any]] = {
    **{"device": "cpu", "dtype": "float32", "cpus": 0.25, "image_workers": 0},
    "engine": {"cpu_threads": 1, "image_threads": 1, "grammar_workers": 1},
}
"""Settings of replicas of the shipped checkpoint that share two cores."""

_ROOT: Final = Path(__file__).resolve().parents[2]
_PATIENCE_S: Final = 300.0


class Cluster:
    """A running service.

    Attributes:
        port: Of its HTTP proxy.
    """

    def __init__(self, child: "subprocess.Popen[str]") -> None:
        self._child = child
        self.port = int(self._told("port"))

    @property
    def replicas(self) -> list[psutil.Process]:
        """The processes of the replicas that have an engine."""
        return [one for one in psutil.Process(self._child.pid).children(recursive=True) if _runs_engine(one)]

    def update(self, **settings: Any) -> None:
        """Deploy other settings; returns when all replicas have them."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(settings) + "\n")
        self._child.stdin.flush()
        self._told("updated")

    def _told(self, word: str) -> str:
        """Return what the child prints behind a word; what Ray prints beside it is passed over."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            first, _, rest = line.strip().partition(" ")
            if first == word:
                return rest
        raise RuntimeError("the service has ended: its errors are on stderr")


@contextlib.contextmanager
def cluster(**settings: Any) -> Iterator[Cluster]:
    """Serve while a block runs, with settings of `photonlite.ray.build`."""
    command = [sys.executable, "-m", "bench.replicas.child", json.dumps(settings)]
    environ = os.environ | {"PYTHONPATH": str(_ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    child = subprocess.Popen(
        command, cwd=_ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    with child:
        try:
            yield Cluster(child)
        finally:
            below = psutil.Process(child.pid).children(recursive=True)
            assert child.stdin is not None
            child.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(60)
            child.kill()
            for process in psutil.wait_procs(below, timeout=5)[1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def wait_until(true: Callable[[], bool], what: str) -> float:
    """Wait until something holds; returns the seconds that took."""
    begun = time.monotonic()
    while not true():
        if time.monotonic() - begun > _PATIENCE_S:
            raise TimeoutError(f"it has not come about in {_PATIENCE_S:g} s: {what}")
        time.sleep(0.1)
    return time.monotonic() - begun


def _runs_engine(process: psutil.Process) -> bool:
    try:
        return any("ServeReplica" in part and ":engine" in part for part in process.cmdline())
    except psutil.Error:  # it has ended
        return False
