"""The log: lines of JSON for requests, failures and messages of C libraries, without images, prompts and keys."""

import contextlib
import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import IO, Any, Final

from starlette.requests import HTTPConnection
from starlette.types import Scope

from photonlite.server.errors import UNFORESEEN, HttpError
from photonlite.server.transport.trace_context import log_fields

LOGGER = logging.getLogger("photonlite.server")

_WAITING = 10_000  # lines that may wait for a slow reader; further ones are dropped and counted
_GATHERED_S: Final = 0.05  # lines of so many seconds are written at once: each write takes the GIL from busy threads
_LONGEST: Final = 300  # characters of a library's message in the log


def count_tokens(connection: HTTPConnection | None, result: Mapping[str, Any]) -> None:
    """Add the tokens of prompt and answer to those of a connection's request, for its log line, metrics and span."""
    metrics = getattr(result, "metrics", None)
    if connection is not None and metrics is not None:
        state = connection.scope.setdefault("state", {})
        prompt, answer = state.get("tokens", (0, 0))
        state["tokens"] = prompt + metrics.prompt_tokens, answer + metrics.output_tokens
        if "span" in state and connection.scope["type"] == "http":  # a WebSocket's frames would be spans without end
            state["span"].answered(metrics)


def log(event: str, **fields: Any) -> None:
    """Write a line: an event, as a word for programs, with names and numbers that no client could choose freely."""
    LOGGER.info(event, extra={"fields": fields})


def log_unforeseen(event: str, error: BaseException, failure: HttpError, scope: Scope) -> None:
    """Log the traceback of an error that clients see as `internal_error` only."""
    if failure.status == UNFORESEEN:
        LOGGER.error(event, exc_info=error, extra={"fields": log_fields(scope)})


@contextlib.contextmanager
def json_lines(stream: IO[str]) -> Iterator[None]:
    """Write the server's, engine's, uvicorn's and asyncio's logs to a stream; a slow one does not hold up requests."""
    handler = _LineHandler(stream)
    others = ("photonlite", "asyncio")  # asyncio warns when it cannot accept a connection
    levels = {LOGGER: logging.INFO, **dict.fromkeys(map(logging.getLogger, others), logging.WARNING)}
    # uvicorn warns of what clients send, for which there are lines already, and below that logs what was asked.
    levels[logging.getLogger("uvicorn")] = logging.ERROR
    before = {logger: (logger.level, logger.propagate) for logger in levels}
    for logger, level in levels.items():
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, (level, propagate) in before.items():
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
        handler.close()


class _LineHandler(logging.Handler):
    """Hands lines of JSON to a thread that writes them: a full pipe must not block the event loop."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._dropped = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write, name="photonlite-log", daemon=True)
        self._thread.start()

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")}
        line["event"] = record.getMessage().strip()
        if record.levelno > logging.INFO:
            line["level"] = record.levelname.lower()
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = logging.Formatter().formatException(record.exc_info)
        return json.dumps(line)

    def emit(self, record: logging.LogRecord) -> None:
        if self._lines.qsize() < _WAITING:
            self._lines.put(self.format(record))
        else:
            self._dropped += 1

    def close(self) -> None:
        """Write the lines that wait, unless the stream is stuck."""
        self._closing.set()
        self._lines.put(None)
        self._thread.join(timeout=1)
        super().close()

    def _write(self) -> None:
        lines: list[str | None] = []
        while None not in lines:
            lines = [self._lines.get()]
            self._closing.wait(_GATHERED_S)
            lines += [self._lines.get() for _ in range(self._lines.qsize())]  # nobody else takes any
            if dropped := self._dropped:
                self._dropped -= dropped
                lines.append(json.dumps({"event": "lines dropped", "count": dropped}))
            with contextlib.suppress(OSError, ValueError):  # a broken pipe, or a closed stream
                # In one piece: a process that is killed must not leave half a line before the next one's.
                self._stream.write("".join(f"{line}\n" for line in lines if line is not None))
                self._stream.flush()


@contextlib.contextmanager
def library_messages() -> Iterator[None]:
    """Log what C libraries and child processes write to file descriptor 2; `sys.stderr` keeps its destination."""
    try:
        original = os.dup(2)
    except OSError:  # the process was started without a standard error
        yield
        return
    reading, writing = os.pipe()
    with contextlib.suppress(OSError):  # a full disk
        sys.stderr.flush()
    os.dup2(writing, 2)
    os.close(writing)
    before = sys.stderr
    sys.stderr = open(os.dup(original), "w", buffering=1, errors="backslashreplace")  # noqa: SIM115 - closed below
    thread = threading.Thread(target=_log_lines, args=(reading,), name="photonlite-stderr", daemon=True)
    thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.close()
        sys.stderr = before
        os.dup2(original, 2)  # closes the pipe, unless a child process still holds it
        os.close(original)
        thread.join(timeout=1)


def _log_lines(reading: int) -> None:
    with open(reading, "rb") as pipe:
        while line := pipe.readline(4096):
            text = line.decode(errors="backslashreplace").strip()[:_LONGEST]
            if text:
                LOGGER.warning("library message", extra={"fields": {"text": text}})
