"""Errors as HTTP: a status and `{"error": {"message", "type", "code"}}`."""

import errno
import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from photonlite import errors
from photonlite.config import EngineConfig, ImageLimits
from photonlite.engine.faults import told
from photonlite.server.config import ServerConfig
from photonlite.settings import settings_of

CLIENT_CLOSED = 499  # logged for a client that went away, which does not receive it
UNFORESEEN = 500  # the server's own fault: the details go to the log, not to the client


class HttpError(Exception):
    """A request without its answer; `limit` is the `ServerConfig` setting it met, whose flag the message then names."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        limit: str | None = None,
    ) -> None:
        if limit is not None:
            message = _with_flags(message, [settings_of(ServerConfig)[limit].flag])
        super().__init__(message)
        self.status = status
        self.message = message.encode(errors="backslashreplace").decode()  # it may quote half a character
        self.type = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.code = code or self.type
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, headers=self.headers)


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "unavailable_error",
    504: "timeout_error",
}

# The first class that matches counts: subclasses stand before their bases.
_STATUSES: tuple[tuple[type[BaseException], int, str], ...] = (
    (errors.ImageTooLargeError, 413, "image_too_large"),
    (errors.ImageTimeoutError, 400, "image_too_costly"),
    (errors.ImageBusyError, 429, "images_busy"),
    (errors.ImageUrlError, 422, "remote_image_refused"),
    (errors.ImageFetchError, 422, "image_fetch_failed"),
    (errors.ImageError, 400, "invalid_image"),
    (errors.PromptError, 422, "invalid_prompt"),
    (errors.SettingsError, 422, "invalid_settings"),
    (errors.SpatialRefError, 422, "invalid_spatial_refs"),
    (errors.SchemaError, 400, "unsupported_schema"),
    (errors.GrammarTooLargeError, 422, "grammar_too_large"),
    (errors.GrammarTimeoutError, 504, "grammar_timeout"),
    (errors.GrammarBusyError, 429, "grammar_busy"),
    (errors.GrammarError, 400, "invalid_grammar"),
    (errors.UnknownAdapterError, 404, "adapter_not_found"),
    (errors.InputError, 422, "invalid_input"),
    (errors.UnsupportedSkillError, 422, "unsupported_skill"),
    (errors.NumericalError, 500, "model_failed"),
    (errors.AdapterError, 422, "unusable_adapter"),
    (errors.ModelError, 503, "model_unavailable"),
    (errors.CapacityError, 422, "over_capacity"),
    (errors.MissingDependencyError, 501, "not_installed"),
    (errors.StepError, 500, "engine_failed"),
    (errors.GrammarWorkerError, 503, "grammar_unavailable"),
    (errors.ImageWorkerError, 503, "images_unavailable"),
    (errors.OutOfMemoryError, 503, "out_of_memory"),
    (errors.EngineDiedError, 503, "engine_died"),
    (errors.RequestCancelledError, 503, "cancelled"),
    (errors.TruncatedError, 422, "truncated"),
    (errors.DeadlineError, 504, "deadline_exceeded"),
    (TimeoutError, 504, "deadline_exceeded"),
)
_WORKERS: Final[dict[type[BaseException], str]] = {
    errors.GrammarWorkerError: "compile the grammar",
    errors.ImageWorkerError: "decode the image",
}
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)


def to_http(error: BaseException) -> HttpError:
    """Convert any error to HTTP, a shortage of memory to 503; an unforeseen one is a 500 that does not quote it."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, HTTPException):
        return _of_routing(error)
    if isinstance(error, ClientDisconnect):
        return client_left()
    error = told(error)
    for kind, status, code in _STATUSES:
        if isinstance(error, kind):
            if (work := _WORKERS.get(kind)) is not None:  # its own message is for the log
                return later(f"no process is there to {work}: try again later", code)
            headers = {"Retry-After": "1"} if status == 429 else {}
            return HttpError(status, _with_flags(str(error) or code, _flags_for(error)), code=code, headers=headers)
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        return later("the server has no file descriptors or no disk space left: try again later", "out_of_resources")
    return HttpError(500, "the server failed: its log tells more under this request id", code="internal_error")


def later(message: str, code: str) -> HttpError:
    return HttpError(503, message, code=code, headers={"Retry-After": "1"})


def client_left() -> HttpError:
    return HttpError(CLIENT_CLOSED, "the client went away", code="client_closed")


def _of_routing(error: HTTPException) -> HttpError:
    headers = error.headers or {}
    if error.status_code == 404:
        return HttpError(404, "nothing answers at this path: /docs lists those that do", code="unknown_path")
    if error.status_code == 405:
        message = f"this path does not answer this method: use {headers.get('Allow', 'another one')}"
        return HttpError(405, message, code="method_not_allowed", headers=headers)
    return HttpError(error.status_code, str(error.detail), headers=headers)


_FLAGS: Final = {name: f"--engine {name}=VALUE" for name in settings_of(EngineConfig)} | {
    name: setting.flag for name, setting in settings_of(ImageLimits).items()
}
_LIMITED: Final = (errors.CapacityError, errors.GrammarError, errors.ImageTooLargeError, errors.ImageTimeoutError)
"""Errors whose messages name the setting of their limit."""


def _flags_for(error: BaseException) -> list[str]:
    """Return the flags that raise the limit of an error: the library's errors name its setting."""
    if isinstance(error, errors.DeadlineError | TimeoutError) and not isinstance(error, _LIMITED):
        return [settings_of(ServerConfig)["deadline_s"].flag]
    words = re.findall(r"[a-z_]+", str(error)) if isinstance(error, _LIMITED) else []
    return [flag for name, flag in _FLAGS.items() if name in words]


def _with_flags(message: str, flags: list[str]) -> str:
    return f"{message} (this server's limit: {' or '.join(flags)} changes it)" if flags else message
