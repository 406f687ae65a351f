"""Messages between a worker process and its parent, and what the worker does at its start.

A message is its length in 8 bytes and its bytes, on a socket that is the worker's standard input.
"""

import os
import signal
import socket
import struct
from collections.abc import Callable
from typing import Final

from photonlite.processes.sandbox import confine

_LENGTH: Final = struct.Struct(">Q")
_CHUNK: Final = 1 << 20


def send_message(connection: socket.socket, data: bytes) -> None:
    """Send a message; raises an OSError where the other side is gone."""
    for part in (_LENGTH.pack(len(data)), data):
        connection.sendall(part)


def receive_message(
    connection: socket.socket, longest: int | None = None, wait: Callable[[], None] = lambda: None
) -> bytes:
    """Receive a message; `wait` is called before each read, and may raise.

    EOFError or ConnectionError if the other side is gone, EOFError for a message of over `longest` bytes.
    """

    def read(size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            wait()
            part = connection.recv(min(_CHUNK, size - len(data)))
            if not part:
                raise EOFError(f"the socket was closed after {len(data)} of {size} bytes")
            data += part
        return bytes(data)

    (size,) = _LENGTH.unpack(read(_LENGTH.size))
    if longest is not None and size > longest:
        raise EOFError(f"a message of {size} bytes is over the limit of {longest}")
    return read(size)


def connect_to_parent() -> socket.socket:
    """Return the socket to the parent; libraries find standard input and output empty."""
    # Signals to the process group are for the parent, which may have answers to finish; its end closes the socket.
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    connection = socket.socket(fileno=os.dup(0))
    for standard in (0, 1):
        _silence(standard)
    return connection


def send_ready(connection: socket.socket) -> None:
    """Report that everything is imported, and what `confine` lacks: from here on nothing is opened or imported."""
    _silence(2)
    send_message(connection, confine().encode())


def _silence(file: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, file)
    os.close(nothing)
