"""Short training runs that differ in one option each: `python -m bench.nano.training.sweep --minutes 1 --out DIR`.

Every run has a card to itself for the same number of minutes: runs that share a card start together, since start-up is
host work, and then train one after another. The table (sweep.md) compares their scores and losses.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

VARIANTS: dict[str, tuple[str, ...]] = {
    "base": (),
    "heads of 32": ("--shape", "head_dim=32"),
    "text 6 x 192": ("--shape", "text_layers=6", "text_dim=192", "text_ff=608"),
    "vision 9 x 192": ("--shape", "vision_layers=9", "vision_dim=192", "vision_ff=720"),
    "crop 320": ("--shape", "crop=320"),
    "crop 448": ("--shape", "crop=448"),
    "crop 256, up to 4 crops": ("--shape", "crop=256", "max_crops=4"),
    "batch 96": ("--batch", "96"),
    "rate 4e-3": ("--rate", "4e-3"),
    "text loss x 3": ("--weights", "text=4.5"),
    "no dense loss": ("--weights", "patch_class=0", "patch_box=0", "patch_lead=0"),
    "AdamW, rate 8e-4": ("--optimizer", "adamw", "--rate", "8e-4"),
}
"""What each run changes of the defaults."""

_COLUMNS = ("f1", "iou", "none", "decision", "typed", "text", "coord", "size", "path", "patch_class")
_LAST = 3  # lines of the log whose losses are averaged


def folder_of(out: Path, name: str) -> Path:
    return out / name.replace(" ", "-").replace(",", "")


def start(name: str, minutes: float, out: Path, card: int) -> subprocess.Popen[bytes]:
    folder = folder_of(out, name)
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "bench.nano.training", "--minutes", str(minutes), "--out", str(folder)]
    command += ["--turn", str(out / f"card-{card}.lock"), "--eval-minutes", "99", *VARIANTS[name]]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": str(card)}
    with (folder / "output.txt").open("wb") as output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


def read(folder: Path) -> dict[str, Any]:
    """Read how a run ended: its last evaluation, and the losses of its last lines."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    scores = [line for line in lines if "f1" in line]
    if not scores:
        raise ValueError(f"{folder} holds no evaluation: its output.txt says why the run ended")
    losses = [line for line in lines if "decision" in line][-_LAST:]
    names = losses[0].keys() - scores[-1].keys() if losses else set()
    return scores[-1] | {name: sum(line[name] for line in losses) / len(losses) for name in names}


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Lay out results as a Markdown table: rows by F1, columns by `_COLUMNS`."""
    lines = ["| run | scenes | " + " | ".join(_COLUMNS) + " |", "|---|" + "---:|" * (len(_COLUMNS) + 1)]
    for name, result in sorted(results.items(), key=lambda item: -item[1]["f1"]):
        numbers = [f"{result[column]:.3f}" if column in result else "" for column in _COLUMNS]
        lines.append(f"| {name} | {result['scenes']:,} | " + " | ".join(numbers) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.nano.training.sweep", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of training, each")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", nargs="+", default=[*VARIANTS], choices=[*VARIANTS], metavar="RUN")
    parser.add_argument("--cards", type=int, default=max(1, torch.cuda.device_count()))
    options = parser.parse_args(arguments)
    running = {
        name: start(name, options.minutes, options.out, place % options.cards)
        for place, name in enumerate(options.runs)
    }
    results = {}
    for name, process in running.items():
        if process.wait():
            print(f"{name}: exit {process.returncode}", file=sys.stderr)
        else:
            results[name] = read(folder_of(options.out, name))
    text = table(results)
    (options.out / "sweep.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
