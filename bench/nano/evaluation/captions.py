"""Parsing of captions and comparison with the truth; `language.caption` defines their form."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from bench.nano.evaluation.scoring import Counts
from bench.nano.questions.text.language import MAX_ZONES, ZONES
from bench.nano.scenes.objects import index_of

UNKNOWN_KIND = -1
"""Kind of a name that is not in the vocabulary."""
EVERYWHERE = "everywhere"

_OPENING = "a picture of "
# A name may contain " and " ("fork and knife"): parts begin with a number.
_BETWEEN_PARTS = re.compile(r", | and (?=\d)|\. |\.$")
_BETWEEN_ZONES = re.compile(r", | and ")
_SENTENCE = re.compile(rf"\bThe (?P<name>[^.]+?) (?:is|are) (?:(?P<all>{EVERYWHERE})|at the (?P<zones>[^.]+))")


def parse_caption(text: str) -> Counter[int]:
    """Return the counts by class index that a caption of any length lists, "3 bananas, 1 dog and 1 key" for example.

    A part without a number, or with a name that is not in the vocabulary, counts once for `UNKNOWN_KIND`.
    """
    counts: Counter[int] = Counter()
    start = len(_OPENING) if text.lower().startswith(_OPENING) else 0
    sentence = _SENTENCE.search(text)
    listing = text[start : sentence.start() if sentence else len(text)]
    if listing.strip().rstrip(".").lower() == "nothing":
        return counts
    for part in filter(None, map(str.strip, _BETWEEN_PARTS.split(listing))):
        number = re.fullmatch(r"(\d+) (.+)", part)
        index = index_of(number[2]) if number else None
        if number is None or index is None:
            counts[UNKNOWN_KIND] += 1
        else:
            counts[index] += int(number[1])
    return counts


def placed(text: str) -> Iterator[tuple[int, str]]:
    """Return the (class index, zone) pairs of a long caption, as in "The dogs are at the top and left."."""
    for sentence in _SENTENCE.finditer(text):
        index = index_of(sentence["name"])
        zones = [EVERYWHERE] if sentence["all"] else _BETWEEN_ZONES.split(sentence["zones"])
        for zone in filter(None, map(str.strip, zones)):
            yield UNKNOWN_KIND if index is None else index, zone


def compare_counts(answer: Mapping[int, int], truth: Mapping[int, int], *, exact: bool) -> Counts:
    """Compare two listings by kind; with `exact`, a kind is right only if its number is."""
    right = sum(1 for kind, count in answer.items() if kind in truth and (not exact or truth[kind] == count))
    return Counts(right, len(answer) - right, len(truth) - right)


def compare_instances(answer: Mapping[int, int], truth: Mapping[int, int]) -> Counts:
    """Compare two listings by instance: of 3 bananas where there are 2, two are right and one is wrong."""
    right = sum(min(count, truth.get(kind, 0)) for kind, count in answer.items())
    return Counts(right, sum(answer.values()) - right, sum(truth.values()) - right)


def zones_of(centres: Iterable[tuple[float, float]]) -> list[str]:
    """Return the zones of a 3x3 grid that contain a centre (fractions of the image), row by row."""
    places = sorted({tuple(min(2, max(0, int(3 * part))) for part in (cy, cx)) for cx, cy in centres})
    return [ZONES[row][column] for row, column in places]


def is_true(kind: int, zone: str, zones: Mapping[int, list[str]]) -> bool:
    """Whether a pair of `placed` holds, given the zones of the instances of each kind."""
    there = zones.get(kind, [])
    return len(there) > MAX_ZONES if zone == EVERYWHERE else zone in there
