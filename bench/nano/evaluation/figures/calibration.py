"""Calibration of the scores of boxes: how often boxes of a score are right, and a drawing of it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.nano.evaluation.figures.spatial import HELD_OUT, TRAINED, crowd_of, paired_answers
from bench.nano.evaluation.records import SceneRecord
from bench.nano.evaluation.scoring import Figures, Reliability, calibration_error, mean, reliability
from bench.nano.scenes.held_out.backgrounds import HELD_OUT_BACKGROUNDS


def confidences(record: SceneRecord) -> list[tuple[float, bool]]:
    """Return the score of every box that was detected, and whether it is right; boxes of what is absent are wrong."""
    return [
        pair
        for question in record.detections
        if question.reference is None
        for pair in zip(question.scores, paired_answers(question), strict=True)
    ]


def groups(record: SceneRecord) -> Iterator[str]:
    """Return the shifts that a scene is part of."""
    yield HELD_OUT if record.background in HELD_OUT_BACKGROUNDS else TRAINED
    yield f"{crowd_of(record.objects)} objects"
    if record.cluttered:
        yield "words and drawings"


def calibration_figures(records: Sequence[SceneRecord]) -> Figures:
    """Judge scores: the error over all scenes and by shift, and in bins of the score."""
    by_group: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for record in records:
        for group in groups(record):
            by_group[group] += confidences(record)
    everything = reliability(_all(records))
    return {
        "error": calibration_error(everything),
        "mean_score": mean(score for score, _ in _all(records)),
        "right": mean(right for _, right in _all(records)),
        "by_shift": {
            group: {"error": calibration_error(reliability(pairs)), "boxes": len(pairs)}
            for group, pairs in sorted(by_group.items())
        },
        "by_score": {
            f"{one.low:.2f} to {one.high:.2f}": {"score": one.score, "right": one.right, "boxes": one.count}
            for one in everything
        },
    }


def _all(records: Iterable[SceneRecord]) -> list[tuple[float, bool]]:
    return [pair for record in records for pair in confidences(record)]


def draw_reliability(records: Sequence[SceneRecord], path: Path) -> None:
    """Draw how often boxes are right over their score, with 95 % intervals (Wilson), and how many there are."""
    from matplotlib import pyplot  # the evaluation itself needs no plots

    bins = reliability(_all(records))
    figure, (upper, lower) = pyplot.subplots(2, sharex=True, figsize=(5, 5.5), height_ratios=(3, 1))
    upper.plot([0, 1], [0, 1], color="grey", linewidth=1)
    spread = np.array([_wilson(one) for one in bins]).reshape(-1, 2)
    score, right = (np.array([getattr(one, name) for one in bins]) for name in ("score", "right"))
    upper.errorbar(score, right, np.abs(spread.T - right), fmt="o", capsize=3)
    upper.set(ylabel="share of boxes that are right", ylim=(0, 1.02))
    lower.bar([(one.low + one.high) / 2 for one in bins], [one.count for one in bins], 1 / 16)
    lower.set(xlabel=f"score (calibration error {calibration_error(bins):.3f})", ylabel="boxes", yscale="log")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _wilson(one: Reliability, z: float = 1.96) -> tuple[float, float]:
    """Return the interval of Wilson (1927) for a share."""
    n, share = one.count, one.right
    middle, half = share + z * z / (2 * n), z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)
