import io
import json
import logging
import threading
from typing import Any

import pytest

from photonlite.server.transport import logs
from photonlite.server.transport.logs import LOGGER, json_lines, log
from tests.guard import GUARD


def written(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_the_time_and_the_fields() -> None:
    stream = io.StringIO()
    with json_lines(stream):
        log("request", status=200, ms=1.5, route="/v1/detect")

    [line] = written(stream)
    assert line.pop("time").endswith("+00:00")
    assert line == {"event": "request", "status": 200, "ms": 1.5, "route": "/v1/detect"}


def test_an_error_brings_its_traceback_in_the_same_line() -> None:
    stream = io.StringIO()
    with json_lines(stream):
        LOGGER.error("a request failed", exc_info=RuntimeError("a bug"), extra={"fields": {"id": "r1"}})

    [line] = written(stream)
    assert (line["level"], line["id"]) == ("error", "r1")
    assert "RuntimeError: a bug" in line["exception"]


def test_uvicorn_logs_errors_only() -> None:
    stream = io.StringIO()
    with json_lines(stream):
        logging.getLogger("uvicorn.error").info("GET /v1/query?question=secret")
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("uvicorn.error").error("odd")

    assert [line["event"] for line in written(stream)] == ["odd"]


def test_logging_is_restored_afterwards() -> None:
    before = (LOGGER.level, LOGGER.propagate, list(LOGGER.handlers))
    with json_lines(io.StringIO()):
        pass

    assert (LOGGER.level, LOGGER.propagate, list(LOGGER.handlers)) == before


class Stuck(io.StringIO):
    """A pipe without a reader until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.open = threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        assert self.open.wait(GUARD)
        return super().write(text)


def test_a_stuck_reader_delays_nothing_and_dropped_lines_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "_WAITING", 2)
    stream = Stuck()
    with json_lines(stream):
        log("first")
        assert stream.reached.wait(GUARD)
        for number in range(5):  # two of them fit
            log("later", number=number)
        stream.open.set()

    events = written(stream)
    assert [line["event"] for line in events if line["event"] != "lines dropped"] == ["first", "later", "later"]
    assert sum(line["count"] for line in events if line["event"] == "lines dropped") == 3


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_closed_reader_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with json_lines(Broken()):
        log("request")

    assert capsys.readouterr().err == ""
