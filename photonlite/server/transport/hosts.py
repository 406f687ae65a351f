"""Middleware that answers to the server's own names alone.

A page may have its own host's name lead to 127.0.0.1 (DNS rebinding): the browser then takes the server of the user's
machine for the page's own, and neither the check of origins nor CORS holds the page up. What gives it away is the Host
header, in which the browser writes the page's name.
"""

import ipaddress
import re
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError

_HOST: Final = re.compile(r"(\[[0-9a-f:.%]+\]|[^\[\]:]*)(?::\d*)?", re.I)


class HostCheck:
    """Refuses requests and WebSockets whose Host is not the server's: 421.

    Loopback's names and addresses, the address at which the server listens and `allow_hosts` are its own. Only a server
    that a browser reaches where others do not is in danger: one without keys on loopback, or one whose owner says so by
    naming `allow_hosts`. Where there are keys, a page would have to know one.

    Args:
        app: What is inside.
        config: Tells the names.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._checks = (config.is_local and not config.api_keys) or bool(config.allow_hosts)
        self._names = {name.lower() for name in (config.host, *config.allow_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request or WebSocket on.

        Raises:
            HttpError: 421, it is for another host.
        """
        if self._checks and scope["type"] in ("http", "websocket"):
            host = Headers(scope=scope).get("host")
            # HTTP/1.0 knows no Host, and no browser speaks it.
            if host is not None and not self._is_own(host, scope):
                message = f"this server does not answer as {host[:100]!r}: ask 127.0.0.1, or start it with --allow-host"
                raise HttpError(421, message, code="unknown_host")
        await self._app(scope, receive, send)

    def _is_own(self, host: str, scope: Scope) -> bool:
        parts = _HOST.fullmatch(host.strip())
        if parts is None:
            return False
        name = parts[1].strip("[]").lower().removesuffix(".")
        here = scope.get("server")  # the connection's own end
        if name == "localhost" or name in self._names or (here is not None and name == here[0]):
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False
