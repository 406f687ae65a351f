"""The socket that the server listens at, taken before a model is loaded, so that a wrong address is told at once."""

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
# A client that has gone without a word is noticed after a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class ListenError(PhotonliteError):
    """The address cannot be listened at."""


def listen(config: ServerConfig) -> socket.socket:
    """Take the address, without answering yet.

    Returns:
        A socket that is bound; connections are refused until the server listens.

    Raises:
        ListenError: Another program has the port, or the address is none of this machine.
    """
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as cause:
        reason = f"the host {config.host!r} is not known here ({cause.strerror})"
        raise ListenError(f"{reason}: give an address of this machine, such as 127.0.0.1") from cause
    family, _, _, _, address = found[0]
    # asyncio turns Nagle's delay off only where the protocol is named: answers would wait 40 ms for it.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _notice_the_silent(listener, config)
        listener.bind(address)
    except OSError as cause:
        listener.close()
        raise ListenError(_why_not(config, cause)) from cause
    return listener


def allow_files(connections: int) -> None:
    """Raise this process's limit of open files, where it may, so that so many connections leave files for the rest.

    Args:
        connections: Open at a time.
    """
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _notice_the_silent(listener: socket.socket, config: ServerConfig) -> None:
    """Have the kernel drop clients whose machine no longer answers; accepted connections inherit it."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {**_KEEPALIVE, "TCP_USER_TIMEOUT": math.ceil(config.send_timeout_s * 1000)}
    for name, value in options.items():
        number = getattr(socket, name, None)
        if number is not None:  # not every system has all of them
            with contextlib.suppress(OSError):
                listener.setsockopt(socket.IPPROTO_TCP, number, value)


def _why_not(config: ServerConfig, cause: OSError) -> str:
    match cause.errno:
        case errno.EADDRINUSE:
            return f"port {config.port} is in use by another program: stop it, or give another one with --port"
        case errno.EACCES:
            return f"port {config.port} is reserved to the system: give one from 1024 on with --port"
        case errno.EADDRNOTAVAIL:
            return f"the host {config.host!r} is not an address of this machine: give 127.0.0.1, or one that it has"
        case _:
            return f"cannot listen at {config.host!r}, port {config.port}: {cause.strerror}"
