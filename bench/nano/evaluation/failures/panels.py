"""Wrong answers about a scene by skill: shapes to draw on its image and the text below."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.nano.evaluation.asking.words import AT_REFERENCE, SPATIAL
from bench.nano.evaluation.failures import text
from bench.nano.evaluation.figures.words import agrees, is_right
from bench.nano.evaluation.records import OutlineRecord, Place, PlaceRecord, QueryRecord, SceneRecord, TypedRecord
from bench.nano.evaluation.scoring import match_boxes

Role = Literal["found", "missed", "right", "wrong", "reference"]
"""Of the truth, whether it was found; of an answer, whether it is right; or a point or box in the request."""

GOOD_OUTLINE = 0.75
"""An outline below this IoU is shown."""


@dataclass(frozen=True)
class Shape:
    """Something to draw: a point (x, y), a box of four numbers, a closed outline, or an object's visible pixels."""

    role: Role
    place: Place = ()
    outline: Sequence[Place] = ()
    object: int | None = None


@dataclass(frozen=True)
class Panel:
    """One image of a scene: what is drawn on it, HTML below it, and how bad it is."""

    badness: float
    lines: list[str]
    shapes: list[Shape] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    about: str
    panels: Callable[[SceneRecord], list[Panel]]
    examined: Callable[[SceneRecord], bool]


def box_panels(record: SceneRecord) -> list[Panel]:
    """Show each detect question with a box that is wrong or missing."""
    return [panel for question in record.detections if (panel := _boxes(question)).badness]


def _boxes(question: PlaceRecord) -> Panel:
    matches = match_boxes(question.answers, question.truth)
    found, right = {match.truth for match in matches}, {match.answer for match in matches}
    return _located(
        question,
        [place in found for place in range(len(question.truth))],
        [place in right for place in range(len(question.answers))],
    )


def point_panels(record: SceneRecord) -> list[Panel]:
    """Show each point question with a point that lies beside, or an object without one."""
    panels = [_located(question, question.found, question.on_object) for question in record.points]
    return [panel for panel in panels if panel.badness]


def _located(question: PlaceRecord, found: Sequence[bool], right: Sequence[bool]) -> Panel:
    shapes = [Shape("found" if hit else "missed", box) for box, hit in zip(question.truth, found, strict=True)]
    shapes += [Shape("right" if hit else "wrong", place) for place, hit in zip(question.answers, right, strict=True)]
    wrong, missed = list(right).count(False), list(found).count(False)
    return Panel(
        wrong + missed, [text.located_html(question, wrong, missed)], [*shapes, *_reference(question.reference)]
    )


def outline_panels(record: SceneRecord) -> list[Panel]:
    """Show each outline that is bad, missing, or of something that is not there."""
    return [_outline(outline) for outline in record.outlines if _is_bad(outline)]


def _is_bad(outline: OutlineRecord) -> bool:
    return bool(outline.polygon) if outline.place is None else outline.iou < GOOD_OUTLINE


def _outline(outline: OutlineRecord) -> Panel:
    hit = outline.iou >= 0.5
    shapes = [] if outline.place is None else [Shape("found" if hit else "missed", object=outline.place)]
    if outline.polygon:
        shapes.append(Shape("right" if hit else "wrong", outline=outline.polygon))
    return Panel(1 - outline.iou, [text.outline_html(outline)], [*shapes, *_reference(outline.reference)])


def caption_panels(record: SceneRecord) -> list[Panel]:
    """Show the image with all captions that have a mistake."""
    lines = [text.caption_html(caption) for caption in record.captions if not text.is_whole(caption)]
    marks = sum(line.count("<del>") + line.count("<ins>") for line in lines)
    return [Panel(marks, lines)] if lines else []


def word_panels(about: Iterable[str]) -> Callable[[SceneRecord], list[Panel]]:
    """Show the image with all wrong answers to some kinds of question."""
    chosen = frozenset(about)

    def panels(record: SceneRecord) -> list[Panel]:
        wrong = [question for question in record.questions if question.about in chosen and not is_right(question)]
        return [Panel(len(wrong), [text.asked_html(question) for question in wrong])] if wrong else []

    return panels


def reference_panels(record: SceneRecord) -> list[Panel]:
    """Show each reference whose object was not named."""
    wrong = [one for one in record.questions if one.about in AT_REFERENCE and not is_right(one)]
    return [Panel(1, [text.asked_html(question)], list(_reference(question.reference))) for question in wrong]


def reasoning_panels(record: SceneRecord) -> list[Panel]:
    """Show each counted answer that is wrong, or grounded in points that are."""
    return [_reasoned(question) for question in record.questions if question.points is not None and _doubtful(question)]


def _doubtful(question: QueryRecord) -> bool:
    return not (is_right(question) and agrees(question) and all(question.on_object))


def _reasoned(question: QueryRecord) -> Panel:
    places = zip(question.points or (), question.on_object, strict=True)
    shapes = [Shape("right" if hit else "wrong", place) for place, hit in places]
    badness = question.on_object.count(False) + (not is_right(question)) + (not agrees(question))
    return Panel(badness, [text.asked_html(question)], shapes)


def typed_panels(record: SceneRecord) -> list[Panel]:
    """Show each typed answer with a field that is wrong, and the boxes in it."""
    return [_typed(one) for one in record.typed if not all(field.right for field in one.fields)]


def _typed(answer: TypedRecord) -> Panel:
    shapes = []
    for one in answer.fields:
        if one.kind in ("box", "point"):
            shapes += [Shape("found" if one.right else "missed", tuple(one.expected))] if one.expected else []
            shapes += [Shape("right" if one.right else "wrong", tuple(one.answer))] if one.answer else []
    return Panel(sum(not one.right for one in answer.fields), [text.typed_html(answer)], shapes)


def _reference(place: Place | None) -> Iterator[Shape]:
    if place is not None:
        yield Shape("reference", place)


def _has(*about: str) -> Callable[[SceneRecord], bool]:
    return lambda record: any(question.about in about for question in record.questions)


_COUNTS = ("count", "existence", "total", "list")

SECTIONS: tuple[Section, ...] = (
    Section("detect", "Boxes", "matched one to one at IoU 0.5", box_panels, lambda one: bool(one.detections)),
    Section("point", "Points", "judged by the visible pixels", point_panels, lambda one: bool(one.points)),
    Section("segment", "Outlines", f"of IoU below {GOOD_OUTLINE}", outline_panels, lambda one: bool(one.outlines)),
    Section("caption", "Captions", "short, normal and long", caption_panels, lambda one: bool(one.captions)),
    Section("count", "Counts and lists", "how many, is there, what is there", word_panels(_COUNTS), _has(*_COUNTS)),
    Section("spatial", "Left, right, above, below", "what is where", word_panels(SPATIAL), _has(*SPATIAL)),
    Section("colour", "Colours", "of things that have one", word_panels(["colour"]), _has("colour")),
    Section("reference", "At a mark", "what a point or a box marks", reference_panels, _has(*AT_REFERENCE)),
    Section("reasoning", "Reasoning", "counts and the points under them", reasoning_panels, _has("reasoning")),
    Section("typed", "Typed answers", "JSON, value by value", typed_panels, lambda one: bool(one.typed)),
)
