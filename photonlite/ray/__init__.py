"""A service over many replicas on Ray Serve: `serve run photonlite.ray:app`. See README.md beside this file."""

from typing import TYPE_CHECKING, Any

from photonlite.cli.run import import_extra

if TYPE_CHECKING:
    from photonlite.ray.service import build

__all__ = ["app", "build"]

_MISSING = "the service needs the package {name!r}, which is not installed: pip install 'photonlite[ray]'"


def __getattr__(name: str) -> Any:
    """Import what needs Ray when it is first used; `app` is built from environment variables each time."""
    if name in ("app", "build"):
        build = import_extra("photonlite.ray.service", _MISSING).build
        return build if name == "build" else build()
    raise AttributeError(f"module 'photonlite.ray' has no attribute {name!r}")
