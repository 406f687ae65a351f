"""Leaves out a module whose collection takes seconds where all its tests would be deselected."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # Schemathesis makes the cases of every route when `test_contract.py` is collected; they are long or slow.
    quick = "not long and not slow" in config.getoption("markexpr")
    return True if quick and collection_path.name == "test_contract.py" else None
