"""The playground: a static page at `/`, held in memory. It refers to no other host, so it works offline."""

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

STATIC: Final = Path(__file__).parents[1] / "static"

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
}

# blob: is what the user chose; no markup is ever made from text, which trusted types make sure of.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Accept-Encoding",
    "Cache-Control": "no-cache",  # asks each time whether it changed: an upgraded server never meets an old script
}


class Asset:
    """A file of the page, with gzip too where that helps; its weak ETag is the same for both."""

    def __init__(self, path: Path) -> None:
        self.body = path.read_bytes()
        self._packed = None if path.suffix == ".webp" else gzip.compress(self.body, mtime=0)
        self._media_type = _TYPES[path.suffix]
        self._tag = f'"{hashlib.sha256(self.body).hexdigest()[:20]}"'

    async def send(self, request: Request) -> Response:
        headers = {**_HEADERS, "ETag": f"W/{self._tag}"}
        known = (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(","))
        if self._tag in known:
            return Response(status_code=304, headers=headers)
        headers["Content-Type"] = self._media_type
        if self._packed is None or "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(self.body, headers=headers)
        return Response(self._packed, headers={**headers, "Content-Encoding": "gzip"})


@cache
def assets() -> dict[str, Asset]:
    """Return the page's files by their path below `static/`."""
    return {path.relative_to(STATIC).as_posix(): Asset(path) for path in STATIC.rglob("*") if path.suffix in _TYPES}


def routes() -> list[BaseRoute]:
    """Return `/` and `/static/...`, which need no key: they hold no secret, and the API checks keys itself."""
    paths = {"/": assets()["index.html"]} | {f"/static/{name}": asset for name, asset in assets().items()}
    return [Route(path, asset.send, methods=["GET"]) for path, asset in paths.items()]
