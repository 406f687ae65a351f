"""`photonlite models`: the shipped checkpoint, those in the Hub cache, and known ones on the Hub."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from photonlite.cli.output import to_json
from photonlite.errors import ConfigError, ModelNotFoundError
from photonlite.models.loading import KNOWN_MODELS, shipped_checkpoint
from photonlite.models.moondream.config import MoondreamConfig


@dataclass(frozen=True)
class Checkpoint:
    """One line of the list.

    Attributes:
        model: Value of `--model`; None for the shipped checkpoint, which is the default.
        where: "shipped", "local" (in the Hub cache) or "hub" (to be downloaded).
        size_bytes: Size on this machine, if it is there.
        skills: Skills that it was trained for, if its configuration is there.
        path: Its folder, if it is there.
    """

    model: str | None
    where: str
    size_bytes: int | None = None
    skills: tuple[str, ...] = ()
    path: str | None = None


def run_models(options: argparse.Namespace) -> int:
    """Print the checkpoints as a table or as JSON lines; returns the exit code 0."""
    cached = list(_cached())
    here = {checkpoint.model for checkpoint in cached}
    checkpoints = [*_shipped(), *cached, *(Checkpoint(model, "hub") for model in KNOWN_MODELS if model not in here)]
    if options.json:
        for checkpoint in checkpoints:
            print(to_json(asdict(checkpoint)))
    else:
        print(_table([("MODEL", "WHERE", "SIZE", "SKILLS"), *map(_row, checkpoints)]))
    return 0


def _shipped() -> Iterator[Checkpoint]:
    try:
        folder = shipped_checkpoint()
    except ModelNotFoundError:  # a partial checkout
        return
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    yield Checkpoint(None, "shipped", size, _skills(folder), str(folder))


def _cached() -> Iterator[Checkpoint]:
    # A slow import, which no other command needs.
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repository in sorted(repositories, key=lambda repository: repository.repo_id):
        revisions = sorted(repository.revisions, key=lambda revision: revision.last_modified, reverse=True)
        if repository.repo_type == "model" and revisions:
            folder = revisions[0].snapshot_path
            if skills := _skills(folder):
                yield Checkpoint(repository.repo_id, "local", repository.size_on_disk, skills, str(folder))


def _skills(folder: Path) -> tuple[str, ...]:
    """Skills in a checkpoint's configuration; none if photonlite does not run it."""
    try:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        # from_dict takes a configuration without a family for a Moondream 2.
        return MoondreamConfig.from_dict(raw).tokenizer.skills if "model_type" in raw else ()
    except (OSError, ValueError, TypeError, AttributeError, ConfigError):
        return ()


def _row(checkpoint: Checkpoint) -> tuple[str, ...]:
    size = "-" if checkpoint.size_bytes is None else f"{checkpoint.size_bytes / 1e6:,.1f} MB"
    skills = " ".join(checkpoint.skills) or "-"
    return checkpoint.model or "(default)", checkpoint.where, size, skills


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in padded)
