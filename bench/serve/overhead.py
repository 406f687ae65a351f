"""What HTTP adds: a client's wait less the engine's time, of requests that have the server to themselves."""

import json
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Wait:
    """One request.

    Attributes:
        whole_s: From the first byte sent to the last one received.
        engine_s: From the engine's first sight of the request to its last token, as the answer says.
    """

    whole_s: float
    engine_s: float

    @property
    def overhead_s(self) -> float:
        """Overhead of connection, HTTP, JSON, base64, checks, and the hand-over to the engine and back."""
        return self.whole_s - self.engine_s


class OverheadError(Exception):
    """The server did not answer a request of one client."""


def waits(host: str, port: int, requests: Iterable[bytes], pause_s: float) -> list[Wait]:
    """Send requests one after the other over one connection, with pauses in which the engine comes to rest.

    Args:
        host: Address of the server.
        port: Its port.
        requests: Head and body.
        pause_s: Seconds in front of each.

    Raises:
        OverheadError: One was not answered.
    """
    with socket.create_connection((host, port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return [_wait(connection, request, pause_s) for request in requests]


def _wait(connection: socket.socket, request: bytes, pause_s: float) -> Wait:
    time.sleep(pause_s)
    began = time.perf_counter()
    connection.sendall(request)
    status, body = _receive(connection)
    whole = time.perf_counter() - began
    if status != 200:
        raise OverheadError(f"the server answered a single client with {status}: {body[:300]!r}")
    metrics = json.loads(body)["metrics"]
    return Wait(whole, metrics["time_to_first_token_s"] + metrics["decode_s"])


def _receive(connection: socket.socket) -> tuple[int, bytes]:
    data = b""
    while True:
        received = connection.recv(_CHUNK)
        if not received:
            raise OverheadError("the server closed the connection in the middle of an answer")
        data += received
        head, end, body = data.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.lower().partition(b"content-length:")[2].split()[0]):
            return int(head[9:12]), body
