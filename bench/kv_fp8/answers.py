"""How answers of a checkpoint change when its keys and values are kept in FP8."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from bench.nano.evaluation.evaluate import Job, evaluate
from bench.nano.evaluation.figures.summary import summarize
from bench.nano.evaluation.records import SKILLS, PlaceRecord, SceneRecord
from bench.nano.evaluation.scoring import Figures, match_boxes

SHOWN = (
    ("detect, F1 at IoU 0.5", "detect", "f1"),
    ("detect, mean IoU of the matches", "detect", "mean_iou"),
    ("detect, counts exact", "detect", "count_exact"),
    ("detect, right boxes score above wrong ones", "detect", "score_auc"),
    ("detect, nothing found where nothing is", "absent", "all_none"),
    ("point, inside a thing", "point", "inside"),
    ("point, things found", "point", "found"),
    ("point, counts exact", "point", "count_exact"),
    ("caption, kinds right", "caption", "kind_precision"),
    ("caption, whole", "caption", "whole_caption"),
    ("query, counts exact", "query", "count"),
    ("query, there or not", "query", "existence"),
)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Numbers of equal answers.

    Attributes:
        asked: Questions.
        as_many: Answers with as many boxes or points; of text, the same.
        same: Answers that are the same to the last bin.
    """

    asked: int
    as_many: int
    same: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Answers with and without FP8 to the same questions.

    Attributes:
        auto: Figures with keys and values in the type of the weights.
        fp8: Figures with FP8.
        agreement: By skill.
        found_by_one: True boxes that detect found only without FP8, and only with it.
    """

    auto: Figures
    fp8: Figures
    agreement: dict[str, Agreement]
    found_by_one: tuple[int, int]

    def rows(self) -> list[list[str]]:
        """Write the figures as cells: what, without, with, difference."""
        found = []
        for name, skill, figure in SHOWN:
            before, after = self.auto[skill][figure], self.fp8[skill][figure]
            found.append([name, f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}"])
        return found


def compare_answers(scenes: int, seed: int, device: str, workers: int) -> Comparison:
    """Ask the shipped checkpoint about held-out scenes, with and without FP8.

    Args:
        scenes: How many.
        seed: Of the first.
        device: Where.
        workers: Processes; 0 for this one.
    """
    auto, fp8 = (
        evaluate(Job(None, device, "auto", SKILLS, kv_dtype), scenes, seed, workers) for kv_dtype in ("auto", "fp8")
    )
    return compare_records(auto, fp8)


def compare_records(auto: Sequence[SceneRecord], fp8: Sequence[SceneRecord]) -> Comparison:
    """Compare the answers of two examinations of the same scenes."""
    found = [
        _found_by_one(before, after)
        for one, other in zip(auto, fp8, strict=True)
        for before, after in zip(one.detections, other.detections, strict=True)
    ]
    agreement = {
        "detect": _located((record.detections for record in auto), (record.detections for record in fp8)),
        "point": _located((record.points for record in auto), (record.points for record in fp8)),
        "caption": _text([c.text for r in auto for c in r.captions], [c.text for r in fp8 for c in r.captions]),
        "query": _text([q.answer for r in auto for q in r.questions], [q.answer for r in fp8 for q in r.questions]),
    }
    lost, gained = (sum(column) for column in zip(*found, strict=True))
    return Comparison(summarize(auto), summarize(fp8), agreement, (lost, gained))


def _located(auto: Iterable[Sequence[PlaceRecord]], fp8: Iterable[Sequence[PlaceRecord]]) -> Agreement:
    pairs = list(zip(chain.from_iterable(auto), chain.from_iterable(fp8), strict=True))
    as_many = sum(len(one.answers) == len(other.answers) for one, other in pairs)
    return Agreement(len(pairs), as_many, sum(one.answers == other.answers for one, other in pairs))


def _text(auto: Sequence[str], fp8: Sequence[str]) -> Agreement:
    same = sum(one == other for one, other in zip(auto, fp8, strict=True))
    return Agreement(len(auto), same, same)


def _found_by_one(auto: PlaceRecord, fp8: PlaceRecord) -> tuple[int, int]:
    one, other = ({match.truth for match in match_boxes(side.answers, side.truth)} for side in (auto, fp8))
    return len(one - other), len(other - one)
