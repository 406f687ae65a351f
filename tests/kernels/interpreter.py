"""Runs a module's `main` on the CPU by Triton's interpreter; a program, as the switch is read when Triton is imported.

```sh
python -m tests.kernels.interpreter tests.kernels.interpreted_norms
```
"""

import importlib
import inspect
import math
import os
import sys
from functools import cache
from typing import Any

import numpy as np

os.environ["TRITON_INTERPRET"] = "1"

from triton import language
from triton.language.core import is_builtin
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterOptions


def patch_builtins(package: Any, builder: object, scope: Any) -> None:
    """As Triton's, which lists a package's members anew for each launch: half of the time of small launches."""
    names = _builtins_of(package)
    if is_builtin(getattr(package, names[0])):  # else the kernel that calls this function has patched all of them
        for name in names:
            interpreter._patch_attr(package, name, getattr(package, name), builder, scope)


@cache
def _builtins_of(package: Any) -> list[str]:
    return [name for name, member in inspect.getmembers(package) if is_builtin(member)]


def numpy_type(kind: language.dtype) -> Any:
    """As Triton's, which writes a table of all types anew for each operation."""
    scalar = kind.scalar
    return np.dtype(np.uint64) if isinstance(scalar, language.pointer_type) else _numpy_type(scalar)


_numpy_type = cache(interpreter._get_np_dtype)


def make_tensor(tensor: language.tensor, handle: object, kind: language.dtype) -> None:
    """As Triton's, which makes a tuple of constants, and the tuple's type, for each result of an operation."""
    tensor.handle, tensor.type, tensor.dtype = handle, kind, kind.scalar
    tensor.shape, tensor.numel = _shape(kind.shape if kind.is_block() else ())


@cache
def _shape(shape: tuple[int, ...]) -> tuple[language.tuple, language.constexpr]:
    return language.tuple([language.constexpr(size) for size in shape]), language.constexpr(math.prod(shape))


def main() -> None:
    interpreter._patch_builtin = patch_builtins
    interpreter._get_np_dtype = numpy_type
    language.tensor.__init__ = make_tensor
    # A fifth of the time checks that sums and products fit in 32 bits, which those of small tensors do.
    interpreter.interpreter_builder.options = InterpreterOptions(sanitize_overflow=False)
    importlib.import_module(sys.argv[1]).main()


if __name__ == "__main__":
    main()
