"""What an examination keeps of one held-out scene: questions, answers and the truth, all of it fit for JSON."""

from dataclasses import dataclass, field
from typing import Any, Literal

Skill = Literal["detect", "point", "segment", "caption", "query", "typed"]
SKILLS: tuple[Skill, ...] = ("detect", "point", "segment", "caption", "query", "typed")
"""What is examined; typed answers are queries with a schema."""
Wanted = Literal["name", "synonym", "absent", "unknown"]
"""How a thing was asked for: by its name or a synonym; or one that is not in this scene, or in no scene at all."""
Place = tuple[float, ...]
"""A point (x, y) or a box (x_min, y_min, x_max, y_max), in fractions of the image."""


@dataclass(frozen=True)
class Located:
    """One detect or point question.

    Attributes:
        kind: Class index asked for, None for an unknown word.
        wanted: How it was asked for.
        phrase: The text handed in.
        truth: Boxes of what should be found: all instances, or the one that the reference marks.
        answers: Boxes (four numbers) or points (two).
        scores: One per answer.
        on_object: Of points: whether each lies on visible pixels of what should be found.
        found: Of points: whether some answer lies on the visible pixels of each of `truth`.
        reference: What was handed in to mark one instance; None where all are asked for.
    """

    kind: int | None
    wanted: Wanted
    phrase: str
    truth: list[Place]
    answers: list[Place]
    scores: list[float]
    on_object: list[bool] = field(default_factory=list)
    found: list[bool] = field(default_factory=list)
    reference: Place | None = None


@dataclass(frozen=True)
class Outlined:
    """One segment question.

    Attributes:
        kind: Class index asked for, None for an unknown word.
        wanted: How it was asked for.
        phrase: The text handed in.
        reference: What was handed in to mark the instance; None where the largest is meant.
        place: Of the instance that is meant among the scene's objects; None where there is none.
        polygon: The outline that was drawn, empty where none was.
        vertices: Of the path as it was written; 0 where there is none.
        iou: Of the outline's pixels and the visible ones of the instance; 0 where either is missing.
    """

    kind: int | None
    wanted: Wanted
    phrase: str
    reference: Place | None
    place: int | None
    polygon: list[Place]
    vertices: int
    iou: float


@dataclass(frozen=True)
class Captioned:
    """A caption, how many of each class there are, and in which zones of the image they lie."""

    text: str
    truth: dict[int, int]
    length: str = "short"
    zones: dict[int, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A question in words.

    Attributes:
        about: A key of `examine_words.ABOUT`.
        case: What kind of case it is: a `Wanted`, or "named", "nothing", "yes", "no"; None where there is one kind.
        question: The text handed in.
        expected: The right answer.
        answer: The model's.
        kind: Class index asked about, None where there is none.
        reference: What was handed in with it.
        points: What the reasoning points at; None without reasoning.
        on_object: Whether each of them lies on visible pixels of an instance of the kind.
    """

    about: str
    case: str | None
    question: str
    expected: str
    answer: str
    kind: int | None = None
    reference: Place | None = None
    points: list[Place] | None = None
    on_object: list[bool] = field(default_factory=list)


@dataclass(frozen=True)
class Field:
    """One value of a typed answer.

    Attributes:
        key: Name of the property, after the number of the item in a list.
        kind: "name", "count", "present", "colour", "zone", "box" or "point".
        expected: The right value; of a point the box that it should lie in; None for null, or for what should not be.
        answer: The model's; None for null, or for what is missing.
        right: Whether it is.
    """

    key: str
    kind: str
    expected: Any
    answer: Any
    right: bool


@dataclass(frozen=True)
class Typed:
    """A question that was answered with JSON.

    Attributes:
        case: One of `examine_typed.CASES`.
        question: The text handed in.
        text: The JSON as it was written.
        schema: That it was held to.
        fields: Of the answer and of the truth.
    """

    case: str
    question: str
    text: str
    schema: dict[str, Any]
    fields: list[Field]


@dataclass(frozen=True)
class Record:
    """Everything asked about one scene."""

    seed: int
    background: str
    width: int
    height: int
    detections: list[Located] = field(default_factory=list)
    points: list[Located] = field(default_factory=list)
    captions: list[Captioned] = field(default_factory=list)
    questions: list[Asked] = field(default_factory=list)
    outlines: list[Outlined] = field(default_factory=list)
    typed: list[Typed] = field(default_factory=list)
