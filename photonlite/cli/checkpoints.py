"""`photonlite models`: the shipped checkpoint, those in the Hub cache, known ones on the Hub, and all families."""

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from photonlite.cli.run import to_json
from photonlite.errors import ConfigError, ModelNotFoundError
from photonlite.models.families import FAMILIES, KNOWN_MODELS, family_of
from photonlite.models.loading import shipped_checkpoint


def run_models(options: argparse.Namespace) -> int:
    """Print the checkpoints as a table or as JSON lines; returns the exit code 0."""
    cached = list(_cached())
    here = {checkpoint["model"] for checkpoint in cached}
    checkpoints = [*_shipped(), *cached, *(_checkpoint(model, "hub") for model in KNOWN_MODELS if model not in here)]
    if options.json:
        for checkpoint in checkpoints:
            print(to_json(checkpoint))
        return 0
    print_table(("MODEL", "WHERE", "SIZE", "SKILLS"), map(_row, checkpoints))
    print()
    families = ((one.title, ", ".join(one.model_types), " ".join(one.skills)) for one in FAMILIES.values())
    print_table(("FAMILY", "MODEL_TYPE IN CONFIG.JSON", "SKILLS"), families)
    return 0


def print_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    table = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _checkpoint(
    model: str | None, where: str, size: int | None = None, skills: tuple[str, ...] = (), folder: Path | None = None
) -> dict[str, Any]:
    """Return an entry of the list; `model` is the value of `--model`, None for the shipped checkpoint."""
    path = None if folder is None else str(folder)
    return {"model": model, "where": where, "size_bytes": size, "skills": skills, "path": path}


def _shipped() -> Iterator[dict[str, Any]]:
    try:
        folder = shipped_checkpoint()
    except ModelNotFoundError:  # a partial checkout
        return
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    yield _checkpoint(None, "shipped", size, _skills(folder), folder)


def _cached() -> Iterator[dict[str, Any]]:
    # A slow import, which no other command needs.
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repository in sorted(repositories, key=lambda repository: repository.repo_id):
        if repository.repo_type == "model" and repository.revisions:
            folder = max(repository.revisions, key=lambda revision: revision.last_modified).snapshot_path
            if skills := _skills(folder):
                yield _checkpoint(repository.repo_id, "local", repository.size_on_disk, skills, folder)


def _skills(folder: Path) -> tuple[str, ...]:
    """Return the skills in a checkpoint's configuration; none if photonlite does not run it."""
    try:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if "model_type" not in raw:  # a configuration without a type would be taken for a Moondream 2
            return ()
        family = family_of(raw)
        return family.skills_of(family.read_config(folder, raw))
    except (OSError, ValueError, TypeError, AttributeError, ConfigError):
        return ()


def _row(checkpoint: dict[str, Any]) -> tuple[str, ...]:
    size = "-" if checkpoint["size_bytes"] is None else f"{checkpoint['size_bytes'] / 1e6:,.1f} MB"
    return checkpoint["model"] or "(default)", checkpoint["where"], size, " ".join(checkpoint["skills"]) or "-"
