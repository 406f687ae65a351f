"""Runs a module's `main` on the CPU by Triton's interpreter; a program, as the switch is read when Triton is imported.

```sh
python -m tests.kernels.interpreter tests.kernels.interpreted_norms
```
"""

import importlib
import inspect
import os
import sys
from functools import cache
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

from triton.language.core import is_builtin
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterOptions


def patch_builtins(package: Any, builder: object, scope: Any) -> None:
    """As Triton's, which lists a package's members anew for each launch: half of the time of small launches."""
    for name in _builtins_of(package):
        if is_builtin(member := getattr(package, name)):
            interpreter._patch_attr(package, name, member, builder, scope)


@cache
def _builtins_of(package: Any) -> list[str]:
    return [name for name, member in inspect.getmembers(package) if is_builtin(member)]


def main() -> None:
    interpreter._patch_builtin = patch_builtins
    # A fifth of the time checks that sums and products fit in 32 bits, which those of small tensors do.
    interpreter.interpreter_builder.options = InterpreterOptions(sanitize_overflow=False)
    importlib.import_module(sys.argv[1]).main()


if __name__ == "__main__":
    main()
