"""The id of a request, and the trace that it is part of, from its headers.

Traces follow W3C Trace Context (https://www.w3.org/TR/trace-context/): a `traceparent` that is invalid, or there twice,
is ignored, and `tracestate` with it.
"""

import random
import re
import secrets
from typing import Final, NamedTuple

from starlette.types import Scope

ID_HEADER: Final = "X-Request-ID"

# Short, and without characters that could break a line, a header or a quotation of those who read the log.
_ID: Final = re.compile(rb"[0-9A-Za-z._~:/+=@-]{1,128}")
_PARENT: Final = re.compile(
    rb"(?P<version>(?!ff)[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})"
    rb"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_KEY: Final = r"[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13}"
_MEMBER: Final = re.compile(rf"(?P<key>{_KEY})=[ -+\--<>-~]{{0,255}}[!-+\--<>-~]")
_MOST_MEMBERS: Final = 32
_LONGEST_STATE: Final = 512


class TraceContext(NamedTuple):
    """Where a request comes from: ids in hexadecimal digits, as in the header."""

    trace_id: str
    parent_id: str  # of the caller's span
    flags: int
    state: str  # members of `tracestate`, joined by commas; empty without

    @property
    def fields(self) -> dict[str, str]:
        """Fields of log lines."""
        found = {"trace_id": self.trace_id, "parent_id": self.parent_id}
        return {**found, "tracestate": self.state} if self.state else found


# The system is asked once: each question would release the GIL, and the event loop then waits for a busy engine.
_draw: Final = random.Random(secrets.randbits(256))


def new_id() -> str:
    return f"{_draw.getrandbits(96):024x}"


def sane_id(given: list[bytes]) -> str:
    """Return the id of an `X-Request-ID` header, or a new one where its values are not one sane id."""
    return given[0].decode() if len(given) == 1 and _ID.fullmatch(given[0]) else new_id()


def request_id(scope: Scope) -> str:
    """Return the id of a request: the client's if it is sane; else it is made at the first call."""
    state = scope.setdefault("state", {})
    if "request_id" not in state:
        state["request_id"] = sane_id(_values(scope, b"x-request-id"))
    return str(state["request_id"])


def trace_context(scope: Scope) -> TraceContext | None:
    """Return what `traceparent` and `tracestate` say; None where the first is missing or invalid."""
    given = _values(scope, b"traceparent")
    found = _PARENT.fullmatch(given[0]) if len(given) == 1 else None
    if found is None or (found["version"] == b"00" and found["more"]):
        return None
    state = _read_state(b",".join(_values(scope, b"tracestate")).decode("latin-1"))
    return TraceContext(found["trace"].decode(), found["span"].decode(), int(found["flags"], 16), state)


def log_fields(scope: Scope) -> dict[str, str]:
    """Return the id of a request, and where it has a trace also that one's, for log lines."""
    span = scope.get("state", {}).get("span")
    context = trace_context(scope)
    fields = {} if context is None else context.fields
    if span is not None:
        fields |= span.fields
    return {"id": request_id(scope), **fields}


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope.get("headers") or () if key == name]


def _read_state(text: str) -> str:
    """Return the members of a `tracestate`; an empty text if one is invalid, or there are too many."""
    members = [stripped for member in text.split(",") if (stripped := member.strip(" \t"))]
    found = [_MEMBER.fullmatch(member) for member in members]
    keys = {match["key"] for match in found if match is not None}
    state = ",".join(members)
    return state if len(keys) == len(members) <= _MOST_MEMBERS and len(state) <= _LONGEST_STATE else ""
