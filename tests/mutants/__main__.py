"""Seed one bug at a time into each mechanism of the package and show which test fails.

```sh
python -m tests.mutants                # all, a quarter of an hour on two cores
python -m tests.mutants mask page      # those with one of these words in their name
python -m tests.mutants --workers 30   # on a larger machine
```

A mutant is a copy of the package with a few lines exchanged. The tests named with it run on that copy; if they all
pass, the mutant survives, and the exit code is 1: a mechanism is not guarded.
"""

import argparse
import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

from tests.mutants import seeds
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
_LINKED = ("assets", "bench", "README.md")
MUTANTS: list[Mutant] = [
    mutant
    for module in pkgutil.iter_modules(seeds.__path__)
    for mutant in import_module(f"{seeds.__name__}.{module.name}").MUTANTS
]


def seeded(mutant: Mutant) -> str:
    """Return the module's text with the bug in it."""
    text = (ROOT / "photonlite" / mutant.path).read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(
            f"mutant {mutant.name!r}: its lines stand {text.count(mutant.old)} times in photonlite/{mutant.path}; "
            "bring it up to date"
        )
    return text.replace(mutant.old, mutant.new)


def killers(mutant: Mutant) -> list[str]:
    """Run the mutant's tests on a copy of the package; returns those that failed."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch)
        for folder in ("photonlite", "tests"):
            shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "golden"))
        (copy / "tests" / "golden").symlink_to(ROOT / "tests" / "golden")
        for name in _LINKED:
            (copy / name).symlink_to(ROOT / name)
        shutil.copy(ROOT / "pyproject.toml", copy)
        (copy / "photonlite" / mutant.path).write_text(seeded(mutant))
        # Long tests too: some mechanisms are guarded by these alone.
        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
        command = [sys.executable, "-m", "pytest", *options, *mutant.tests.split()]
        environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "TEST_GUARD_S": "60"}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"mutant {mutant.name!r}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}")
    lines = done.stdout.splitlines()
    return [line.split()[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]


def main() -> int:
    """Run the chosen mutants and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="run only mutants with one of these words in their name")
    parser.add_argument("--workers", type=int, default=2, help="mutants tested at a time")
    options = parser.parse_args()
    words = options.words
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    survivors = 0
    begun = time.perf_counter()
    with ThreadPoolExecutor(options.workers) as pool:
        for mutant, found in zip(chosen, pool.map(killers, chosen), strict=True):
            survivors += not found
            print(
                f"{'killed  ' if found else 'SURVIVES'}  {mutant.name:<62} {found[0] if found else mutant.tests}",
                flush=True,
            )
    print(f"{len(chosen) - survivors} of {len(chosen)} killed in {time.perf_counter() - begun:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
