"""What becomes of a frame: it waits, is asked about, and ends as a result, a failure, or a drop that is counted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from photonlite.realtime.question import Question


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """An image that was submitted.

    Attributes:
        number: Counts the frames of the loop from 0.
        image: Whatever the model takes as an image.
        stamp: The caller's own mark.
        arrived: When it was submitted, on the loop's clock, in seconds.
    """

    number: int
    image: Any = field(repr=False)
    stamp: Any
    arrived: float


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A frame that is being asked about.

    Attributes:
        frame: The frame.
        question: What is asked.
        deadline: When the answer becomes worthless, on the loop's clock; None for never.
        deadline_s: Seconds that were left when the job began.
    """

    frame: Frame
    question: Question
    deadline: float | None
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class FrameResult:
    """An answer about one frame.

    Attributes:
        result: What the model's method returned.
        number: The frame's, counted from 0: gaps are frames without a result.
        stamp: What the frame was submitted with; the time of submission where that was nothing.
        task: What was asked.
        arguments: Of the task, by name.
        image: The frame's image.
        arrived: When the frame was submitted, on the loop's clock.
        latency_s: Seconds from the frame's submission to its answer.
        age_s: Seconds from the frame's submission to the moment when this was handed out.
        met_deadline: Whether the answer came in time; True where there was no deadline.
    """

    result: Mapping[str, Any]
    number: int
    stamp: Any
    task: str
    arguments: Mapping[str, Any]
    image: Any = field(repr=False)
    arrived: float
    latency_s: float
    age_s: float
    met_deadline: bool


@dataclass(frozen=True, slots=True)
class FrameFailure:
    """A frame that could not be answered.

    Attributes:
        error: Why.
        number: The frame's, counted from 0.
        stamp: What the frame was submitted with; the time of submission where that was nothing.
        task: What was asked.
    """

    error: BaseException
    number: int
    stamp: Any
    task: str


Outcome: TypeAlias = FrameResult | FrameFailure
"""What is handed out; frames that were dropped are only counted."""
