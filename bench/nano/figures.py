"""Adds the records of an evaluation up to figures, and lays them out as text."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from bench.nano.examine import Located, Record
from bench.nano.objects import load_objects
from bench.nano.scene_backgrounds import HELD_OUT_BACKGROUNDS
from bench.nano.scoring import (
    Counts,
    auc,
    average_precision,
    compare_counts,
    count_matches,
    inside,
    iou,
    match_boxes,
    mean,
    pairs_in_order,
    parse_caption,
    ratio,
    same_answer,
)

Figures = dict[str, Any]

SIZE_BUCKETS = ((48.0, "up to 48 px"), (96.0, "48 to 96 px"), (float("inf"), "over 96 px"))
_WORST = 10


def summarize(records: Sequence[Record]) -> Figures:
    """Compute all figures; a skill that was not examined gives none.

    F1, precision and recall count boxes one to one at IoU 0.5, for every scene and kind that is in it. Questions for
    things that are not there are counted apart, except that their boxes are wrong ones for average precision and AUC.
    """
    figures: Figures = {"scenes": len(records)}
    if any(record.detections for record in records):
        figures["detect"] = _detect_figures(records)
        figures["absent"] = _absent_figures(chain.from_iterable(record.detections for record in records))
    if any(record.points for record in records):
        figures["point"] = _point_figures(list(chain.from_iterable(record.points for record in records)))
    if any(record.captions for record in records):
        figures["caption"] = _caption_figures(records)
    if any(record.questions for record in records):
        figures["query"] = _query_figures(records)
    return figures


def _present(questions: Iterable[Located]) -> list[Located]:
    return [question for question in questions if question.truth]


def _detect_figures(records: Sequence[Record]) -> Figures:
    everything = list(chain.from_iterable(record.detections for record in records))
    present = _present(everything)
    counts = _total(present)
    matches = [match_boxes(question.answers, question.truth) for question in present]
    ordered = [pairs_in_order(found, question.truth) for found, question in zip(matches, present, strict=True)]
    return {
        **_rates(counts),
        "mean_iou": mean(match.iou for match in chain.from_iterable(matches)),
        **_ranking(everything),
        "reading_order": ratio(sum(pairs for pairs, _ in ordered), sum(pairs for _, pairs in ordered)),
        "count_exact": mean(len(question.answers) == len(question.truth) for question in present),
        "by_phrase": _grouped(present, lambda question: question.wanted),
        "by_size": _by_size(records),
        "by_background": _by_background(records),
        "worst_objects": _worst_objects(present),
    }


def _total(questions: Iterable[Located]) -> Counts:
    return sum((count_matches(question.answers, question.truth) for question in questions), Counts())


def _rates(counts: Counts) -> Figures:
    return {
        "f1": counts.f1,
        "precision": counts.precision,
        "recall": counts.recall,
        "boxes": counts.right + counts.missed,
    }


def _ranking(questions: Iterable[Located]) -> Figures:
    """Judge the scores: AP50 over all boxes as one list, and AUC of boxes on a thing against boxes on none."""
    scores: list[float] = []
    paired: list[bool] = []
    right: list[float] = []
    wrong: list[float] = []
    total = 0
    for question in questions:
        found = {match.answer for match in match_boxes(question.answers, question.truth)}
        total += len(question.truth)
        for place, (box, score) in enumerate(zip(question.answers, question.scores, strict=True)):
            scores.append(score)
            paired.append(place in found)
            (right if any(iou(box, truth) >= 0.5 for truth in question.truth) else wrong).append(score)
    return {"ap50": average_precision(scores, paired, total), "score_auc": auc(right, wrong)}


def _grouped(questions: Iterable[Located], key: Callable[[Located], str]) -> Figures:
    groups: dict[str, list[Located]] = defaultdict(list)
    for question in questions:
        groups[key(question)].append(question)
    return {name: _rates(_total(group)) for name, group in sorted(groups.items())}


def _by_size(records: Sequence[Record]) -> Figures:
    """Split by the longer side in the picture: of the true box, or of the answer where it is wrong."""
    totals = {name: Counts() for _, name in SIZE_BUCKETS}
    for record in records:
        for question in _present(record.detections):
            matches = match_boxes(question.answers, question.truth)
            found, used = {match.truth for match in matches}, {match.answer for match in matches}
            for place, box in enumerate(question.truth):
                hit = place in found
                totals[_bucket(box, record)] += Counts(right=int(hit), missed=int(not hit))
            for place, box in enumerate(question.answers):
                if place not in used:
                    totals[_bucket(box, record)] += Counts(wrong=1)
    return {name: _rates(counts) for name, counts in totals.items()}


def _bucket(box: Sequence[float], record: Record) -> str:
    side = max((box[2] - box[0]) * record.width, (box[3] - box[1]) * record.height)
    return next(name for limit, name in SIZE_BUCKETS if side < limit)


def _by_background(records: Sequence[Record]) -> Figures:
    totals: dict[str, Counts] = defaultdict(Counts)
    for record in records:
        counts = _total(_present(record.detections))
        held_out = record.background in HELD_OUT_BACKGROUNDS
        totals["all never trained" if held_out else "all of the domain"] += counts
        totals[f"{record.background}{' (never trained)' if held_out else ''}"] += counts
    return {name: _rates(counts) for name, counts in sorted(totals.items())}


def _worst_objects(questions: Iterable[Located]) -> Figures:
    totals: dict[int, Counts] = defaultdict(Counts)
    for question in questions:
        if question.kind is not None:
            totals[question.kind] += count_matches(question.answers, question.truth)
    worst = sorted(totals.items(), key=lambda item: (item[1].recall, -item[1].missed))[:_WORST]
    return {load_objects()[kind].name: _rates(counts) for kind, counts in worst}


def _absent_figures(questions: Iterable[Located]) -> Figures:
    """Share of questions for things that are not there that were answered with none."""
    silent: dict[str, list[bool]] = defaultdict(list)
    for question in questions:
        if not question.truth:
            for name in ("all", question.wanted):
                silent[name].append(not question.answers)
    return {f"{name}_none": mean(silent[name]) for name in ("all", "absent", "unknown")}


def _point_figures(questions: Sequence[Located]) -> Figures:
    present = _present(questions)
    hits = [any(inside(point, box) for box in question.truth) for question in present for point in question.answers]
    exact = [len(question.answers) == len(question.truth) for question in present]
    found = [any(inside(point, box) for point in question.answers) for question in present for box in question.truth]
    return {
        "inside": mean(hits),
        "found": mean(found),
        "count_exact": mean(exact),
        "absent_none": _absent_figures(questions)["all_none"],
    }


def _caption_figures(records: Sequence[Record]) -> Figures:
    kinds, exact, perfect = Counts(), Counts(), []
    for caption in chain.from_iterable(record.captions for record in records):
        listed = parse_caption(caption.text)
        kinds += compare_counts(listed, caption.truth, exact=False)
        exact += compare_counts(listed, caption.truth, exact=True)
        perfect.append(dict(listed) == caption.truth)
    return {
        "kind_precision": kinds.precision,
        "kind_recall": kinds.recall,
        "exact_precision": exact.precision,
        "exact_recall": exact.recall,
        "whole_caption": mean(perfect),
    }


def _query_figures(records: Sequence[Record]) -> Figures:
    right: dict[str, list[bool]] = defaultdict(list)
    for question in chain.from_iterable(record.questions for record in records):
        hit = same_answer(question.answer, question.expected)
        right[question.about].append(hit)
        if question.wanted:
            there = "there" if question.wanted in ("name", "synonym") else question.wanted
            right[f"{question.about}_{there}"].append(hit)
    return {name: mean(hits) for name, hits in sorted(right.items())}


def format_table(figures: Mapping[str, Any]) -> str:
    """Lay figures out as lines of text: single numbers first, then one small table a breakdown."""
    lines = [f"{figures['scenes']} scenes"]
    for skill, values in figures.items():
        if isinstance(values, Mapping):
            singles = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
            lines += ["", skill]
            lines += [f"  {name.replace('_', ' '):<28}{_number(value):>9}" for name, value in singles.items()]
            for name, groups in values.items():
                if isinstance(groups, Mapping):
                    lines += ["", f"  {name.replace('_', ' '):<28}{_row('F1', 'precision', 'recall', 'boxes')}"]
                    lines += [f"    {group:<26}{_row(*rates.values())}" for group, rates in groups.items()]
    return "\n".join(lines)


def _row(*cells: float | str) -> str:
    return "".join(f"{_number(cell):>9}  " for cell in cells).rstrip()


def _number(value: float | str) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
