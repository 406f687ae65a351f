"""The tier on disk: a folder of what was computed for images, which several processes share and which outlives them.

```
STORE/images/TENANT/KEY.numbers     a line that says what it is, a checksum of the rest, a line of JSON, the numbers
```

A file is written under another name and renamed, so that readers see all of it or nothing. Its header repeats the key:
what is damaged, truncated or foreign is removed and logged, and counts as missing. Folders and files are their owner's
alone: a store that other users can write to is refused, since they could choose what a model sees.
Reading a file sets its time; when the folder is over its limit, those that were not read for longest are removed.

A library such as diskcache was not taken: it puts a database in front of the files, which must be locked for reads
too, and pickles values, which a shared folder must not hold.
"""

import errno
import hashlib
import json
import logging
import math
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from photonlite.errors import SettingsError
from photonlite.image_inputs import HostTensor
from photonlite.images.crops import Allocator
from photonlite.settings import written_by_others

_logger = logging.getLogger("photonlite")

_MAGIC: Final = b"photonlite numbers 2\n"
_SUFFIX: Final = ".numbers"
_TEMPORARY: Final = ".writing"
_NUMBER_BYTES: Final = {"float8_e4m3fn": 1, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
_MOST_HEADER: Final = 4096
_SECTOR: Final = 512  # bytes; disks lose, zero or swap whole ones
_ABANDONED_S: Final = 3600.0  # age of an unfinished file whose writer has died
_KEPT_SHARE: Final = 0.9  # of the limit, once it was exceeded: so that not every write removes a file
_SWEEPS: Final = 16  # while a limit is written once, the folder is looked at so often: other processes write too


class Entry(NamedTuple):
    path: Path
    tenant: str  # the name of its folder, see `tenant_of`
    size: int
    used: float  # when it was last read or written, as `time.time`


class NumberFormat(NamedTuple):
    """What numbers must be to be of use."""

    shape: tuple[int, ...]
    dtype: str


def tenant_of(cache_salt: str) -> str:
    """Return the folder of a cache salt; that of requests without one is "shared"."""
    if not cache_salt:
        return "shared"
    return hashlib.sha256(b"tenant" + cache_salt.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class DiskTier:
    """Numbers in a folder, about `limit` bytes at most; all methods may be called from any thread and process.

    The constructor raises a SettingsError where the folder cannot be written, or other users can write to it; later
    errors are logged. `notes` is a folder for what is known of checkpoints.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._images, self.notes = folder / "images", folder / "checkpoints"
        self._limit = limit
        self._since_sweep = limit  # bytes written since this process looked at the folder: at first it knows nothing
        self._complained = False
        try:
            _make_private(folder)
            check_owned(folder)
            _make_private(self._images, self.notes)
            _write(self._images / f"start-{secrets.token_hex(8)}{_TEMPORARY}", [b"photonlite" * 410]).unlink()
        except OSError as cause:
            raise SettingsError(
                f"the store {str(folder)!r} cannot be written ({cause.strerror or cause}): name a folder that can be, "
                "or leave 'store' out"
            ) from cause

    def has(self, key: str, cache_salt: str) -> bool:
        return self._path(key, cache_salt).exists()

    def read(self, key: str, cache_salt: str, expected: NumberFormat, buffer: Allocator) -> HostTensor | None:
        """Return numbers in memory from `buffer`.

        None where they are missing, damaged or of another format, or cannot be read.
        """
        path = self._path(key, cache_salt)
        try:
            found = _read(path, key, expected, buffer)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain(f"what is stored of an image cannot be read: {error}")
            return None
        except ValueError as error:
            _logger.warning("what is stored of an image is unusable, and removed (%s): %s", error, path)
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):  # the folder may be another user's
            os.utime(path)
        return found

    def write(self, key: str, cache_salt: str, tensor: HostTensor) -> None:
        """Keep numbers; does nothing but log where they cannot be written."""
        path = self._path(key, cache_salt)
        if tensor.dtype not in _NUMBER_BYTES or tensor.data.nbytes > self._limit:
            return
        header = json.dumps({"key": key, "dtype": tensor.dtype, "shape": list(tensor.shape)}).encode() + b"\n"
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(8)}{_TEMPORARY}")
        try:
            _make_private(self._images.parent, self._images, path.parent)
            try:
                _write(temporary, [_MAGIC, _digest(header, tensor.data), header, tensor.data]).replace(path)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            self._complain(
                f"what was computed for an image is not stored: {error}{', make room there' if full else ''}"
            )
            return
        self._complained = False
        self._since_sweep += tensor.data.nbytes
        if self._since_sweep >= self._limit // _SWEEPS:
            self._since_sweep = 0
            prune(self._images.parent, most_bytes=self._limit, left_bytes=int(_KEPT_SHARE * self._limit))

    def measure(self, size: int) -> float:
        """Return the seconds that reading so many bytes takes, checksum included; may raise an OSError."""
        path, data = self._images / f"start-{secrets.token_hex(8)}{_TEMPORARY}", np.zeros(size, np.uint8)
        try:
            with open(path, "xb", opener=_open_private) as file:
                file.write(data.data)
                file.flush()
                os.fsync(file.fileno())
                if hasattr(os, "posix_fadvise"):  # else it would be read from memory, where the system has it
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            begun = time.perf_counter()
            with path.open("rb", buffering=0) as file:
                while file.readinto(data.data):
                    pass
            _digest(b"", data)
            return time.perf_counter() - begun
        finally:
            with suppress(OSError):
                path.unlink()

    def _path(self, key: str, cache_salt: str) -> Path:
        return self._images / tenant_of(cache_salt) / f"{key}{_SUFFIX}"

    def _complain(self, what: str) -> None:
        """Log what goes wrong, once until something is written again: a full disk fails every image."""
        if not self._complained:
            self._complained = True
            _logger.warning("%s", what)


_FOLDERS: Final = ("images", "checkpoints")


def check_owned(folder: Path) -> None:
    """Close this user's store to others; SettingsError if it is another's, holds other files, or a link is in it."""
    for place in (folder, *(folder / name for name in _FOLDERS)):
        with suppress(FileNotFoundError):
            status = place.stat() if place == folder else place.lstat()
            alone = place != folder or set(os.listdir(folder)) <= {*_FOLDERS}
            if alone and _is_owned(status) and status.st_mode & 0o022 == 0o020:
                place.chmod(0o700)  # made with a umask that lets the group write; files of others are not read
            elif reason := _foreign(status):
                raise SettingsError(f"the store {str(folder)!r} is not used: {place} {reason}; name a new folder")


def _foreign(status: os.stat_result) -> str | None:
    """Return why a file or folder of a store is not to be trusted; None if only this process's user writes it."""
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if not _is_owned(status):
        return f"belongs to another user ({status.st_uid})"
    return written_by_others(status)


def _is_owned(status: os.stat_result) -> bool:
    return not stat.S_ISLNK(status.st_mode) and (os.name != "posix" or status.st_uid == os.geteuid())


def _make_private(*folders: Path) -> None:
    for folder in folders:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


def entries(folder: Path, suffix: str = _SUFFIX) -> Iterator[Entry]:
    """Yield what is stored in a folder; files may come and go meanwhile."""
    for tenant in _scan(folder / "images"):
        for file in (tenant, *_scan(tenant)):  # beside the tenants are files that were written to measure the disk
            if file.name.endswith(suffix):
                with suppress(OSError):
                    state = file.stat()
                    yield Entry(Path(file.path), tenant.name, state.st_size, state.st_mtime)


def prune(
    folder: Path,
    *,
    tenant: str | None = None,
    unused_s: float | None = None,
    most_bytes: int | None = None,
    left_bytes: int | None = None,
) -> tuple[int, int]:
    """Remove files; returns the number of files and of bytes.

    Removed are those of a tenant (its folder's name; all unless given) that were not used for so many seconds, and then
    those that were not used for longest until at most `left_bytes` remain, if there are more than `most_bytes`.
    """
    now = time.time()
    for entry in entries(folder, _TEMPORARY):
        if now - entry.used > _ABANDONED_S:
            _remove(entry)
    left: list[Entry] = []
    removed: list[int] = []  # bytes of each file
    for entry in entries(folder):
        if tenant is not None and entry.tenant != tenant:
            continue
        if unused_s is not None and now - entry.used >= unused_s:
            removed += _remove(entry)
        else:
            left.append(entry)
    total = sum(entry.size for entry in left)
    if most_bytes is not None and total > most_bytes:
        left.sort(key=lambda entry: entry.used)
        for entry in left:
            if total <= (most_bytes if left_bytes is None else left_bytes):
                break
            removed += _remove(entry)
            total -= entry.size
    return len(removed), sum(removed)


def _remove(entry: Entry) -> tuple[int, ...]:
    """Remove a file; returns its bytes, or nothing where another process was quicker, or this one may not."""
    try:
        entry.path.unlink()
    except OSError:
        return ()
    return (entry.size,)


def _scan(folder: os.PathLike[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return [one for one in found if not one.is_symlink()]
    except OSError:  # no folder
        return []


def _write(path: Path, parts: list[Any]) -> Path:
    with open(path, "xb", opener=_open_private) as file:
        for part in parts:
            file.write(part)
    return path


def _read(path: Path, key: str, expected: NumberFormat, buffer: Allocator) -> HostTensor:
    """Read a file; ValueError where it is not what its name says."""
    if path.is_symlink() or (path.exists() and not path.is_file()):  # a pipe would be read for ever
        raise ValueError("it is no file")
    with open(path, "rb", buffering=0, opener=_open_private) as file:
        if reason := _foreign(os.fstat(file.fileno())):
            raise ValueError(f"it {reason}")
        begun = file.read(_MOST_HEADER)
        if not begun.startswith(_MAGIC) or begun.count(b"\n") < 3:
            raise ValueError("it is another kind of file")
        magic, digest, header, _ = begun.split(b"\n", 3)
        found = shape, dtype = _read_header(header, key)
        if found != expected:
            raise ValueError(f"it has {dtype} {list(shape)}, not {expected.dtype} {list(expected.shape)}")
        start, size = len(magic) + len(digest) + len(header) + 3, math.prod(shape) * _NUMBER_BYTES[dtype]
        if os.fstat(file.fileno()).st_size != start + size:
            raise ValueError("its length is wrong")
        data = buffer((size,))
        file.seek(start)
        view, filled = data.data, 0
        while filled < size and (count := file.readinto(view[filled:])):
            filled += count
    if filled < size or _digest(header + b"\n", data) != digest + b"\n":
        raise ValueError("its checksum is wrong")
    return HostTensor(data, shape, dtype)


def _digest(header: bytes, data: npt.NDArray[np.uint8]) -> bytes:
    """Return the SHA-256 of a header, of the sums of all 64-bit words of each whole sector, and of the other bytes.

    Sums are several times as quick as the hash, which writes and reads would otherwise spend half of their time on.
    """
    whole = data.size - data.size % _SECTOR
    digest = hashlib.sha256(header)
    digest.update(data[:whole].view("<u8").reshape(-1, _SECTOR // 8).sum(axis=1, dtype="<u8").data)
    digest.update(data[whole:].data)
    return digest.hexdigest().encode() + b"\n"


def _read_header(line: bytes, key: str) -> NumberFormat:
    """Return shape and type; ValueError for a damaged header, or one of another key."""
    try:
        header = json.loads(line)
    except RecursionError as error:
        raise ValueError("its header is damaged") from error
    if not isinstance(header, dict) or header.get("key") != key:
        raise ValueError("it is about something else")
    shape, dtype = header.get("shape"), header.get("dtype")
    whole = isinstance(shape, list) and all(type(one) is int and one > 0 for one in shape)
    if not (whole and isinstance(dtype, str) and dtype in _NUMBER_BYTES):
        raise ValueError("its header is damaged")
    return NumberFormat(tuple(shape or ()), dtype)
