"""Headline figures, their targets, and confidence intervals by bootstrap over scenes.

All figures but two follow from sums over scenes, such as right and missed boxes. A resample is a vector of how often
each scene was drawn; one product with the table of all scenes' sums gives the sums of all resamples. The first of them
is the sample itself.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from bench.nano.evaluation.captions import compare_counts, parse_caption
from bench.nano.evaluation.figures import spatial
from bench.nano.evaluation.figures.typed import is_valid
from bench.nano.evaluation.figures.words import GROUPS, is_right
from bench.nano.evaluation.records import SceneRecord
from bench.nano.evaluation.scoring import Counts, average_precisions, count_matches, match_boxes
from bench.nano.scenes.held_out.backgrounds import HELD_OUT_BACKGROUNDS

Column = npt.NDArray[np.float64]
"""One number a resample."""
Sums = Mapping[str, Column]

RESAMPLES, SEED = 1_000, 0
_INTERVAL = (2.5, 97.5)


@dataclass(frozen=True)
class Target:
    name: str  # For the table
    limit: float  # The figure should be at least this
    needs: str  # The sum that is 0 where nothing of the kind was asked; the figure is left out then
    measure: Callable[[Sums], Column]  # Makes the figure of the sums
    at_most: bool = False  # Whether it should be at most `limit` instead
    # Whether resampling tells how far it may be off: not of the least of many small samples, which every resample makes
    # smaller
    interval: bool = True


@dataclass(frozen=True)
class Headline:
    """A row of the table: figure, target, whether it is met, and a 95 % interval where there is one."""

    name: str
    figure: float
    limit: float
    at_most: bool
    met: bool
    interval: tuple[float, float] | None


def _share(part: str, whole: str) -> Callable[[Sums], Column]:
    return lambda sums: _ratio(sums[part], sums[whole])


def _ratio(part: Column, whole: Column) -> Column:
    return np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=whole != 0)


def _f1(name: str) -> Callable[[Sums], Column]:
    return lambda sums: _ratio(
        2 * sums[f"{name} right"], 2 * sums[f"{name} right"] + sums[f"{name} wrong"] + sums[f"{name} missed"]
    )


def _hits(name: str) -> tuple[str, Callable[[Sums], Column]]:
    return f"{name} asked", _share(f"{name} hits", f"{name} asked")


def _loss(better: str, worse: str) -> Callable[[Sums], Column]:
    return lambda sums: _f1(better)(sums) - _f1(worse)(sums)


def _worst_size(sums: Sums) -> Column:
    found = np.stack([_f1(name)(sums) for _, name in spatial.SIZE_BUCKETS])
    return np.asarray(np.fmin.reduce(found))


TARGETS: tuple[Target, ...] = (
    Target("detect, F1 at IoU 0.5", 0.95, "boxes asked", _f1("boxes")),
    Target("detect, mean IoU of the matches", 0.85, "boxes asked", _share("boxes iou", "boxes right")),
    Target("detect, AP50", 0.93, "boxes asked", lambda sums: sums["ap50"]),
    Target("detect, F1 of the worst size", 0.85, "boxes asked", _worst_size),
    Target(
        "detect, recall of the worst object", spatial.LEAST_RECALL, "boxes asked", lambda s: s["worst"], interval=False
    ),
    Target("detect, F1 of names less synonyms'", 0.02, "synonym asked", _loss("name", "synonym"), at_most=True),
    Target(
        "detect, F1 on trained less new backgrounds", 0.03, "held out asked", _loss("trained", "held out"), at_most=True
    ),
    Target("false answers for absent things", 0.02, *_hits("false"), at_most=True),
    Target("point, inside the object", 0.97, "point present", _share("point hits", "point asked")),
    Target("segment, mean IoU of masks", 0.82, *_hits("segment")),
    Target("query, counts exact", 0.93, *_hits("count")),
    Target("query, is there", 0.98, *_hits("existence")),
    Target("query, spatial", 0.90, *_hits("spatial")),
    Target("query, at a reference", 0.95, *_hits("at_reference")),
    Target("caption, recall of objects", 0.92, "caption asked", _share("caption right", "caption asked")),
    Target("caption, precision of objects", 0.95, "caption asked", _share("caption right", "caption stated")),
    Target("typed, fields right", 0.90, *_hits("typed")),
    Target("typed, answers that keep to the schema", 1.0, *_hits("valid")),
)
"""What the checkpoint is judged by. False answers are those of detect, point and segment."""


def compare(records: Sequence[SceneRecord], resamples: int = RESAMPLES) -> list[Headline]:
    """Compare what was examined with `TARGETS`."""
    if not records:
        return []
    rng = np.random.default_rng(SEED)
    drawn = rng.multinomial(len(records), np.full(len(records), 1 / len(records)), size=resamples)
    weights = np.vstack([np.ones(len(records)), drawn])
    sums = _sums(records, weights)
    return [_headline(target, sums) for target in TARGETS if target.needs in sums and sums[target.needs][0] > 0]


def _headline(target: Target, sums: Sums) -> Headline:
    values = target.measure(sums)
    figure = float(values[0])
    met = figure <= target.limit if target.at_most else figure >= target.limit
    spread = values[1:][~np.isnan(values[1:])]
    low, high = (float(edge) for edge in np.percentile(spread, _INTERVAL)) if len(spread) else (math.nan, math.nan)
    return Headline(
        target.name, figure, target.limit, target.at_most, met, (low, high) if target.interval and len(spread) else None
    )


def _sums(records: Sequence[SceneRecord], weights: npt.NDArray[np.float64]) -> dict[str, Column]:
    tallies = [tally(record) for record in records]
    names = sorted(set(chain.from_iterable(tallies)) | {f"{name} {part}" for name in _COUNTED for part in _PARTS})
    table = weights @ np.array([[one[name] for name in names] for one in tallies], np.float64)
    sums = {name: table[:, column] for column, name in enumerate(names)}
    by_object = spatial.counts_by_object(chain.from_iterable(spatial.present(record.detections) for record in records))
    worst = min((counts.recall for counts in by_object.values()), default=math.nan)
    return sums | {"worst": np.full(len(weights), worst), "ap50": _ap50(records, weights)}


_COUNTED = ("boxes", "name", "synonym", "trained", "held out", *(name for _, name in spatial.SIZE_BUCKETS))
_PARTS = ("right", "wrong", "missed", "asked")


def tally(record: SceneRecord) -> dict[str, float]:
    """Sum up one scene: how often each thing was asked, and how often it was right."""
    sums: dict[str, float] = defaultdict(float)
    asked = spatial.present(record.detections)
    _add(sums, "boxes", spatial.total_counts(asked))
    _add(sums, "held out" if record.background in HELD_OUT_BACKGROUNDS else "trained", spatial.total_counts(asked))
    for question in asked:
        _add(sums, question.wanted, count_matches(question.answers, question.truth))
        sums["boxes iou"] += sum(match.iou for match in match_boxes(question.answers, question.truth))
    for name, counts in spatial.counts_by_size(record).items():
        _add(sums, name, counts)
    _add_hits(sums, "false", [bool(one.answers) for one in (*record.detections, *record.points) if not one.truth])
    _add_hits(sums, "false", [bool(outline.polygon) for outline in record.outlines if outline.place is None])
    for question in spatial.present(record.points):
        sums["point present"] += 1
        _add_hits(sums, "point", question.on_object)
    _add_hits(sums, "segment", [outline.iou for outline in record.outlines if outline.place is not None])
    for answer in record.questions:
        names = [answer.about, *(name for name, parts in GROUPS.items() if answer.about in parts)]
        for name in names:
            _add_hits(sums, name, [is_right(answer)])
    for typed in record.typed:
        _add_hits(sums, "typed", [one.right for one in typed.fields])
        _add_hits(sums, "valid", [is_valid(typed)])
    for caption in record.captions:
        counts = compare_counts(parse_caption(caption.text), caption.truth, exact=False)
        sums["caption right"] += counts.right
        sums["caption asked"] += counts.right + counts.missed
        sums["caption stated"] += counts.right + counts.wrong
    return sums


def _add(sums: dict[str, float], name: str, counts: Counts) -> None:
    sums[f"{name} right"] += counts.right
    sums[f"{name} wrong"] += counts.wrong
    sums[f"{name} missed"] += counts.missed
    sums[f"{name} asked"] += counts.right + counts.missed


def _add_hits(sums: dict[str, float], name: str, hits: Sequence[float]) -> None:
    sums[f"{name} hits"] += sum(hits)
    sums[f"{name} asked"] += len(hits)


def _ap50(records: Sequence[SceneRecord], weights: npt.NDArray[np.float64]) -> Column:
    scores: list[float] = []
    paired: list[bool] = []
    scene: list[int] = []
    for number, record in enumerate(records):
        for question in record.detections:
            scores += question.scores
            paired += spatial.paired_answers(question)
            scene += [number] * len(question.answers)
    totals = weights @ np.array([sum(len(one.truth) for one in record.detections) for record in records], np.float64)
    if not totals.all():
        return np.full(len(weights), np.nan)
    return average_precisions(scores, paired, weights[:, np.array(scene, np.intp)], totals)
