"""Figures of answers that are places: boxes, points, outlines."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from bench.nano.evaluation import scoring
from bench.nano.evaluation.records import OutlineRecord, PlaceRecord, SceneRecord
from bench.nano.scenes.held_out.backgrounds import HELD_OUT_BACKGROUNDS
from bench.nano.scenes.objects import load_objects

Figures = dict[str, Any]

SIZE_BUCKETS = ((48.0, "24 to 48 px"), (96.0, "48 to 96 px"), (float("inf"), "over 96 px"))
TRAINED, HELD_OUT = "all of the domain", "all never trained"
LEAST_RECALL = 0.75
_WORST = 10


def present(questions: Iterable[PlaceRecord]) -> list[PlaceRecord]:
    """Keep the questions about all instances of something that is there."""
    return [question for question in questions if question.truth and question.reference is None]


def total_counts(questions: Iterable[PlaceRecord]) -> scoring.Counts:
    return sum((scoring.count_matches(question.answers, question.truth) for question in questions), scoring.Counts())


def detect_figures(records: Sequence[SceneRecord]) -> Figures:
    """Judge boxes, one to one at IoU 0.5, for every scene and kind that is in it."""
    everything = list(chain.from_iterable(record.detections for record in records))
    asked = present(everything)
    matches = [scoring.match_boxes(question.answers, question.truth) for question in asked]
    ordered = [scoring.pairs_in_order(found, question.truth) for found, question in zip(matches, asked, strict=True)]
    by_object = counts_by_object(asked)
    return {
        **_rates(total_counts(asked)),
        "mean_iou": scoring.mean(match.iou for match in chain.from_iterable(matches)),
        **_ranking(everything),
        "reading_order": scoring.ratio(sum(pairs for pairs, _ in ordered), sum(pairs for _, pairs in ordered)),
        "count_exact": scoring.mean(len(question.answers) == len(question.truth) for question in asked),
        "objects_examined": len(by_object),
        "objects_below_0.75": sum(counts.recall < LEAST_RECALL for counts in by_object.values()),
        "by_phrase": _grouped(asked, lambda question: question.wanted),
        "by_size": _by_size(records),
        "by_background": _by_background(records),
        "worst_objects": _worst_objects(by_object),
    }


def _rates(counts: scoring.Counts) -> Figures:
    return {
        "f1": counts.f1,
        "precision": counts.precision,
        "recall": counts.recall,
        "boxes": counts.right + counts.missed,
    }


def _ranking(questions: Iterable[PlaceRecord]) -> Figures:
    """Judge the scores: AP50 over all boxes as one list, and AUC of boxes on a thing against boxes on none."""
    scores: list[float] = []
    paired: list[bool] = []
    right: list[float] = []
    wrong: list[float] = []
    total = 0
    for question in questions:
        scores += question.scores
        paired += paired_answers(question)
        total += len(question.truth)
        for box, score in zip(question.answers, question.scores, strict=True):
            (right if any(scoring.iou(box, truth) >= 0.5 for truth in question.truth) else wrong).append(score)
    return {"ap50": scoring.average_precision(scores, paired, total), "score_auc": scoring.auc(right, wrong)}


def paired_answers(question: PlaceRecord) -> list[bool]:
    """For each answer: whether it belongs to a true box."""
    found = {match.answer for match in scoring.match_boxes(question.answers, question.truth)}
    return [place in found for place in range(len(question.answers))]


def _grouped(questions: Iterable[PlaceRecord], key: Callable[[PlaceRecord], str]) -> Figures:
    groups: dict[str, list[PlaceRecord]] = defaultdict(list)
    for question in questions:
        groups[key(question)].append(question)
    return {name: _rates(total_counts(group)) for name, group in sorted(groups.items())}


def counts_by_size(record: SceneRecord) -> dict[str, scoring.Counts]:
    """Split a scene's boxes by the longer side in pixels: of the true box, or of the answer where it is wrong."""
    totals = {name: scoring.Counts() for _, name in SIZE_BUCKETS}
    for question in present(record.detections):
        matches = scoring.match_boxes(question.answers, question.truth)
        found, used = {match.truth for match in matches}, {match.answer for match in matches}
        for place, box in enumerate(question.truth):
            hit = place in found
            totals[_bucket(box, record)] += scoring.Counts(right=int(hit), missed=int(not hit))
        for place, box in enumerate(question.answers):
            if place not in used:
                totals[_bucket(box, record)] += scoring.Counts(wrong=1)
    return totals


