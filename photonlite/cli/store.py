"""`photonlite store`: what is kept of images for later questions, by tenant, and making room."""

import argparse
import json
import logging
import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from photonlite.cache.store.disk import DiskTier, Entry, check_owned, entries, prune, tenant_of
from photonlite.config import EngineConfig, EngineSettings
from photonlite.errors import InputError, SettingsError
from photonlite.settings import MIB, settings_of, user_cache, with_home

_logger = logging.getLogger("photonlite")

_SETTING = settings_of(EngineConfig)["store"]
_DAY_S = 86_400.0


def default_store(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the command line's folder, in the user's cache."""
    return user_cache(environ) / "store"


def store_settings(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> EngineSettings:
    """Return the setting of the engine that says where a command keeps embeddings; empty if the environment says it.

    A folder that was named must be usable; without the default one a command works as well.
    """
    if options.no_store or options.store is not None:
        return {"store": options.store}
    if _SETTING.variable in environ:
        return {}
    try:
        folder = default_store(environ)
        DiskTier(folder, limit=1)
    except SettingsError as error:
        _logger.warning("%s; nothing is kept for later questions", error)
        return {"store": None}
    return {"store": str(folder)}


def run_store(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> int:
    """List what a store has, as a table or as JSON lines, or prune it; returns the exit code 0."""
    folder = with_home(options.store or EngineConfig.from_env(environ).store or default_store(environ))
    if options.store and not folder.is_dir():
        raise InputError(f"there is no folder {folder}: give the --store that images were kept in")
    for name in ("unused_days", "left_mb"):
        value = getattr(options, name)
        flag = "--" + name.replace("_", "-")
        if value is not None and not 0 <= value < 1e9:
            raise InputError(f"{flag} is {value:g}: give a number of at least 0")
        if value is not None and not options.prune:
            raise InputError(f"{flag} says what to remove: give --prune as well")
    check_owned(folder)
    if options.prune:
        _prune(folder, options)
        return 0
    tenants: dict[str, list[Entry]] = {}
    for entry in entries(folder):
        if options.tenant is None or entry.tenant in _names_of(options.tenant):
            tenants.setdefault(entry.tenant, []).append(entry)
    rows = [_row(name, found) for name, found in sorted(tenants.items())]
    if options.json:
        for row in rows:
            print(json.dumps(row))
        return 0
    print(f"{folder}: {sum(row['files'] for row in rows):,} files, {_shown(sum(row['bytes'] for row in rows))}")
    for row in rows:
        used = " to ".join(datetime.fromtimestamp(row[end]).strftime("%Y-%m-%d %H:%M") for end in ("oldest", "newest"))
        print(f"  {row['tenant']}  {row['files']:,} files, {_shown(row['bytes'])}, used {used}")
    return 0


def _prune(folder: Path, options: argparse.Namespace) -> None:
    everything = options.unused_days is None and options.left_mb is None
    unused_s = 0.0 if everything else None if options.unused_days is None else options.unused_days * _DAY_S
    left = None if options.left_mb is None else int(options.left_mb * MIB)
    files = size = 0
    for tenant in (None,) if options.tenant is None else _names_of(options.tenant):
        removed = prune(folder, tenant=tenant, unused_s=unused_s, most_bytes=left)
        files, size = files + removed[0], size + removed[1]
    print(json.dumps({"files": files, "bytes": size}) if options.json else f"removed {files:,} files, {_shown(size)}")


def _names_of(tenant: str) -> tuple[str, ...]:
    """Return the folders that a name may mean: its own, or that of a cache salt."""
    return tenant, tenant_of(tenant)


def _row(tenant: str, found: Iterable[Entry]) -> dict[str, Any]:
    sizes, used = zip(*((entry.size, entry.used) for entry in found), strict=True)
    return {"tenant": tenant, "files": len(sizes), "bytes": sum(sizes), "oldest": min(used), "newest": max(used)}


def _shown(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
