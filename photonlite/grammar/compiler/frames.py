"""Messages over a pipe between processes that trust each other: the length in 8 bytes, then a pickle.

Descriptors are read and written as they are: a buffer would have a lock, which a fork may copy while it is held.
"""

import os
import pickle
import struct

_HEAD = struct.Struct(">Q")
_CHUNK = 1 << 20


def encode(message: object) -> bytes:
    """Turn a message into bytes."""
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def decode(data: bytes) -> object:
    """Turn bytes back into a message; they must come from one's own program: a pickle may run anything."""
    return pickle.loads(data)


def write_frame(pipe: int, data: bytes) -> None:
    """Write bytes to a descriptor, all of them.

    Raises:
        OSError: Nobody reads them, as a rule a BrokenPipeError.
    """
    for part in (_HEAD.pack(len(data)), data):
        left = memoryview(part)
        while left:
            left = left[os.write(pipe, left) :]


def read_frame(pipe: int) -> bytes:
    """Read from a descriptor what `write_frame` was given.

    Raises:
        EOFError: The other side has closed the pipe, in the middle of a frame perhaps.
    """
    (size,) = _HEAD.unpack(_read(pipe, _HEAD.size))
    return _read(pipe, size)


def _read(pipe: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = os.read(pipe, min(_CHUNK, size - len(data)))
        if not part:
            raise EOFError(f"the pipe was closed after {len(data)} of {size} bytes")
        data += part
    return bytes(data)
