"""How answers of the shipped checkpoint change with the precision of its weights."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.bubble.report import table
from bench.nano.evaluation.evaluate import Job, cache_bytes, evaluate
from bench.nano.evaluation.figures.summary import summarize
from bench.nano.evaluation.records import SKILLS, SceneRecord, Skill
from bench.nano.evaluation.scoring import Figures
from photonlite.config import VisionWeights, Weights

SHOWN = (
    ("detect, F1 at IoU 0.5", "detect", "f1"),
    ("detect, mean IoU of the matches", "detect", "mean_iou"),
    ("detect, counts exact", "detect", "count_exact"),
    ("point, inside a thing", "point", "inside"),
    ("point, things found", "point", "found"),
    ("point, counts exact", "point", "count_exact"),
    ("caption, kinds right", "caption", "kind_precision"),
    ("query, counts exact", "query", "count"),
    ("query, there or not", "query", "existence"),
    ("typed answers, fields right", "typed", "fields_right"),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """Precisions of the decoder and the image encoder, and by how much F1 may fall with them."""

    weights: Weights
    vision_weights: VisionWeights = "auto"
    aim: float | None = None
    folder: str | None = None  # of a checkpoint that is quantised already; None for the shipped one

    def __str__(self) -> str:
        if self.folder is not None:
            return Path(self.folder).name
        name = "full" if self.weights == "auto" else self.weights
        return name if self.vision_weights == "auto" else f"{name}, encoder {self.vision_weights}"


FULL = Choice("auto")
CHOICES = (
    FULL,
    Choice("int8", aim=0.001),
    Choice("fp8", aim=0.002),
    Choice("int4", aim=0.010),
    Choice("int4", "int8"),
)


def choices_of(folder: str | None) -> tuple[Choice, ...]:
    """Return what is asked: every precision, or only the checkpoint in a folder, whose decoder is int4, beside full."""
    return CHOICES if folder is None else (FULL, Choice("auto", aim=0.010, folder=folder))


def ask(
    choice: Choice, scenes: int, seed: int, device: str, workers: int, skills: Sequence[Skill] = SKILLS
) -> list[SceneRecord]:
    """Ask the shipped checkpoint about held-out scenes with some precisions."""
    precisions: dict[str, Any] = {"weights": choice.weights, "vision_weights": choice.vision_weights}
    job = Job(choice.folder, device, "auto", tuple(skills), kv_cache_bytes=cache_bytes(device, workers), **precisions)
    return evaluate(job, scenes, seed, workers)


def ask_in_parts(
    scenes: int, seed: int, device: str, workers: int, skills: Sequence[Skill], folder: Path | None, part: int,
    choices: Sequence[Choice] = CHOICES,
) -> Iterator[dict[Choice, list[SceneRecord]]]:  # fmt: skip
    """Ask about `part` scenes in every precision, then about as many more; return all answers so far after each part.

    Answers are kept in `folder`, if one is given, where the next run with the same device and skills finds them.
    """
    records: dict[Choice, list[SceneRecord]] = {choice: [] for choice in choices}
    for first in range(seed, seed + scenes, part):
        count = min(part, seed + scenes - first)
        for choice, found in records.items():
            name = "-".join((str(choice).replace(", encoder ", "+"), device, *skills, str(first), str(count)))
            path = None if folder is None else folder / f"{name}.pickle"
            if path is not None and path.exists():
                found += pickle.loads(path.read_bytes())
                continue
            new = ask(choice, count, first, device, workers, skills)
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(pickle.dumps(new))
            found += new
        yield records


def write_answers(records: Mapping[Choice, Sequence[SceneRecord]]) -> str:
    """Write the figures of each precision, and how many answers to `detect` are the same as in full precision."""
    figures = {choice: summarize(found) for choice, found in records.items()}
    rows = [
        [name, *(_cell(one, figures[FULL], skill, key) for one in figures.values())]
        for name, skill, key in SHOWN
        if skill in figures[FULL]
    ]
    same = ["detect, the same to the last bin"]
    same += [f"{_same(found, records[FULL]):.1%}" for found in records.values()]
    aims = [
        f"{choice}: F1 {100 * _loss(figures, choice):.2f} points lower, aim at most {100 * choice.aim:.1f}"
        for choice in figures
        if choice.aim is not None
    ]
    scenes, boxes = len(records[FULL]), figures[FULL]["detect"]["boxes"]
    head = [f"{scenes:,} scenes, {boxes:,} boxes", *map(str, records)]
    return "\n\n".join([table(head, [*rows, same]), "\n".join(f"- {aim}." for aim in aims)])


def _cell(one: Figures, full: Figures, skill: str, key: str) -> str:
    value = one[skill][key]
    return f"{value:.4f}" if one is full else f"{value:.4f} ({value - full[skill][key]:+.4f})"


def _loss(figures: Mapping[Choice, Figures], choice: Choice) -> float:
    return float(figures[FULL]["detect"]["f1"] - figures[choice]["detect"]["f1"])


def _same(found: Sequence[SceneRecord], full: Sequence[SceneRecord]) -> float:
    pairs = [
        pair
        for one, other in zip(found, full, strict=True)
        for pair in zip(one.detections, other.detections, strict=True)
    ]
    return sum(one.answers == other.answers for one, other in pairs) / len(pairs)
