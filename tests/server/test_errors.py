import errno
import json

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from photonlite import errors
from photonlite.errors import PhotonliteError
from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError, to_http
from photonlite.settings import settings_of


def every_error(base: type[PhotonliteError] = PhotonliteError) -> list[type[PhotonliteError]]:
    return [kind for child in base.__subclasses__() for kind in (child, *every_error(child))]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.ImageTooLargeError("x"), 413),
        (errors.ImageDecodeError("x"), 400),
        (errors.PromptError("x"), 422),
        (errors.SettingsError("x"), 422),
        (errors.SpatialRefError("x"), 422),
        (errors.UnsupportedSkillError("x"), 422),
        (errors.CapacityError("x"), 422),
        (errors.ModelError("x"), 503),
        (errors.EngineDiedError("x"), 503),
        (errors.RequestCancelledError("x"), 503),
        (errors.StepError("x"), 500),
        (errors.NumericalError("x"), 500),
        (errors.DeadlineError("x"), 504),
        (TimeoutError(), 504),
        (MemoryError("secret"), 503),
        (OSError(errno.ENOMEM, "secret"), 503),
        (OSError(errno.EMFILE, "secret"), 503),
        (OSError(errno.ENOSPC, "secret"), 503),
        (OSError(errno.EIO, "secret"), 500),
        (errors.ImageWorkerError("secret"), 503),
        (errors.GrammarWorkerError("secret"), 503),
        (HTTPException(404), 404),
        (HTTPException(405, headers={"Allow": "POST"}), 405),
        (ClientDisconnect(), 499),
        (json.JSONDecodeError("x", "y", 0), 500),  # a body's own was answered by who reads bodies
        (RecursionError(), 500),
        (KeyError("secret"), 500),
    ],
)
def test_every_error_has_its_status(error: BaseException, status: int) -> None:
    http = to_http(error)
    assert http.status == status
    assert set(http.body["error"]) == {"message", "type", "code"}
    assert all(http.body["error"].values())
    assert "secret" not in http.message


def test_messages_and_headers_are_passed_on() -> None:
    assert to_http(errors.PromptError("the question is empty")).message == "the question is empty"
    assert to_http(HTTPException(405, headers={"Allow": "POST"})).headers == {"Allow": "POST"}
    own = HttpError(429, "later", headers={"Retry-After": "3"})
    assert to_http(own) is own


def test_a_message_that_quotes_half_a_character_can_be_sent() -> None:
    assert b"at \\\\ud800" in HttpError(400, "at \ud800").response().body


def test_no_error_of_photonlite_is_unforeseen() -> None:
    own = [kind for kind in every_error() if kind.__module__ == "photonlite.errors"]
    needless = (errors.EngineError, errors.MissingDependencyError)  # a base, and what only a start can meet
    unforeseen = [kind for kind in own if to_http(kind("x")).code == "internal_error" and kind not in needless]
    assert own
    assert unforeseen == []


def test_errors_of_routing_say_what_exists() -> None:
    assert "/docs" in to_http(HTTPException(404)).message
    refused = to_http(HTTPException(405, headers={"Allow": "POST"}))
    assert "POST" in refused.message
    assert refused.headers == {"Allow": "POST"}
    assert to_http(HTTPException(418, "a teapot")).message == "a teapot"


@pytest.mark.parametrize("name", settings_of(ServerConfig))
def test_an_error_about_a_limit_names_the_flag_that_raises_it(name: str) -> None:
    failure = HttpError(413, "it is too much", limit=name)

    assert failure.message == f"it is too much (this server's limit: {settings_of(ServerConfig)[name].flag} changes it)"


@pytest.mark.parametrize(
    ("error", "flag"),
    [
        (errors.ImageTooLargeError("shrink it, or raise max_pixels (PHOTONLITE_MAX_PIXELS)"), "--max-pixels"),
        (errors.ImageTooLargeError("compress it, or raise max_bytes (PHOTONLITE_MAX_BYTES)"), "--max-image-mb"),
        (errors.ImageTimeoutError("or raise decode_cpu_s (PHOTONLITE_DECODE_CPU_S)"), "--decode-cpu-seconds"),
        (errors.GrammarTimeoutError("raise grammar_limit_s of the engine"), "--engine grammar_limit_s=VALUE"),
        (errors.GrammarBusyError("raise grammar_workers of the engine"), "--engine grammar_workers=VALUE"),
        (errors.CapacityError("or raise kv_cache_bytes"), "--engine kv_cache_bytes=VALUE"),
        (errors.DeadlineError("too late"), "--deadline-seconds"),
        (TimeoutError("too late"), "--deadline-seconds"),
    ],
)
def test_errors_of_the_library_name_the_flag_of_the_server(error: Exception, flag: str) -> None:
    assert to_http(error).message == f"{error} (this server's limit: {flag} changes it)"


@pytest.mark.parametrize("kind", [errors.PromptError, errors.StepError, errors.ModelError])
def test_errors_about_no_limit_name_no_flag(kind: type[Exception]) -> None:
    assert to_http(kind("depth and compile")).message == "depth and compile"
