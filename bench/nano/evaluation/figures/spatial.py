"""Figures of answers that are places: boxes, points, outlines."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from bench.nano.evaluation import scoring
from bench.nano.evaluation.records import Place, PlaceRecord, SceneRecord
from bench.nano.evaluation.scoring import Counts, Figures
from bench.nano.scenes.held_out.backgrounds import HELD_OUT_BACKGROUNDS
from bench.nano.scenes.objects import load_objects

SIZE_BANDS = ((0.08, "4 to 8 %"), (0.16, "8 to 16 %"), (0.32, "16 to 32 %"), (float("inf"), "32 to 90 %"))
"""Longer sides of boxes, as shares of the image's short side."""
CROWDS = ((10, "1 to 10"), (25, "11 to 25"), (50, "26 to 50"))
"""Numbers of objects, of a scene or of one kind."""
NEARLY = 0.1
"""A count is nearly right where it is off by at most this share."""
TRAINED, HELD_OUT = "all of the domain", "all never trained"
LEAST_RECALL = 0.75
SPIKED = 1.3
"""An outline so many times longer than the edge of its object has spikes."""
_WORST = 10


def present(questions: Iterable[PlaceRecord]) -> list[PlaceRecord]:
    """Return the questions about all instances of something that is in the scene."""
    return [question for question in questions if question.truth and question.reference is None]


def slices(record: SceneRecord) -> Iterator[tuple[str, str, Counts]]:
    """Return how a scene's boxes match, one to one at IoU 0.5, as (breakdown, group, counts).

    Sizes are those of the true box, or of the answer where it is wrong.
    """
    held_out = record.background in HELD_OUT_BACKGROUNDS
    crowd = crowd_of(record.objects)
    for question in present(record.detections):
        matches = scoring.match_boxes(question.answers, question.truth)
        found, paired = {match.truth for match in matches}, {match.answer for match in matches}
        counts = Counts(len(matches), len(question.answers) - len(matches), len(question.truth) - len(matches))
        yield "all", "boxes", counts
        yield "by_crowd", crowd, counts
        yield "by_arrangement", record.arrangement, counts
        yield "by_rotation", "any angle" if record.turned else "up to 25 degrees", counts
        yield "by_clutter", "words and drawings" if record.cluttered else "none", counts
        yield "by_phrase", question.wanted, counts
        yield "by_background", HELD_OUT if held_out else TRAINED, counts
        yield "by_background", f"{record.background}{' (never trained)' if held_out else ''}", counts
        if question.kind is not None:
            yield "by_object", load_objects()[question.kind].name, counts
        for place, box in enumerate(question.truth):
            yield "by_size", _band(box, record), Counts(right=place in found, missed=place not in found)
        for place, box in enumerate(question.answers):
            if place not in paired:
                yield "by_size", _band(box, record), Counts(wrong=1)


def is_near(told: int, true: int) -> bool:
    return abs(true - told) <= NEARLY * true


def crowd_of(count: int) -> str:
    return next(name for most, name in CROWDS if count <= most)


def _band(box: Place, record: SceneRecord) -> str:
    side = max((box[2] - box[0]) * record.width, (box[3] - box[1]) * record.height)
    return next(name for limit, name in SIZE_BANDS if side < limit * min(record.width, record.height))


def detect_figures(records: Sequence[SceneRecord]) -> Figures:
    """Judge boxes, one to one at IoU 0.5, for every scene and kind that is in it."""
    everything = list(chain.from_iterable(record.detections for record in records))
    asked = present(everything)
    matches = [scoring.match_boxes(question.answers, question.truth) for question in asked]
    ordered = [scoring.pairs_in_order(found, question.truth) for found, question in zip(matches, asked, strict=True)]
    totals: dict[str, dict[str, Counts]] = defaultdict(lambda: defaultdict(Counts))
    totals["by_size"] = {name: Counts() for _, name in SIZE_BANDS}
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
        "by_number": number_figures((len(one.truth), len(one.answers)) for one in asked),
        "by_size": {group: _rates(counts) for group, counts in totals["by_size"].items()},
        **{
            breakdown: {group: _rates(counts) for group, counts in sorted(totals[breakdown].items())}
            for breakdown in ("by_crowd", "by_arrangement", "by_rotation", "by_clutter", "by_phrase", "by_background")
        },
        "worst_objects": {name: _rates(objects[name]) for name in worst},
    }


def number_figures(counts: Iterable[tuple[int, int | None]]) -> Figures:
    """Judge counts of one kind, pairs of the truth and the answer, by how many there are: shares of those that are
    exact, and of those that are nearly right.
    """
    groups: dict[str, list[tuple[int, int | None]]] = {name: [] for _, name in CROWDS}
    for true, told in counts:
        groups[crowd_of(true)].append((true, told))
    return {
        name: {
            "exact": scoring.mean(true == told for true, told in pairs),
            "nearly": scoring.mean(told is not None and is_near(told, true) for true, told in pairs),
            "asked": len(pairs),
        }
        for name, pairs in groups.items()
        if pairs
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


def segment_figures(records: Sequence[SceneRecord]) -> Figures:
    """Judge outlines by the whole thing in its visible box, without holes; one that is missing has IoU 0."""
    outlines = [outline for record in records for outline in record.outlines]
    turned = [outline for record in records if record.turned for outline in record.outlines]
    asked = [outline for outline in outlines if outline.place is not None]
    marked = [outline for outline in asked if outline.reference]
    vertices = [outline.vertices for outline in asked if outline.polygon]
    return {
        "mean_iou": scoring.mean(outline.iou for outline in asked),
        "mean_iou_largest": scoring.mean(outline.iou for outline in asked if not outline.reference),
        "mean_iou_turned": scoring.mean(outline.iou for outline in turned if outline.place is not None),
        "mean_iou_at_point": scoring.mean(outline.iou for outline in marked if len(outline.reference or ()) == 2),
        "mean_iou_at_box": scoring.mean(outline.iou for outline in marked if len(outline.reference or ()) == 4),
        "iou_over_0.5": scoring.mean(outline.iou > 0.5 for outline in asked),
        "smooth": scoring.mean(outline.length <= SPIKED for outline in asked if outline.polygon),
        "drawn": scoring.mean(bool(outline.polygon) for outline in asked),
        "absent_none": scoring.mean(not outline.polygon for outline in outlines if outline.place is None),
        "vertices_min": min(vertices, default=0),
        "vertices_mean": scoring.mean(vertices),
        "vertices_max": max(vertices, default=0),
        "vertices_8_to_32": scoring.mean(8 <= count <= 32 for count in vertices),
    }
