"""The order and sharing of collected tests, and fixtures of all: programs run in a process of their own."""

import atexit
import contextlib
import gc
import importlib
import itertools
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Several test processes share the cores. With a thread for each core, PyTorch's small operations wait for one another:
# tests against an oracle took three times as long. OpenMP reads both when PyTorch is imported, which is later.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The command line keeps embeddings in the user's cache, and finds those of earlier runs there.
os.environ.setdefault("PHOTONLITE_STORE", "none")

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 1000
"""Seconds after which a program counts as hanging: less than `faulthandler_timeout`, which would leave it running."""

Ended = subprocess.CompletedProcess[str]


settings.register_profile("busy", deadline=None)  # no test may fail because the machine is busy
settings.load_profile("busy")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "program(module, *arguments): what the fixture `ended` runs with `python -m`")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    # Imported modules and thousands of collected tests stay: scanning them takes half a second in each collection, and
    # a quarter of the time in which they are made.
    gc.disable()
    try:
        if hasattr(session.config, "workerinput") and session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            _import_share(session.config.workerinput)
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        # So that the interpreter frees all objects at its exit, and extensions report no leaks. Not at the session's
        # end, where pytest collects five times.
        atexit.register(gc.unfreeze)


def _import_share(worker: dict[str, Any]) -> None:
    """Import a worker's share of the test modules before the others.

    In a clean clone assertions are to be rewritten, for 12 seconds: else every worker does that for all modules.
    """
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    for path in paths[number * len(paths) // count : (number + 1) * len(paths) // count]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection says what is wrong
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items[:] = _spread(items, config.workerinput["workercount"])


def _spread(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return the tests such that each worker, which gets as many in a row as the others, begins with tests of minutes.

    One that begins last leaves all cores but one idle.
    """
    first = [item for item in items if any(mark.kwargs.get("first") for mark in item.iter_markers("long"))]
    others = iter([item for item in items if item not in first])
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        share = (len(items) - len(ordered)) // (workers - worker)
        own = first[worker::workers]
        ordered += [*own, *itertools.islice(others, max(0, share - len(own)))]
    return [*ordered, *others]


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """Let the garbage collector scan all objects during a test; a capture would freeze what the test makes."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def ended(request: pytest.FixtureRequest) -> Ended:
    """Run the program of the test's marker and wait for it."""
    marker = request.node.get_closest_marker("program")
    assert marker is not None, "mark the test with the program that it runs"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", *marker.args], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
