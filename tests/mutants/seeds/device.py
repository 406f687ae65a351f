"""Bugs to seed into photonlite/device/."""

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "decode steps on all cores",
        "device/cpu.py",
        "if multiplications < WORTH or most == 1:",
        "if most == 1:",
        "tests/device/test_cpu.py",
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
        "device/cpu.py",
        "int(cores / len(wide))",
        "int(cores)",
        "tests/device/test_cpu.py",
    ),
    Mutant(
        "the number of threads set for the whole process",
        "device/cpu.py",
        "    for function in _setters:\n        function(count)",
        "    torch.set_num_threads(count)",
        "tests/device/test_cpu.py",
    ),
    Mutant(
        "a branch is not waited for",
        "device/branches.py",
        "            torch.cuda.current_stream(self._device).wait_stream(self._left)\n",
        "",
        "tests/device/test_branches.py",
    ),
    Mutant(
        "a branch in a part of a card has all of it",
        "device/branches.py",
        " and not in_part()",
        "",
        "tests/device/test_branches.py",
    ),
]
