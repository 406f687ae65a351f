"""The serving process's end of the socket to its supervisor. See `supervisor` for the whole."""

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Mapping, MutableMapping
from types import MappingProxyType
from typing import Final, Self

VARIABLE: Final = "PHOTONLITE_SUPERVISED"
"""Environment variable by which a supervisor tells the process that it starts what `Link` reads."""

REASONS: Final = ("engine_died", "exit", "hung", "signal")
"""Why a serving process has ended."""

NO_RESTARTS: Final[Mapping[str, int]] = MappingProxyType({})

READY: Final = b"ready "
BEAT: Final = b"\n"


class Link:
    """What a supervisor hands to its serving process, and the way to tell it that the process lives.

    When the supervisor ends, however it ends, this process gets SIGTERM and stops in order.

    Attributes:
        listener: The listening socket, which the supervisor keeps open.
        restarts: Number of restarts so far by reason.
        device: Where the first process ran the model; None in the first process.
    """

    def __init__(self, listener: int, link: int, restarts: dict[str, int], device: str | None) -> None:
        for file in (listener, link):
            os.set_inheritable(file, False)  # a worker that held the link would hide this process's end
        self.listener = socket.socket(fileno=listener)
        self.restarts = restarts
        self.device = device
        self._socket = socket.socket(fileno=link)
        threading.Thread(target=self._await_end, name="photonlite-supervisor", daemon=True).start()

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] = os.environ) -> Self | None:
        """Take what the supervisor has left in the environment, for this process alone; None without one."""
        told = environ.pop(VARIABLE, None)
        return None if told is None else cls(**json.loads(told))

    def ready(self, device: str) -> None:
        """Tell the supervisor that requests are answered by a model on this device."""
        self._send(READY + device.encode() + BEAT)

    def beat(self) -> None:
        self._send(BEAT)

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # the supervisor is suspended and reads nothing, or has ended
            self._socket.send(message, getattr(socket, "MSG_DONTWAIT", 0))

    def _await_end(self) -> None:
        with self._socket, contextlib.suppress(OSError):
            while self._socket.recv(1):  # it sends nothing: reading ends with it
                pass
        os.kill(os.getpid(), signal.SIGTERM)


def notify_systemd(state: str) -> None:
    """Tell systemd the state of this service, as sd_notify(3) does; does nothing unless systemd has started it."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        address = "\0" + address[1:] if address.startswith("@") else address  # an abstract name
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), socket.MSG_DONTWAIT, address)
