"""Parsing of captions and comparison with the truth; `language.caption` defines their form."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from bench.nano.evaluation.scoring import Counts
from bench.nano.questions.text.language import MAX_ZONES, ZONES
from bench.nano.scenes.objects import index_of

UNKNOWN_KIND = -1
"""Stands for whatever a caption names that is no object of the vocabulary."""
EVERYWHERE = "everywhere"

_OPENING = "a picture of "
# A name may hold " and " ("fork and knife"): parts begin with a number.
_BETWEEN_PARTS = re.compile(r", | and (?=\d)|\. |\.$")
_BETWEEN_ZONES = re.compile(r", | and ")
_SENTENCE = re.compile(rf"\bThe (?P<name>[^.]+?) (?:is|are) (?:(?P<all>{EVERYWHERE})|at the (?P<zones>[^.]+))")


@dataclass(frozen=True)
class Statement:
    """Something that a caption says, and where in the text."""

    kind: int  # Class index, `UNKNOWN_KIND` for what is no object
    value: int | str  # How many there are; or the zone, or `EVERYWHERE`
    start: int  # First character
    end: int  # Behind the last one


def listed(text: str) -> Iterator[Statement]:
    """Read what a caption of any length lists, "3 bananas, 1 dog and 1 key.": kinds and their numbers.

    What names no object, or has no number, is of `UNKNOWN_KIND`.
    """
    start = len(_OPENING) if text.lower().startswith(_OPENING) else 0
    sentence = _SENTENCE.search(text)
    end = sentence.start() if sentence else len(text)
    if text[start:end].strip().rstrip(".").lower() == "nothing":
        return
    for first, last in _split(_BETWEEN_PARTS, text, start, end):
        number = re.fullmatch(r"(\d+) (.+)", text[first:last])
        index = index_of(number[2]) if number else None
        kind, count = (UNKNOWN_KIND, 1) if number is None or index is None else (index, int(number[1]))
        yield Statement(kind, count, first, last)


def placed(text: str) -> Iterator[Statement]:
    """Read where a long caption says that things are, "The dogs are at the top and left.": kinds and zones."""
    for sentence in _SENTENCE.finditer(text):
        index = index_of(sentence["name"])
        kind = UNKNOWN_KIND if index is None else index
        if sentence["all"]:
            yield Statement(kind, EVERYWHERE, *sentence.span("all"))
        else:
            for first, last in _split(_BETWEEN_ZONES, text, *sentence.span("zones")):
                yield Statement(kind, text[first:last], first, last)


def _split(between: re.Pattern[str], text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Return where the parts of a text begin and end, without spaces around them; empty ones are left out."""
    for gap in (*between.finditer(text, start, end), None):
        first, last = start, gap.start() if gap else end
        part = text[first:last]
        if part.strip():
            yield first + len(part) - len(part.lstrip()), last - len(part) + len(part.rstrip())
        start = gap.end() if gap else end


def parse_caption(text: str) -> Counter[int]:
    """Read a caption of any length as counts by class index."""
    counts: Counter[int] = Counter()
    for part in listed(text):
        counts[part.kind] += int(part.value)
    return counts


def compare_counts(answer: Mapping[int, int], truth: Mapping[int, int], *, exact: bool) -> Counts:
    """Compare what a caption lists with what there is, by kind."""
    right = sum(1 for kind, count in answer.items() if kind in truth and (not exact or truth[kind] == count))
    return Counts(right, len(answer) - right, len(truth) - right)


def compare_instances(answer: Mapping[int, int], truth: Mapping[int, int]) -> Counts:
    """Compare the same instance by instance: of 3 bananas where there are 2, two are right and one is wrong."""
    right = sum(min(count, truth.get(kind, 0)) for kind, count in answer.items())
    return Counts(right, sum(answer.values()) - right, sum(truth.values()) - right)


def zones_of(centres: Iterable[tuple[float, float]]) -> list[str]:
    """Name the zones of a 3x3 grid in which centres (fractions of the image) lie, row by row."""
    places = sorted({tuple(min(2, max(0, int(3 * part))) for part in (cy, cx)) for cx, cy in centres})
    return [ZONES[row][column] for row, column in places]


def is_true(statement: Statement, zones: Mapping[int, list[str]]) -> bool:
    """Judge one of `placed` by the zones in which there are instances of each kind."""
    there = zones.get(statement.kind, [])
    return len(there) > MAX_ZONES if statement.value == EVERYWHERE else statement.value in there
