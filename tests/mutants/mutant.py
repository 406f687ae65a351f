"""A bug to seed."""

from dataclasses import dataclass

SIMULATION = "tests/simulation/test_simulation.py"
CORE = "tests/engine/test_core.py"
RUNS = "tests/engine/test_runs.py"


@dataclass(frozen=True)
class Mutant:
    """A bug to seed.

    Attributes:
        name: What goes wrong.
        path: The module, inside the package.
        old: Lines that must be there exactly once.
        new: What stands there instead.
        tests: What pytest runs, separated by spaces; the first failure ends it.
    """

    name: str
    path: str
    old: str
    new: str
    tests: str
