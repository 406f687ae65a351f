"""The listening socket, bound before a model is loaded, so that a wrong address is reported at once."""

import contextlib
import errno
import math
import socket

from photonlite.errors import PhotonliteError
from photonlite.server.config import ServerConfig

try:
    import resource
except ImportError:  # a system that has no such limits
    resource = None  # type: ignore[assignment]

_OTHER_FILES = 256
# A client that has gone silently is noticed after a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class ListenError(PhotonliteError):
    """The address cannot be listened at."""


def listen(config: ServerConfig) -> socket.socket:
    """Bind a socket to the address; connections are refused until the server listens. Raises `ListenError`."""
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as cause:
        reason = f"the host {config.host!r} is not known here ({cause.strerror})"
        raise ListenError(f"{reason}: give an address of this machine, such as 127.0.0.1") from cause
    family, _, _, _, address = found[0]
    # asyncio disables Nagle's algorithm only where the protocol is named: answers would be delayed by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _set_keepalive(listener, config)
        listener.bind(address)
    except OSError as cause:
        listener.close()
        raise ListenError(_reason(config, cause)) from cause
    return listener


def allow_files(connections: int) -> int:
    """Raise this process's limit of open files for so many connections; returns how many the system allows."""
    if resource is None:
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(1, wanted - _OTHER_FILES)


def _set_keepalive(listener: socket.socket, config: ServerConfig) -> None:
    """Have the kernel drop clients whose machine no longer answers; accepted connections inherit it."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {**_KEEPALIVE, "TCP_USER_TIMEOUT": math.ceil(config.send_timeout_s * 1000)}
    for name, value in options.items():
        if (number := getattr(socket, name, None)) is not None:  # not every system has all of them
            with contextlib.suppress(OSError):
                listener.setsockopt(socket.IPPROTO_TCP, number, value)


def _reason(config: ServerConfig, cause: OSError) -> str:
    match cause.errno:
        case errno.EADDRINUSE:
            return f"port {config.port} is in use by another program: stop it, or give another one with --port"
        case errno.EACCES:
            return f"port {config.port} is reserved to the system: give one from 1024 on with --port"
        case errno.EADDRNOTAVAIL:
            return f"the host {config.host!r} is not an address of this machine: give 127.0.0.1, or one that it has"
        case _:
            return f"cannot listen at {config.host!r}, port {config.port}: {cause.strerror}"
