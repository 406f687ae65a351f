"""What is asked about frames, and what becomes of each: a result, a failure, or a drop that is counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias, TypedDict

from photonlite.errors import InputError, SettingsError
from photonlite.request import RequestSettings, SamplingSettings
from photonlite.settings import plain
from photonlite.skills.base import MAX_QUESTION_CHARACTERS, SpatialRefs, clean_refs, clean_text
from photonlite.skills.names import clean_names
from photonlite.skills.search import Overlap, Scope
from photonlite.skills.tiles import Tile

_SEARCH = ("min_score", "overlap", "tile")
_ANY = ("settings", "adapter")
ARGUMENTS = {
    "detect": ("object", *_SEARCH, *_ANY),
    "point": ("object", *_SEARCH, "spatial_refs", *_ANY),
    "segment": ("object", *_SEARCH, "spatial_refs", *_ANY),
    "caption": ("length", *_ANY),
    "query": ("question", "spatial_refs", "reasoning", *_ANY),
}
"""The tasks, and what each takes beside the image."""

TRACKED = ("detect", "point", "segment")
"""The tasks whose items can have ids over frames."""

TaskName: TypeAlias = Literal["detect", "point", "segment", "caption", "query"]


class Arguments(TypedDict, total=False):
    """Arguments of all tasks, as the model's methods take them; `ARGUMENTS` says which task takes which."""

    object: str | Sequence[str]
    min_score: float
    overlap: Overlap
    tile: Tile | None
    spatial_refs: SpatialRefs | None
    question: str
    reasoning: bool
    length: str
    settings: RequestSettings | None
    adapter: str | None


class Changes(Arguments, total=False):
    """What can be changed while a loop runs."""

    task: TaskName
    deadline_ms: float | None
    track: bool


LONGEST_DEADLINE_MS = 86_400_000
"""A day."""

_LENGTHS = ("short", "normal", "long")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about every frame until it is changed: checked before a frame needs it."""

    task: str  # the name of a method of `VisionModel`
    arguments: Mapping[str, Any]  # of that method, without the image
    deadline_s: float | None = None  # from a frame's submission
    track: bool = False  # whether items get ids over frames

    @classmethod
    def of(cls, task: str, **changes: Any) -> Self:
        """Make the first question; arguments and errors are those of `changed`."""
        return cls(task, {}).changed({"task": task, **changes})

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Return the question after a change of "task", "deadline_ms", "track" or arguments; raises an InputError.

        What is left out stays as it is, but a change that names a task gives all its arguments.
        """
        task = changes.get("task", self.task)
        if not isinstance(task, str) or task not in ARGUMENTS:
            raise InputError(f"there is no task {task!r:.60}: the tasks are {', '.join(ARGUMENTS)}")
        takes = ARGUMENTS[task]
        given = {name: value for name, value in changes.items() if name not in ("task", "deadline_ms", "track")}
        for name in given:
            if name not in takes:
                raise InputError(f"{task} takes no {name!r:.60}: it takes {', '.join(takes)}, deadline_ms and track")
        kept = {} if "task" in changes else self.arguments
        deadline_s = _seconds(changes["deadline_ms"]) if "deadline_ms" in changes else self.deadline_s
        track = changes.get("track", self.track and task in TRACKED)
        if not isinstance(track, bool) or (track and task not in TRACKED):
            raise InputError(f"track is {track!r:.60}: give True or False, and True for {', '.join(TRACKED)} only")
        return type(self)(task, _checked(task, {**kept, **given}), deadline_s, track)


def _checked(task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    checked = dict(arguments)
    if "object" in ARGUMENTS[task]:
        names = clean_names(given := checked.get("object"))
        checked["object"] = names[0] if isinstance(given, str) else list(names)
        search = (*_SEARCH, "spatial_refs")
        Scope(**{name: checked[name] for name in search if name in checked})
    if "question" in ARGUMENTS[task]:
        checked["question"] = clean_text(checked.get("question"), "question", MAX_QUESTION_CHARACTERS)
    if checked.get("length", "normal") not in _LENGTHS:
        raise InputError(f"length is {checked['length']!r:.60}: it must be one of {', '.join(_LENGTHS)}")
    if not isinstance(checked.get("reasoning", False), bool):
        raise InputError(f"reasoning is {checked['reasoning']!r:.60}: it must be true or false")
    if not isinstance(adapter := checked.get("adapter"), str | None):
        raise InputError(f"adapter is {adapter!r:.60}: give the name of a loaded one, or None")
    SamplingSettings.from_dict(checked.get("settings"))
    clean_refs(checked.get("spatial_refs"))
    return checked


def _seconds(deadline_ms: object) -> float | None:
    if deadline_ms is None:
        return None
    deadline_ms = plain(deadline_ms)
    number = isinstance(deadline_ms, int | float) and not isinstance(deadline_ms, bool)
    if not number or not 0 < deadline_ms <= LONGEST_DEADLINE_MS:  # type: ignore[operator]
        raise SettingsError(
            f"deadline_ms is {deadline_ms!r:.60}: give milliseconds above 0 and up to {LONGEST_DEADLINE_MS:,}, or None"
        )
    return float(deadline_ms) / 1000  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    number: int  # counts the frames of the loop from 0
    image: Any = field(repr=False)
    stamp: Any  # the caller's own mark
    arrived: float  # on the loop's clock, in seconds


@dataclass(frozen=True, slots=True, eq=False)
class FrameJob:
    frame: Frame
    question: Question
    deadline: float | None  # on the loop's clock
    deadline_s: float | None  # seconds that were left when the job began


@dataclass(frozen=True, slots=True)
class FrameResult:
    """An answer about one frame; times are in seconds."""

    result: Mapping[str, Any]  # what the model's method returned
    number: int  # the frame's, counted from 0: gaps are frames without a result
    stamp: Any  # what the frame was submitted with, else the time of submission
    task: str
    arguments: Mapping[str, Any]  # of the task, by name
    image: Any = field(repr=False)
    arrived: float  # when the frame was submitted, on the loop's clock
    latency_s: float  # from the frame's submission to its answer
    age_s: float  # from the frame's submission to the moment when this was handed out
    met_deadline: bool  # True where there was no deadline


@dataclass(frozen=True, slots=True)
class FrameFailure:
    """A frame that could not be answered, with the `error`; other fields as in `FrameResult`."""

    error: BaseException
    number: int
    stamp: Any
    task: str


FrameOutcome: TypeAlias = FrameResult | FrameFailure
"""What is handed out; frames that were dropped are only counted."""