def _bucket(box: Sequence[float], record: SceneRecord) -> str:
    side = max((box[2] - box[0]) * record.width, (box[3] - box[1]) * record.height)
    return next(name for limit, name in SIZE_BUCKETS if side < limit)


def _by_size(records: Sequence[SceneRecord]) -> Figures:
    totals = {name: scoring.Counts() for _, name in SIZE_BUCKETS}
    for record in records:
        for name, counts in counts_by_size(record).items():
            totals[name] += counts
    return {name: _rates(counts) for name, counts in totals.items()}


def _by_background(records: Sequence[SceneRecord]) -> Figures:
    totals: dict[str, scoring.Counts] = defaultdict(scoring.Counts)
    for record in records:
        counts = total_counts(present(record.detections))
        held_out = record.background in HELD_OUT_BACKGROUNDS
        totals[HELD_OUT if held_out else TRAINED] += counts
        totals[f"{record.background}{' (never trained)' if held_out else ''}"] += counts
    return {name: _rates(counts) for name, counts in sorted(totals.items())}


def counts_by_object(questions: Iterable[PlaceRecord]) -> dict[int, scoring.Counts]:
    totals: dict[int, scoring.Counts] = defaultdict(scoring.Counts)
    for question in questions:
        if question.kind is not None:
            totals[question.kind] += scoring.count_matches(question.answers, question.truth)
    return totals


def _worst_objects(totals: Mapping[int, scoring.Counts]) -> Figures:
    worst = sorted(totals.items(), key=lambda item: (item[1].recall, -item[1].missed))[:_WORST]
    return {load_objects()[kind].name: _rates(counts) for kind, counts in worst}


def absent_figures(questions: Iterable[PlaceRecord]) -> Figures:
    """Share of questions for things that are not there that were answered with none."""
    silent: dict[str, list[bool]] = defaultdict(list)
    for question in questions:
        if not question.truth:
            for name in ("all", question.wanted):
                silent[name].append(not question.answers)
    return {f"{name}_none": scoring.mean(silent[name]) for name in ("all", "absent", "unknown")}


def point_figures(questions: Sequence[PlaceRecord]) -> Figures:
    """Judge points by the visible pixels of what is meant, and by its box."""
    asked = present(questions)
    marked = [question for question in questions if question.reference is not None]
    figures = {
        "inside": scoring.mean(hit for question in asked for hit in question.on_object),
        "inside_box": scoring.mean(in_box(point, question) for question in asked for point in question.answers),
        "found": scoring.mean(hit for question in asked for hit in question.found),
        "count_exact": scoring.mean(len(question.answers) == len(question.truth) for question in asked),
        "absent_none": absent_figures(questions)["all_none"],
    }
    if marked:
        figures["marked_one_right"] = scoring.mean(question.on_object == [True] for question in marked)
    return figures


def in_box(point: Sequence[float], question: PlaceRecord) -> bool:
    return any(scoring.inside(point, box) for box in question.truth)


def segment_figures(outlines: Sequence[OutlineRecord]) -> Figures:
    """Judge outlines by the visible pixels; one that is missing has IoU 0."""
    asked = [outline for outline in outlines if outline.place is not None]
    marked = [outline for outline in asked if outline.reference]
    vertices = [outline.vertices for outline in asked if outline.polygon]
    return {
        "mean_iou": scoring.mean(outline.iou for outline in asked),
        "mean_iou_largest": scoring.mean(outline.iou for outline in asked if not outline.reference),
        "mean_iou_at_point": scoring.mean(outline.iou for outline in marked if len(outline.reference or ()) == 2),
        "mean_iou_at_box": scoring.mean(outline.iou for outline in marked if len(outline.reference or ()) == 4),
        "iou_over_0.5": scoring.mean(outline.iou > 0.5 for outline in asked),
        "drawn": scoring.mean(bool(outline.polygon) for outline in asked),
        "absent_none": scoring.mean(not outline.polygon for outline in outlines if outline.place is None),
        "vertices_min": min(vertices, default=0),
        "vertices_mean": scoring.mean(vertices),
        "vertices_max": max(vertices, default=0),
        "vertices_8_to_32": scoring.mean(8 <= count <= 32 for count in vertices),
    }
