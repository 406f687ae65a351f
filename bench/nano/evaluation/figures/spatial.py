"""Figures of answers that are places: boxes, points, outlines."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from bench.nano.evaluation import scoring
from bench.nano.evaluation.records import OutlineRecord, Place, PlaceRecord, SceneRecord
from bench.nano.evaluation.scoring import Counts, Figures
from bench.nano.scenes.held_out.backgrounds import HELD_OUT_BACKGROUNDS
from bench.nano.scenes.objects import load_objects

SIZE_BUCKETS = ((48.0, "24 to 48 px"), (96.0, "48 to 96 px"), (float("inf"), "over 96 px"))
TRAINED, HELD_OUT = "all of the domain", "all never trained"
LEAST_RECALL = 0.75
_WORST = 10


def present(questions: Iterable[PlaceRecord]) -> list[PlaceRecord]:
    """Return the questions about all instances of something that is in the scene."""
    return [question for question in questions if question.truth and question.reference is None]


def slices(record: SceneRecord) -> Iterator[tuple[str, str, Counts]]:
    """Return how a scene's boxes match, one to one at IoU 0.5, as (breakdown, group, counts).

    Sizes are the longer sides in pixels: of the true box, or of the answer where it is wrong.
    """
    held_out = record.background in HELD_OUT_BACKGROUNDS
    for question in present(record.detections):
        matches = scoring.match_boxes(question.answers, question.truth)
        found, paired = {match.truth for match in matches}, {match.answer for match in matches}
        counts = Counts(len(matches), len(question.answers) - len(matches), len(question.truth) - len(matches))
        yield "all", "boxes", counts
        yield "by_phrase", question.wanted, counts
        yield "by_background", HELD_OUT if held_out else TRAINED, counts
        yield "by_background", f"{record.background}{' (never trained)' if held_out else ''}", counts
        if question.kind is not None:
            yield "by_object", load_objects()[question.kind].name, counts
        for place, box in enumerate(question.truth):
            yield "by_size", _bucket(box, record), Counts(right=place in found, missed=place not in found)
        for place, box in enumerate(question.answers):
            if place not in paired:
                yield "by_size", _bucket(box, record), Counts(wrong=1)


def _bucket(box: Place, record: SceneRecord) -> str:
    side = max((box[2] - box[0]) * record.width, (box[3] - box[1]) * record.height)
    return next(name for limit, name in SIZE_BUCKETS if side < limit)


def detect_figures(records: Sequence[SceneRecord]) -> Figures:
    """Judge boxes, one to one at IoU 0.5, for every scene and kind that is in it."""
    everything = list(chain.from_iterable(record.detections for record in records))
    asked = present(everything)
    matches = [scoring.match_boxes(question.answers, question.truth) for question in asked]
    ordered = [scoring.pairs_in_order(found, question.truth) for found, question in zip(matches, asked, strict=True)]
    totals: dict[str, dict[str, Counts]] = defaultdict(lambda: defaultdict(Counts))
    totals["by_size"] = {name: Counts() for _, name in SIZE_BUCKETS}
    for breakdown, group, counts in chain.from_iterable(map(slices, records)):
        totals[breakdown][group] += counts
    objects = totals["by_object"]
    worst = sorted(objects, key=lambda name: (objects[name].recall, -objects[name].missed))[:_WORST]
    return {
        **_rates(totals["all"]["boxes"]),
        "mean_iou": scoring.mean(match.iou for match in chain.from_iterable(matches)),
        **_ranking(everything),
        "reading_order": scoring.ratio(sum(pairs for pairs, _ in ordered), sum(pairs for _, pairs in ordered)),
        "count_exact": scoring.mean(len(question.answers) == len(question.truth) for question in asked),
        "objects_examined": len(objects),
        "objects_below_0.75": sum(counts.recall < LEAST_RECALL for counts in objects.values()),
        "by_phrase": {group: _rates(counts) for group, counts in sorted(totals["by_phrase"].items())},
        "by_size": {group: _rates(counts) for group, counts in totals["by_size"].items()},
        "by_background": {group: _rates(counts) for group, counts in sorted(totals["by_background"].items())},
        "worst_objects": {name: _rates(objects[name]) for name in worst},
    }


def _rates(counts: Counts) -> Figures:
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
    """Whether each answer is matched with a true box."""
    found = {match.answer for match in scoring.match_boxes(question.answers, question.truth)}
    return [place in found for place in range(len(question.answers))]


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
        "inside_box": scoring.mean(
            any(scoring.inside(point, box) for box in one.truth) for one in asked for point in one.answers
        ),
        "found": scoring.mean(hit for question in asked for hit in question.found),
        "count_exact": scoring.mean(len(question.answers) == len(question.truth) for question in asked),
        "absent_none": absent_figures(questions)["all_none"],
    }
    if marked:
        figures["marked_one_right"] = scoring.mean(question.on_object == [True] for question in marked)
    return figures


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
