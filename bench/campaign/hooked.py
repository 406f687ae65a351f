"""Says to the processes of a server what time it is, and whether their disk is full: see `hooks.sitecustomize`."""

import os
import struct
import tempfile
from pathlib import Path

_FOLDER = Path(__file__).parent / "hooks"


class Hooks:
    """A file that the server's processes read at each call; deleted at the end of a block."""

    def __init__(self) -> None:
        file, name = tempfile.mkstemp(prefix="campaign-hooks-")
        self._file = file
        self._name = name
        self.tell()
        others = [path for path in (os.environ.get("PYTHONPATH"), os.getcwd()) if path]
        self.environment = {"PYTHONPATH": os.pathsep.join([str(_FOLDER), *others]), "CAMPAIGN_HOOKS": name}

    def __enter__(self) -> "Hooks":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        os.unlink(self._name)

    def tell(self, *, shift_s: float = 0.0, full: bool = False) -> None:
        """Shift the wall clock of the processes from now on, and have temporary files fail with ENOSPC."""
        os.pwrite(self._file, struct.pack("dd", shift_s, float(full)), 0)
