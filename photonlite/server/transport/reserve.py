"""Connections beyond the limit, kept for probes: whoever looks after a server must see it while clients crowd it."""

from collections.abc import Callable
from typing import Final, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from photonlite.server.errors import HttpError

PROBES: Final = ("/health", "/ready", "/metrics")
"""Paths that are answered however many connections are open."""

_MOST: Final = 16


class Reserved(Protocol):
    """A connection of the reserve."""

    @property
    def is_silent(self) -> bool:
        """Whether nothing has been asked on it yet."""
        ...

    def refuse_crowd(self) -> None:
        """Answer that there are too many connections, and close."""
        ...


class ProbeReserve:
    """The connections that are open beyond the limit, at most 16: the oldest that has asked for nothing gives way."""

    def __init__(self) -> None:
        self._members: dict[Reserved, None] = {}  # in the order in which they came

    def __len__(self) -> int:
        """Connections in the reserve."""
        return len(self._members)

    def join(self, connection: Reserved) -> None:
        """Take a connection in; another one is closed where there are too many, or this one where all have asked."""
        self._members[connection] = None
        if len(self._members) > _MOST:
            silent = next((one for one in self._members if one.is_silent), connection)
            self.leave(silent)
            silent.refuse_crowd()

    def leave(self, connection: Reserved) -> None:
        """Forget a connection, if it is of the reserve."""
        self._members.pop(connection, None)


class ProbesOnly:
    """Answers probes, and refuses everything else: 503.

    Args:
        app: Answers probes.
        refusal: What everything else is told.
        refused: Told of the status and the code of every refusal.
    """

    def __init__(self, app: ASGIApp, refusal: HttpError, refused: Callable[[int, str], None]) -> None:
        self._app = app
        self._refusal = refusal
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope.get("path") in PROBES:
            await self._app(scope, receive, send)
            return
        self._refused(self._refusal.status, self._refusal.code)
        await self._refusal.response()(scope, receive, send)


def too_many(held: int, limit: int, mine: int) -> HttpError:
    """Return what is said on a connection beyond the limit, or beyond its address's share.

    Args:
        held: Connections that are open.
        limit: The most that are taken.
        mine: How many of them are of the same address.
    """
    message = f"{held} of {limit} connections are open, {mine} of them from your address: close some, or try later"
    return HttpError(503, message, code="too_many", headers={"Connection": "close"}, limit="max_connections")
