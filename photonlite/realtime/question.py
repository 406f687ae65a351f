"""What is asked about every frame: a task, its arguments and a deadline, checked before any frame needs them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from photonlite.errors import InputError, SettingsError
from photonlite.request import SamplingSettings
from photonlite.settings import plain
from photonlite.skills.base import MAX_OBJECT_CHARACTERS, MAX_QUESTION_CHARACTERS, clean_refs, clean_text

ARGUMENTS = {
    "detect": ("object", "settings"),
    "point": ("object", "settings", "spatial_refs"),
    "segment": ("object", "settings", "spatial_refs"),
    "caption": ("length", "settings"),
    "query": ("question", "settings", "spatial_refs", "reasoning"),
}
"""The tasks, and what each takes beside the image."""

LONGEST_DEADLINE_MS = 86_400_000
"""A day."""

_TEXTS = {"object": MAX_OBJECT_CHARACTERS, "question": MAX_QUESTION_CHARACTERS}
_LENGTHS = ("short", "normal", "long")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about every frame until it is changed.

    Attributes:
        task: The name of a method of `VisionModel`.
        arguments: Of that method, by name, the image aside.
        deadline_s: Seconds from a frame's submission after which its answer is worthless; None for no end.
    """

    task: str
    arguments: Mapping[str, Any]
    deadline_s: float | None = None

    @classmethod
    def of(cls, task: str, **changes: Any) -> Self:
        """Make the first question; see `changed`.

        Raises:
            InputError: As `changed` does.
        """
        return cls(task, {}).changed({"task": task, **changes})

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Give the question after a change.

        Args:
            changes: "task", "deadline_ms" (None for none) and arguments of the task. What is left out stays as it is;
                where a task is named, its arguments are those of the change alone.

        Raises:
            InputError: An argument is unknown to the task, missing or unusable, or there is no such task.
            SettingsError: The deadline is no time, or "settings" holds what there is not.
            PromptError: The object or the question is empty or too long.
        """
        task = changes.get("task", self.task)
        if not isinstance(task, str) or task not in ARGUMENTS:
            raise InputError(f"there is no task {task!r:.60}: the tasks are {', '.join(ARGUMENTS)}")
        takes = ARGUMENTS[task]
        given = {name: value for name, value in changes.items() if name not in ("task", "deadline_ms")}
        for name in given:
            if name not in takes:
                raise InputError(f"{task} takes no {name!r:.60}: it takes {', '.join(takes)}, and deadline_ms")
        kept = {} if "task" in changes else self.arguments
        deadline_s = _seconds(changes["deadline_ms"]) if "deadline_ms" in changes else self.deadline_s
        return type(self)(task, _checked(task, {**kept, **given}), deadline_s)


def _checked(task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    checked = dict(arguments)
    for name, limit in _TEXTS.items():
        if name in ARGUMENTS[task]:
            checked[name] = clean_text(checked.get(name, ""), name, limit)
    if checked.get("length", "normal") not in _LENGTHS:
        raise InputError(f"length is {checked['length']!r:.60}: it must be one of {', '.join(_LENGTHS)}")
    if not isinstance(checked.get("reasoning", False), bool):
        raise InputError(f"reasoning is {checked['reasoning']!r:.60}: it must be true or false")
    SamplingSettings.from_dict(checked.get("settings"))
    clean_refs(checked.get("spatial_refs"))
    return checked


def _seconds(deadline_ms: object) -> float | None:
    if deadline_ms is None:
        return None
    deadline_ms = plain(deadline_ms)
    if (
        not isinstance(deadline_ms, int | float)
        or isinstance(deadline_ms, bool)
        or not 0 < deadline_ms <= LONGEST_DEADLINE_MS
    ):
        raise SettingsError(
            f"deadline_ms is {deadline_ms!r:.60}: give milliseconds above 0 and up to {LONGEST_DEADLINE_MS:,}, or None"
        )
    return deadline_ms / 1000
