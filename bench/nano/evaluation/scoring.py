"""Comparison of answers with the truth: pure functions."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.nano.questions.text.language import reading_order

Box = Sequence[float]
"""x_min, y_min, x_max, y_max."""
Figures = dict[str, Any]
"""Figures by name; breakdowns are nested, group by group."""


@dataclass(frozen=True)
class Match:
    """An answer paired with a true box: their places in the two lists, and their overlap."""

    answer: int
    truth: int
    iou: float


@dataclass(frozen=True)
class Counts:
    """Numbers of right answers, wrong answers, and missed true boxes."""

    right: int = 0
    wrong: int = 0
    missed: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.right + other.right, self.wrong + other.wrong, self.missed + other.missed)

    @property
    def precision(self) -> float:
        """Share of the answers that are right; NaN without answers."""
        return ratio(self.right, self.right + self.wrong)

    @property
    def recall(self) -> float:
        """Share of the truth that was found; NaN where there was nothing to find."""
        return ratio(self.right, self.right + self.missed)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; NaN with neither answers nor truth."""
        return ratio(2 * self.right, 2 * self.right + self.wrong + self.missed)


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


def iou(a: Box, b: Box) -> float:
    wide = min(a[2], b[2]) - max(a[0], b[0])
    high = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(wide, 0.0) * max(high, 0.0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / union if union > 0 else 0.0


def match_boxes(answers: Sequence[Box], truths: Sequence[Box], threshold: float = 0.5) -> list[Match]:
    """Pair answers with true boxes of at least that IoU, one to one, largest IoU first; in the order of the answers."""
    pairs = [Match(i, j, iou(answer, truth)) for i, answer in enumerate(answers) for j, truth in enumerate(truths)]
    taken_answers: set[int] = set()
    taken_truths: set[int] = set()
    matches: list[Match] = []
    for pair in sorted(pairs, key=lambda pair: -pair.iou):
        if pair.iou >= threshold and pair.answer not in taken_answers and pair.truth not in taken_truths:
            taken_answers.add(pair.answer)
            taken_truths.add(pair.truth)
            matches.append(pair)
    return sorted(matches, key=lambda pair: pair.answer)


def average_precision(scores: Sequence[float], right: Sequence[bool], total: int) -> float:
    """Return the area under the monotone precision-recall curve (all points, as PASCAL VOC since 2010).

    Answers with equal scores share one point of the curve.
    """
    if not total:
        return float("nan")
    return float(average_precisions(scores, right, np.ones((1, len(scores))), np.array([total]))[0])


def average_precisions(
    scores: Sequence[float], right: Sequence[bool], weights: npt.NDArray[np.float64], totals: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return `average_precision` for each row of `weights`, how often each answer counts, [rows, answers].

    `totals` is the number of true boxes of each row, at least one.
    """
    order = np.argsort(-np.asarray(scores), kind="stable")
    ranked = np.asarray(scores)[order]
    last = np.append(ranked[1:] != ranked[:-1], True)[: len(ranked)]
    hit = np.asarray(right, bool)[order]
    found = np.zeros(len(weights))
    for row, (weight, total) in enumerate(zip(weights, totals, strict=True)):
        counted = weight[order]
        hits, answers = np.cumsum(counted * hit)[last], np.cumsum(counted)[last]
        precision = hits / np.maximum(answers, 1e-12)
        highest = np.maximum.accumulate(precision[::-1])[::-1]
        found[row] = np.sum(np.diff(hits / total, prepend=0.0) * highest)
    return found


def auc(right: Sequence[float], wrong: Sequence[float]) -> float:
    """Probability that a right answer outscores a wrong one, ties counted half; NaN without one of each."""
    if not len(right) or not len(wrong):
        return float("nan")
    lower = np.sort(np.asarray(wrong, float))
    below = np.searchsorted(lower, right, side="left")
    upto = np.searchsorted(lower, right, side="right")
    return float(np.mean(below + upto) / 2 / len(lower))


@dataclass(frozen=True)
class Reliability:
    """Answers whose scores lie in a bin."""

    low: float
    high: float
    count: int
    score: float  # Their mean
    right: float  # Share of them


def reliability(pairs: Iterable[tuple[float, bool]], bins: int = 15) -> list[Reliability]:
    """Sort (score, whether right) into bins of equal width; empty ones are left out."""
    sorted_in: dict[int, list[tuple[float, bool]]] = {}
    for score, right in pairs:
        sorted_in.setdefault(score_bin(score, bins), []).append((score, right))
    return [
        Reliability(place / bins, (place + 1) / bins, len(some), mean(x for x, _ in some), mean(x for _, x in some))
        for place, some in sorted(sorted_in.items())
    ]


def score_bin(score: float, bins: int = 15) -> int:
    return min(int(score * bins), bins - 1)


def calibration_error(bins: Sequence[Reliability]) -> float:
    """Expected calibration error (Naeini, Cooper & Hauskrecht, 2015): mean distance of scores and shares by bin."""
    return ratio(sum(one.count * abs(one.score - one.right) for one in bins), sum(one.count for one in bins))


def inside(point: Sequence[float], box: Box) -> bool:
    return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]


def pairs_in_order(matches: Sequence[Match], truths: Sequence[Box]) -> tuple[int, int]:
    """Return how many pairs of consecutive right answers are in reading order, and how many pairs there are."""
    rank = {place: position for position, place in enumerate(reading_order(truths))}
    positions = [rank[match.truth] for match in matches]
    ordered = sum(first < second for first, second in itertools.pairwise(positions))
    return ordered, max(0, len(positions) - 1)


def same_answer(answer: str, expected: str) -> bool:
    """Compare short answers without regard to case, spaces around, or a full stop."""
    return answer.strip().rstrip(".").lower() == expected.lower()


def mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return ratio(sum(numbers), len(numbers))
