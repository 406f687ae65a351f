"""What a typed answer has to be, from the command line: --schema, --choices and --regex."""

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from photonlite.errors import InputError

MAX_SCHEMA_BYTES = 1 << 20
"""Of a file with a schema."""


def read_form(options: argparse.Namespace) -> dict[str, Any]:
    """Read what the answer has to be.

    Args:
        options: Of a query; `schema`, `choices` and `regex` are text, or None.

    Returns:
        One of the arguments `schema`, `choices` and `regex` of `VisionModel.query`, or none.

    Raises:
        InputError: The file or the module with the schema cannot be read.
    """
    if options.schema is not None:
        return {"schema": _schema(options.schema)}
    if options.choices is not None:
        return {"choices": [choice.strip() for choice in options.choices.split(",")]}
    return {} if options.regex is None else {"regex": options.regex}


def _schema(source: str) -> Any:
    module, colon, name = source.rpartition(":")
    if colon and not Path(source).exists() and all(part.isidentifier() for part in (*module.split("."), name)):
        return _from_module(module, name)
    path = Path(source)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SCHEMA_BYTES + 1)  # pipes and devices have no size
        if len(data) > MAX_SCHEMA_BYTES:
            raise InputError(f"--schema {source}: the file is over {MAX_SCHEMA_BYTES} bytes: make the schema smaller")
        return data.decode()
    except (OSError, UnicodeDecodeError) as cause:
        raise InputError(f"--schema {source}: the file cannot be read as text: {cause}") from cause


def _from_module(module: str, name: str) -> Any:
    """Import a type, also from a module that lies in the folder where the command is run."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as cause:  # whatever somebody's module does when it is imported
        raise InputError(f"--schema {module}:{name} cannot be imported: {type(cause).__name__}: {cause}") from cause
