"""Bugs to seed into photonlite/device/."""

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "decode steps on all cores",
        "device/cores.py",
        "if multiplications < WORTH or self._most == 1:",
        "if self._most == 1:",
        "tests/device/test_cores.py",
    ),
    Mutant(
        "what this process uses counted as taken by others",
        "device/cores.py",
        "(idle - idle_then + used - used_then)",
        "(idle - idle_then)",
        "tests/device/test_cores.py",
    ),
    Mutant(
        "every model on all cores",
        "device/cores.py",
        "int(cores / len(self._wide))",
        "int(cores)",
        "tests/device/test_cores.py",
    ),
    Mutant(
        "the number of threads set for the whole process",
        "device/cores.py",
        "    for function in _setters:\n        function(count)",
        "    torch.set_num_threads(count)",
        "tests/device/test_cores.py",
    ),
]
