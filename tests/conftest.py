"""Programs that tests wait for begin with the session; see `tests/beside.py`."""

import os
from collections.abc import Iterator

import pytest

from tests.beside import Beside, Ended, Program

# Several processes of the tests share two cores. The library sets its own threads; this is for tests that use PyTorch
# themselves. OpenMP reads it when PyTorch is imported, which is later.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "beside(module, *arguments): a program whose end the test waits for")


def _program(item: pytest.Item) -> Program | None:
    marker = item.get_closest_marker("beside")
    return None if marker is None else marker.args


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Iterator[Beside]:
    asked = (_program(item) for item in request.session.items)
    running = Beside(program for program in asked if program is not None)
    yield running
    running.close()


@pytest.fixture(scope="session", autouse=True)
def _begun_with_the_session(programs: Beside) -> None:
    """Without a test that asks for one, no program is there to begin."""


@pytest.fixture
def ended(request: pytest.FixtureRequest, programs: Beside) -> Ended:
    """How the program of the test's marker ended."""
    program = _program(request.node)
    assert program is not None, "mark the test with the program that it waits for"
    return programs.wait_for(program)
