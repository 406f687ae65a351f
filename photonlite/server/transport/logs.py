"""What the server writes down: one line of JSON for each request, and for what goes wrong in between.

```json
{"time": "2026-11-22T10:15:00.123+00:00", "event": "request", "id": "...", "method": "POST", "route": "/v1/detect",
 "status": 200, "ms": 41.7, "bytes_in": 21044, "bytes_out": 512, "tokens_in": 741, "tokens_out": 12,
 "client": "203.0.113.7", "key": "1f0c9a2b"}
```

Neither images nor prompts nor keys are ever part of a line: of a request it holds the names and numbers above.
"""

import contextlib
import json
import logging
import queue
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import IO, Any

LOGGER = logging.getLogger("photonlite.server")

_WAITING = 10_000
"""Lines that may wait for a slow reader; what comes on top is dropped and counted."""


def log(event: str, **fields: Any) -> None:
    """Write a line.

    Args:
        event: What happened, as a word for programs.
        **fields: Names and numbers; nothing that a client could have chosen freely.
    """
    LOGGER.info(event, extra={"fields": fields})


@contextlib.contextmanager
def json_lines(stream: IO[str]) -> Iterator[None]:
    """Write the lines of the server, of the engine, of uvicorn and of asyncio to a stream while a block runs.

    Args:
        stream: Where; it may be slow or broken without holding up any request.
    """
    handler = _LineHandler(stream)
    # uvicorn's chatter has whole paths in it, and so what was asked.
    others = ("photonlite", "uvicorn", "asyncio")  # asyncio's tell when no connection can be accepted
    levels = {LOGGER: logging.INFO, **dict.fromkeys(map(logging.getLogger, others), logging.WARNING)}
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


class JsonFormatter(logging.Formatter):
    """One line of JSON for each record."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        line: dict[str, Any] = {"time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")}
        line["event"] = record.getMessage().strip()
        if record.levelno > logging.INFO:
            line["level"] = record.levelname.lower()
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _LineHandler(logging.Handler):
    """Hands lines to a thread that writes them: a full pipe must not stop the event loop."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(_WAITING)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="photonlite-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write what waits, unless nobody reads it."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=1)
            self._thread.join(timeout=1)
        super().close()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            with contextlib.suppress(OSError, ValueError):  # the reader went away, or the stream is closed
                print(line, file=self._stream, flush=self._lines.empty())
                if dropped := self._dropped:
                    self._dropped -= dropped
                    print(json.dumps({"event": "lines dropped", "count": dropped}), file=self._stream, flush=True)
