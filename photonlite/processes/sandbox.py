"""What a worker gives up once everything is imported: code that takes it over with a hostile input gains little.

Limits of 0 forbid to open files and sockets, to dump core and, but for root, to fork. On Linux a worker also loses its
capabilities, gains none by running a program (`no_new_privs`), and ends with the thread that started it. Landlock
(Linux 5.13) forbids to run programs and to rename, remove and truncate files; from 6.12 on, to signal other processes.
"""

import ctypes
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from typing import Final

_SET_DEATH_SIGNAL, _NO_NEW_PRIVILEGES = 1, 38  # options of prctl(2)
_CAPABILITIES: Final = struct.pack("Ii", 0x20080522, 0)  # version 3 of capset(2), of this process
_CREATE_RULES, _RESTRICT = 444, 446  # landlock(7): these numbers are those of all architectures
# How many rights of files each version of Landlock knows; later ones know as many as the last.
_FILE_RIGHTS: Final = (0, 13, 14, 15, 15, 16)


def confine() -> str:
    """Drop rights that no job of a worker needs; return the names of measures this system lacks, or "".

    On Linux that concerns the calling thread: there must be no other.
    """
    missing = "Landlock, no_new_privs, a death signal"
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        steps: dict[str, Callable[[], int]] = {
            "no_new_privs": lambda: libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0),
            "Landlock": lambda: _forbid_files(libc),
            "loss of capabilities": lambda: libc.capset(_CAPABILITIES, bytes(24)),
            "a death signal": lambda: libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL),  # last: losing rights clears it
        }
        failed = (name for name, step in steps.items() if step() < 0)
        missing = ", ".join(f"{name} ({os.strerror(ctypes.get_errno())})" for name in failed)
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE):
        resource.setrlimit(limit, (0, 0))
    return missing


def _forbid_files(libc: ctypes.CDLL) -> int:
    """Forbid everything that this kernel's Landlock knows, without exception; return below 0 if it cannot."""
    version = int(libc.syscall(_CREATE_RULES, None, 0, 1))
    if version < 1:
        return -1
    files = (1 << _FILE_RIGHTS[min(version, len(_FILE_RIGHTS) - 1)]) - 1
    network, others = 3 * (version >= 4), 3 * (version >= 6)  # TCP; signals and abstract sockets
    rules = libc.syscall(_CREATE_RULES, struct.pack("QQQ", files, network, others), 24, 0)
    outcome = int(libc.syscall(_RESTRICT, rules, 0))
    os.close(rules)
    return outcome
