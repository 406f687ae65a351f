"""Headline figures, their targets, and confidence intervals by bootstrap over scenes.

All figures but AP50 follow from sums over scenes, such as right and missed boxes. A resample is a vector of how often
each scene was drawn; its product with the table of all scenes' sums gives the sums of the resample. The first row is
the sample itself.
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
from bench.nano.evaluation.figures.calibration import confidences, groups
from bench.nano.evaluation.figures.typed import is_valid
from bench.nano.evaluation.figures.words import GROUPS, is_right, number_of
from bench.nano.evaluation.records import SceneRecord
from bench.nano.evaluation.scoring import average_precisions, match_boxes, score_bin

Column = npt.NDArray[np.float64]
"""One number for each resample."""
Sums = Mapping[str, Column]
"""Sums by name: those of boxes are "BREAKDOWN GROUP right" (or wrong, missed), others "NAME hits" and "NAME asked"."""

RESAMPLES, SEED = 1_000, 0
_INTERVAL = (2.5, 97.5)


@dataclass(frozen=True)
class Target:
    name: str  # Row of the table
    limit: float  # The figure should be at least this
    needs: str  # The figure is left out where this sum is 0
    measure: Callable[[Sums], Column]  # Computes the figure from the sums
    at_most: bool = False  # Whether `limit` is an upper limit instead
    interval: bool = True  # False for minima over many small samples, which every resample makes smaller


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


def _f1(group: str) -> Callable[[Sums], Column]:
    return lambda sums: _ratio(
        2 * sums[f"{group} right"], 2 * sums[f"{group} right"] + sums[f"{group} wrong"] + sums[f"{group} missed"]
    )


def _hits(name: str) -> tuple[str, Callable[[Sums], Column]]:
    return f"{name} asked", _share(f"{name} hits", f"{name} asked")


def _loss(better: str, worse: str) -> Callable[[Sums], Column]:
    return lambda sums: _f1(better)(sums) - _f1(worse)(sums)


def _least(breakdown: str, measure: Callable[[str], Callable[[Sums], Column]]) -> Callable[[Sums], Column]:
    """Return the least of a figure over the groups of a breakdown."""

    def least(sums: Sums) -> Column:
        groups = [
            name.removesuffix(" asked") for name in sums if name.startswith(breakdown) and name.endswith(" asked")
        ]
        return np.asarray(np.fmin.reduce([measure(group)(sums) for group in groups]))

    return least


def _recall(group: str) -> Callable[[Sums], Column]:
    return _share(f"{group} right", f"{group} asked")


def _calibration(sums: Sums) -> Column:
    """Return the expected calibration error of the worst shift."""
    bins: dict[str, list[str]] = defaultdict(list)
    for name in sums:
        if name.startswith("score ") and name.endswith(" asked"):
            bins[name.split(" bin ")[0]].append(name.removesuffix(" asked"))
    errors = [
        _ratio(
            np.sum([abs(sums[name] - sums[f"{name} right"]) for name in names], axis=0),
            np.sum([sums[f"{name} asked"] for name in names], axis=0),
        )
        for names in bins.values()
    ]
    return np.asarray(np.fmax.reduce(errors))


_ANY = "all boxes asked"
_BACKGROUNDS = f"by_background {spatial.TRAINED}", f"by_background {spatial.HELD_OUT}"
TARGETS: tuple[Target, ...] = (
    Target("detect, F1 at IoU 0.5", 0.95, _ANY, _f1("all boxes")),
    *(
        Target(f"detect, F1 among {crowd} objects", limit, f"by_crowd {crowd} asked", _f1(f"by_crowd {crowd}"))
        for (_, crowd), limit in zip(spatial.CROWDS, (0.99, 0.97, 0.93), strict=True)
    ),
    Target("detect, mean IoU of the matches", 0.85, _ANY, _share("boxes iou", "all boxes right")),
    Target("detect, AP50", 0.93, _ANY, lambda sums: sums["ap50"]),
    Target("detect, F1 of the worst size", 0.93, _ANY, _least("by_size", _f1)),
    Target("detect, recall of the worst object", spatial.LEAST_RECALL, _ANY, _least("by_object", _recall),
           interval=False),
    Target("detect, F1 of names less synonyms'", 0.02, "by_phrase synonym asked",
           _loss("by_phrase name", "by_phrase synonym"), at_most=True),
    Target("detect, F1 on trained less new backgrounds", 0.03, f"{_BACKGROUNDS[1]} asked", _loss(*_BACKGROUNDS),
           at_most=True),
    Target("detect, calibration error of the worst shift", 0.03, "scored", _calibration, at_most=True),
    Target("false answers for absent things", 0.005, *_hits("false"), at_most=True),
    Target("point, inside the object", 0.99, "point present", _share("point hits", "point asked")),
    Target("segment, mean IoU of masks", 0.92, *_hits("segment")),
    Target("segment, outlines with spikes", 0.02, *_hits("spiked"), at_most=True),
    Target("query, counts exact", 0.97, *_hits("count")),
    *(
        Target(f"query, counts {how} among {crowd} objects", limit, *_hits(f"{how} {crowd}"))
        for (_, crowd), how, limit in zip(
            spatial.CROWDS, ("exact", "exact", "within a tenth"), (0.99, 0.93, 0.9), strict=True
        )
    ),
    Target("query, is there", 0.98, *_hits("existence")),
    Target("query, spatial", 0.90, *_hits("spatial")),
    Target("query, at a reference", 0.95, *_hits("at_reference")),
    Target("caption, recall of objects", 0.99, "caption asked", _share("caption right", "caption asked")),
    Target("caption, precision of objects", 0.995, "caption asked", _share("caption right", "caption stated")),
    Target("typed, fields right", 0.97, *_hits("typed")),
    Target("typed, right under names never trained on", 0.95, *_hits("unseen")),
    Target("typed, answers that keep to the schema", 1.0, *_hits("valid")),
)  # fmt: skip
"""What the checkpoint is judged by. False answers are those of detect, point and segment."""


def compare(records: Sequence[SceneRecord], resamples: int = RESAMPLES) -> list[Headline]:
    """Compare what was examined with `TARGETS`."""
    if not records:
        return []
    rng = np.random.default_rng(SEED)
    drawn = rng.multinomial(len(records), np.full(len(records), 1 / len(records)), size=resamples)
    weights = np.vstack([np.ones(len(records)), drawn])
    sums = _sums(records, weights)
    return [_headline(target, sums) for target in TARGETS if sums[target.needs][0] > 0]


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
    names = sorted(set(chain.from_iterable(tallies)))
    table = weights @ np.array([[one[name] for name in names] for one in tallies], np.float64)
    sums: dict[str, Column] = defaultdict(lambda: np.zeros(len(weights)))
    sums |= {name: table[:, column] for column, name in enumerate(names)}
    return sums | {"ap50": _ap50(records, weights)}


def tally(record: SceneRecord) -> dict[str, float]:
    """Sum up one scene: how often each thing was asked, and how often it was right."""
    sums: dict[str, float] = defaultdict(float)
    for breakdown, group, counts in spatial.slices(record):
        sums[f"{breakdown} {group} right"] += counts.right
        sums[f"{breakdown} {group} wrong"] += counts.wrong
        sums[f"{breakdown} {group} missed"] += counts.missed
        sums[f"{breakdown} {group} asked"] += counts.right + counts.missed
    for question in spatial.present(record.detections):
        sums["boxes iou"] += sum(match.iou for match in match_boxes(question.answers, question.truth))
    sums["scored"] += len(confidences(record))
    for group in groups(record):
        for score, right in confidences(record):
            name = f"score {group} bin {score_bin(score)}"
            sums[name] += score
            sums[f"{name} right"] += right
            sums[f"{name} asked"] += 1
    _add_hits(sums, "false", [bool(one.answers) for one in (*record.detections, *record.points) if not one.truth])
    _add_hits(sums, "false", [bool(outline.polygon) for outline in record.outlines if outline.place is None])
    for question in spatial.present(record.points):
        sums["point present"] += 1
        _add_hits(sums, "point", question.on_object)
    outlines = [outline for outline in record.outlines if outline.place is not None]
    _add_hits(sums, "segment", [outline.iou for outline in outlines])
    _add_hits(sums, "spiked", [outline.length > spatial.SPIKED for outline in outlines])
    for answer in record.questions:
        names = [answer.about, *(name for name, parts in GROUPS.items() if answer.about in parts)]
        for name in names:
            _add_hits(sums, name, [is_right(answer)])
        if answer.about == "count" and answer.expected != "0":
            true, told = int(answer.expected), number_of(answer.answer)
            crowd, near = spatial.crowd_of(record.objects), told is not None and spatial.is_near(told, true)
            _add_hits(sums, f"exact {crowd}", [told == true])
            _add_hits(sums, f"within a tenth {crowd}", [near])
    for typed in record.typed:
        for seen, figure in (("trained", "typed"), ("unseen", "unseen")):
            _add_hits(sums, figure, [one.right for one in typed.fields if one.names == seen])
        _add_hits(sums, "valid", [is_valid(typed)])
    for caption in record.captions:
        counts = compare_counts(parse_caption(caption.text), caption.truth, exact=False)
        sums["caption right"] += counts.right
        sums["caption asked"] += counts.right + counts.missed
        sums["caption stated"] += counts.right + counts.wrong
    return sums


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
