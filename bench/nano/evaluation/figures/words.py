"""Figures of answers that are words."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain

from bench.nano.evaluation.asking.words import ABOUT, AT_REFERENCE, LENGTHS, SPATIAL
from bench.nano.evaluation.captions import compare_counts, compare_instances, is_true, parse_caption, placed
from bench.nano.evaluation.figures.spatial import number_figures
from bench.nano.evaluation.records import CaptionRecord, QueryRecord, SceneRecord
from bench.nano.evaluation.scoring import Counts, Figures, mean, same_answer

GROUPS: dict[str, tuple[str, ...]] = {"spatial": SPATIAL, "at_reference": AT_REFERENCE}
"""Questions in words that are judged together."""


def caption_figures(records: Sequence[SceneRecord]) -> Figures:
    """Judge captions: kinds named, kinds with the right number, instances, zones; over all lengths and by length."""
    captions = list(chain.from_iterable(record.captions for record in records))
    by_length = {length: [one for one in captions if one.length == length] for length in LENGTHS}
    kinds, exact = (_compare(captions, exact=exact) for exact in (False, True))
    single = sum((compare_instances(parse_caption(one.text), one.truth) for one in captions), Counts())
    return {
        "kind_precision": kinds.precision,
        "kind_recall": kinds.recall,
        "exact_precision": exact.precision,
        "exact_recall": exact.recall,
        "instance_precision": single.precision,
        "instance_recall": single.recall,
        "whole_caption": _whole(captions),
        "zones_true": mean(chain.from_iterable(zones_true(caption) for caption in captions)),
        "by_length": {length: _by_length(chosen) for length, chosen in by_length.items() if chosen},
    }


def _by_length(captions: Sequence[CaptionRecord]) -> Figures:
    kinds = _compare(captions, exact=False)
    return {
        "precision": kinds.precision,
        "recall": kinds.recall,
        "counted": _compare(captions, exact=True).recall,
        "whole": _whole(captions),
    }


def _compare(captions: Iterable[CaptionRecord], *, exact: bool) -> Counts:
    return sum((compare_counts(parse_caption(one.text), one.truth, exact=exact) for one in captions), Counts())


def _whole(captions: Iterable[CaptionRecord]) -> float:
    return mean(dict(parse_caption(one.text)) == one.truth for one in captions)


def zones_true(caption: CaptionRecord) -> list[bool]:
    return [is_true(kind, zone, caption.zones) for kind, zone in placed(caption.text)]


def is_right(question: QueryRecord) -> bool:
    """Judge an answer; a list may have another order."""
    if question.about == "list":
        return parse_caption(question.answer) == parse_caption(question.expected)
    return same_answer(question.answer, question.expected)


def query_figures(questions: Sequence[QueryRecord]) -> Figures:
    """Return the share of right answers by what was asked, and by the case where there are several."""
    figures: Figures = {}
    for about in ABOUT:
        hits: dict[str, list[bool]] = defaultdict(list)
        for question in questions:
            if question.about == about != "reasoning":
                hits[about].append(is_right(question))
                if question.case:
                    case = "there" if question.case in ("name", "synonym") else question.case
                    hits[f"{about}_{case}"].append(is_right(question))
        figures |= {name: mean(hits[name]) for name in sorted(hits)}
    for name, parts in GROUPS.items():
        if any(question.about in parts for question in questions):
            figures[name] = mean(is_right(question) for question in questions if question.about in parts)
    listing = sum((_compare_list(question) for question in questions if question.about == "list"), Counts())
    figures |= {"list_kind_precision": listing.precision, "list_kind_recall": listing.recall}
    counted = [one for one in questions if one.about == "count" and one.expected != "0"]
    if counted:
        figures["count_by_number"] = number_figures((int(one.expected), number_of(one.answer)) for one in counted)
    return figures


def number_of(answer: str) -> int | None:
    number = answer.strip().rstrip(".")
    return int(number) if number.isdecimal() else None


def _compare_list(question: QueryRecord) -> Counts:
    return compare_counts(parse_caption(question.answer), parse_caption(question.expected), exact=False)


def reasoning_figures(questions: Sequence[QueryRecord]) -> Figures:
    """Judge answers with reasoning and the points they are grounded in."""
    there = [question for question in questions if question.case in ("name", "synonym")]
    return {
        "answer_exact": mean(is_right(question) for question in questions),
        "answer_exact_there": mean(is_right(question) for question in there),
        "points_equal_answer": mean(agrees(question) for question in questions),
        "points_inside": mean(hit for question in questions for hit in question.on_object),
    }


def agrees(question: QueryRecord) -> bool:
    """Whether the reasoning points at as many things as the answer says."""
    return same_answer(question.answer, str(len(question.points or ())))
