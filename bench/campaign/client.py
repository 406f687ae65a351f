"""Requests over real sockets, what came back, and whether a client may get that."""

import contextlib
import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

HOST: Final = "127.0.0.1"
PATIENCE_S: Final = 120.0
BROKEN: Final = 0
"""In the place of a status: the connection ended before a whole answer had come."""
JSON: Final = "application/json"


class Ask(NamedTuple):
    """A request."""

    path: str
    body: bytes | None = None
    media_type: str = JSON


class Answer(NamedTuple):
    """What came back: status or `BROKEN`, body, and times in seconds of `time.perf_counter`."""

    status: int
    body: bytes
    begun: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.begun

    @property
    def code(self) -> str:
        """Code of a typed error; empty where the body is none."""
        try:
            error = json.loads(self.body)["error"]
            return str(error["code"]) if error["message"] and error["type"] else ""
        except (ValueError, KeyError, TypeError):
            return ""


def ask(port: int, request: Ask, *, source: str | None = None, timeout: float = PATIENCE_S) -> Answer:
    """Send a request and wait for the answer; `source` is the client's own address on the loopback."""
    origin = None if source is None else (source, 0)
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout, source_address=origin)
    with contextlib.closing(connection):
        return ask_over(connection, request)


def ask_over(connection: http.client.HTTPConnection, request: Ask) -> Answer:
    """Send a request over a connection, which is opened first if it is not, and wait for the answer."""
    begun = time.perf_counter()
    status, body = BROKEN, b""
    with contextlib.suppress(OSError, http.client.HTTPException):
        method = "GET" if request.body is None else "POST"
        headers = {} if request.body is None else {"Content-Type": request.media_type}
        connection.request(method, request.path, request.body, headers)
        with connection.getresponse() as response:
            body = response.read()
            status = response.status
    return Answer(status, body, begun, time.perf_counter())


def fault(answer: Answer) -> str:
    """Return why no client may get this answer, in a line; empty where it may.

    Right are answers, typed errors of the client's own making, and 503 and 504 with their cause.
    """
    if answer.status == BROKEN:
        return f"the connection broke after {answer.seconds:.1f} s"
    if answer.status >= 500 and answer.status not in (503, 504):
        return f"status {answer.status}: {answer.body[:200]!r}"
    if answer.status >= 400 and not answer.code:
        return f"status {answer.status} without a code: {answer.body[:200]!r}"
    return ""


def json_ask(path: str, **fields: Any) -> Ask:
    return Ask(path, json.dumps(fields).encode())


def query(chance: random.Random, most: int = 16, **fields: Any) -> Ask:
    """Return a question of its own without an image; up to `most` tokens answer it."""
    settings = {"max_tokens": chance.randint(1, most)}
    return json_ask("/v1/query", question=f"How many {chance.randrange(10**9)}?", settings=settings, **fields)


def typed_query(chance: random.Random) -> Ask:
    """Return a question whose schema no other has: a worker process must compile it."""
    name = f"n{chance.randrange(10**9)}"
    schema = {"type": "object", "properties": {name: {"enum": [1, 2]}}, "required": [name]}
    return json_ask("/v1/query", question="How many?", schema=schema, settings={"max_tokens": 32})


class Load:
    """Threads that ask one request after the other until the end of a block.

    Args:
        port: Of the server.
        make: Makes the request of a number.
        clients: Threads.
        source: Makes the client's address of a number; None for the ordinary one.
        pause_s: Between an answer and the next request of a thread.

    Attributes:
        answers: Every answer so far.
    """

    def __init__(
        self,
        port: int,
        make: Callable[[int], Ask],
        clients: int = 4,
        *,
        source: Callable[[int], str] | None = None,
        pause_s: float = 0.0,
    ) -> None:
        self.answers: list[Answer] = []
        self._port = port
        self._make = make
        self._source = source
        self._pause_s = pause_s
        self._stopped = threading.Event()
        self._numbers = count()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask no more, and wait for the answers that are due."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def drain(self) -> list[Answer]:
        """Return the answers so far, and forget them."""
        with self._lock:
            taken, self.answers = self.answers, []
        return taken

    def wait(self, found: Callable[[Answer], bool], seconds: float = PATIENCE_S) -> Answer | None:
        """Wait for the first answer of a kind; None where none comes in time."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            for answer in list(self.answers):
                if found(answer):
                    return answer
            time.sleep(0.01)
        return None

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s):
            with self._lock:
                number = next(self._numbers)
            source = None if self._source is None else self._source(number)
            answer = ask(self._port, self._make(number), source=source)
            with self._lock:
                self.answers.append(answer)
            if answer.status == BROKEN:
                self._stopped.wait(0.05)  # a server that stops refuses at once


def statuses(answers: Sequence[Answer]) -> dict[str, int]:
    """Return the number of answers by status."""
    counted: dict[str, int] = {}
    for answer in answers:
        name = str(answer.status or "broken")
        counted[name] = counted.get(name, 0) + 1
    return counted


def chances(seed: int, name: str, first: int) -> Iterator[tuple[int, random.Random]]:
    """Yield the numbers of cases from the first on, each with its own source of chance."""
    number = first
    while True:
        yield number, random.Random(f"{name} {seed} {number}")
        number += 1
