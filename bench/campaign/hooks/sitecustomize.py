"""Shifts the wall clock of this process, and fills its disk, as another process says.

The environment variable `CAMPAIGN_HOOKS` names a file of 16 bytes: the shift of the wall clock in seconds, a double,
and 1.0 where temporary files cannot be written for want of space. `bench.campaign.hooked` writes it. Python's own
`time.time` and `time.time_ns` are shifted; `datetime.now`, which reads the clock in C, is not.
"""

import errno
import mmap
import os
import struct
import tempfile
import time
from typing import Any


def install(path: str) -> None:
    """Replace the functions that read the clock and make temporary files."""
    with open(path, "rb") as file:
        told = mmap.mmap(file.fileno(), 16, access=mmap.ACCESS_READ)
    wall, wall_ns, make = time.time, time.time_ns, tempfile.TemporaryFile

    def shift() -> float:
        return float(struct.unpack_from("d", told, 0)[0])

    def shifted_ns() -> int:
        return wall_ns() + int(shift() * 1e9)

    def temporary(*arguments: Any, **options: Any) -> Any:
        if struct.unpack_from("d", told, 8)[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return make(*arguments, **options)

    time.time = lambda: wall() + shift()
    time.time_ns = shifted_ns
    tempfile.TemporaryFile = temporary


if path := os.environ.get("CAMPAIGN_HOOKS"):
    install(path)
