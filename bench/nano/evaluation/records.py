"""Records of one held-out scene: questions, answers and truth, all of it fit for JSON."""

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
class PlaceRecord:
    """One detect or point question."""

    kind: int | None  # Class index asked for, None for an unknown word
    wanted: Wanted  # Kind of name in the request
    phrase: str  # Text of the request
    truth: list[Place]  # Boxes of what should be found: all instances, or the one that the reference marks
    answers: list[Place]  # Boxes (four numbers) or points (two)
    scores: list[float]  # One per answer
    on_object: list[bool] = field(default_factory=list)  # Whether each point lies on visible pixels of `truth`
    found: list[bool] = field(default_factory=list)  # Whether a point lies on the visible pixels of each of `truth`
    reference: Place | None = None  # Point or box that marks one instance; None for all instances


@dataclass(frozen=True)
class OutlineRecord:
    """One segment question."""

    kind: int | None  # Class index asked for, None for an unknown word
    wanted: Wanted  # Kind of name in the request
    phrase: str  # Text of the request
    reference: Place | None  # Point or box that marks the instance; None for the largest
    place: int | None  # Of the instance that is meant among the scene's objects; None where there is none
    polygon: list[Place]  # The outline that was drawn, empty where none was
    vertices: int  # Of the path as it was written; 0 where there is none
    iou: float  # Of the outline's pixels and those of the instance in its visible box; 0 where either is missing
    length: float = 0.0  # Of the outline, as a multiple of that of the instance; 0 where either is missing


@dataclass(frozen=True)
class CaptionRecord:
    """A caption, how many of each class there are, and in which zones of the image they lie."""

    text: str
    truth: dict[int, int]
    length: str = "short"
    zones: dict[int, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class QueryRecord:
    """A question in words."""

    about: str  # A key of `asking.words.ABOUT`
    case: str | None  # A `Wanted`, or "named", "nothing", "yes", "no"; None where questions have no cases
    question: str  # Text of the request
    expected: str  # The right answer
    answer: str  # The model's
    kind: int | None = None  # Class index asked about, None where there is none
    reference: Place | None = None  # Point or box in the request
    points: list[Place] | None = None  # What the reasoning points at; None without reasoning
    on_object: list[bool] = field(default_factory=list)  # Whether each of `points` lies on an instance of the kind


@dataclass(frozen=True)
class FieldRecord:
    """One value of a typed answer."""

    key: str  # Name of the property, after the number of the item in a list
    kind: str  # "name", "count", "present", "colour", "zone", "box", "point", "text" or "unknowable"
    expected: Any  # The right value; of a point the box that it should lie in; None for null, or for what should not be
    answer: Any  # The model's; None for null, or for what is missing
    right: bool  # Whether it is
    names: str = "trained"  # Or "unseen" where the property's name is held out of training
    form: str = ""  # What the schema asks for, one of `asking.typed.FORMS`; empty where it goes without saying


@dataclass(frozen=True)
class TypedRecord:
    """A question that was answered with JSON."""

    case: str  # One of `asking.typed.CASES`
    question: str  # Text of the request
    text: str  # The JSON as it was written
    schema: dict[str, Any]  # That it was held to
    fields: list[FieldRecord]  # Of the answer and of the truth
    tokens: int = 0  # That were generated; 0 where this is not known


@dataclass(frozen=True)
class SceneRecord:
    """Everything asked about one scene."""

    seed: int
    background: str
    width: int
    height: int
    detections: list[PlaceRecord] = field(default_factory=list)
    points: list[PlaceRecord] = field(default_factory=list)
    captions: list[CaptionRecord] = field(default_factory=list)
    questions: list[QueryRecord] = field(default_factory=list)
    outlines: list[OutlineRecord] = field(default_factory=list)
    typed: list[TypedRecord] = field(default_factory=list)
    objects: int = 0  # How many there are
    turned: bool = False  # Whether they are turned by any angle
    cluttered: bool = False  # Whether there are words and drawings, which are none
    arrangement: str = "free"  # A key of `ARRANGEMENTS`
