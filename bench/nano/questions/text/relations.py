"""Questions about relative positions, and their answers.

A scene is a list of `(class index, cx, cy)` in fractions of the image; an instance is named by its place in it.
"""

import math
import random
from collections.abc import Sequence
from typing import Literal

from bench.nano.questions.text.language import Instance, has_no_singular, vary_question
from bench.nano.scenes.objects import load_objects

Direction = Literal["left", "right", "above", "below"]
Comparison = Literal["left", "right", "higher", "lower"]

MIN_OFFSET = 0.04
"""Things nearer along a direction than this do not lie in it."""
BORDER = -0.02
"""Things below this do not lie in the direction either, and leave the answer clear; between the two it is unclear."""
MARGIN = 0.85
"""The nearest thing must be this much nearer than one of another kind."""
MIN_DIFFERENCE = 0.05
"""Two things are compared where they are at least so far apart along the direction."""

_PLACES: dict[Direction, tuple[str, ...]] = {
    "left": ("left of", "to the left of", "on the left of", "on the left side of"),
    "right": ("right of", "to the right of", "on the right of", "on the right side of"),
    "above": ("above", "over", "on top of"),
    "below": ("below", "under", "beneath", "underneath"),
}
_RELATION_FRAMES = (
    "what is {place} the {{0}}?", "what's {place} the {{0}}?", "what is {place} {{0}}?",
    "which object is {place} the {{0}}?", "what object is {place} the {{0}}?", "which thing is {place} the {{0}}?",
    "what do you see {place} the {{0}}?", "what can you see {place} the {{0}}?",
    "name the object {place} the {{0}}",
)  # fmt: skip
_NEIGHBOUR_FRAMES = (
    "what is on the {0} of the {{0}}?", "what is next to the {{0}} on the {0}?", "what is beside the {{0}} on the {0}?",
    "what is directly {0} of the {{0}}?",
)  # fmt: skip
_PLACE_FRAMES = (
    "is the {{0}} {place} the {{1}}?", "is {{0}} {place} {{1}}?", "is the {{0}} {place} the {{1}} in the picture?",
    "do you see the {{0}} {place} the {{1}}?",
)  # fmt: skip
_FURTHER: dict[Comparison, tuple[str, ...]] = {
    "left": ("further left", "further to the left", "farther left", "farther to the left", "more to the left"),
    "right": ("further right", "further to the right", "farther right", "farther to the right", "more to the right"),
    "higher": ("higher", "higher up", "further up", "nearer to the top", "closer to the top"),
    "lower": ("lower", "lower down", "further down", "nearer to the bottom", "closer to the bottom"),
}
_COMPARISON_FRAMES = (
    "which is {further}, the {{0}} or the {{1}}?", "what is {further}, the {{0}} or the {{1}}?",
    "which is {further}, {{0}} or {{1}}?", "is the {{0}} or the {{1}} {further}?",
)  # fmt: skip
_AS_COMPARISON: dict[Direction, Comparison] = {"left": "left", "right": "right", "above": "higher", "below": "lower"}


def _relation_templates(direction: Direction) -> tuple[str, ...]:
    templates = [frame.format(place=place) for frame in _RELATION_FRAMES for place in _PLACES[direction]]
    if direction in ("left", "right"):
        templates += [frame.format(direction) for frame in _NEIGHBOUR_FRAMES]
    return tuple(dict.fromkeys(templates))


def _place_templates(direction: Direction) -> tuple[str, ...]:
    frames = [frame.format(place=place) for frame in _PLACE_FRAMES for place in _PLACES[direction]]
    further = [f"is the {{0}} {words} than the {{1}}?" for words in _FURTHER[_AS_COMPARISON[direction]][:1]]
    return (*frames, *further)


def _comparison_templates(comparison: Comparison) -> tuple[str, ...]:
    return tuple(frame.format(further=further) for frame in _COMPARISON_FRAMES for further in _FURTHER[comparison])


RELATION_QUESTIONS: dict[Direction, tuple[str, ...]] = {name: _relation_templates(name) for name in _PLACES}
"""Templates by direction: {0} is a name in the singular; what is asked for lies in that direction of it."""
PLACE_QUESTIONS: dict[Direction, tuple[str, ...]] = {name: _place_templates(name) for name in _PLACES}
"""Yes-or-no templates by direction: whether {0} lies in that direction of {1}."""
COMPARISON_QUESTIONS: dict[Comparison, tuple[str, ...]] = {name: _comparison_templates(name) for name in _FURTHER}
"""Templates by comparison: {0} and {1} are names in the singular."""


def place_question(rng: random.Random, direction: Direction, first: tuple[str, str], second: tuple[str, str]) -> str:
    """Ask whether the first thing lies in a direction of the second."""
    text = rng.choice(PLACE_QUESTIONS[direction]).format(first[0], second[0])
    if has_no_singular(first) and text.startswith("is "):
        text = "are " + text.removeprefix("is ")
    return vary_question(rng, text)


def relation_answer(scene: Sequence[Instance], place: int, direction: Direction) -> str | None:
    """Return the name of the nearest thing in a direction of an instance, "Nothing" if there is none.

    Things with `along > MIN_OFFSET` lie in the direction; the nearest has the least hypot(along, 2 across). None where
    the answer is unclear: the instance is not the only one of its kind, something lies at the border of the direction,
    or things of two kinds are about as near.
    """
    if not _is_single(scene, place):
        return None
    others = [other for i, other in enumerate(scene) if i != place]
    offsets = [(other[0], *_along_across(scene[place], other, direction)) for other in others]
    ranked = sorted((math.hypot(along, 2 * across), kind, along) for kind, along, across in offsets if along > BORDER)
    there = [(cost, kind) for cost, kind, along in ranked if along > MIN_OFFSET]
    if not there:
        return None if ranked else "Nothing"
    least, nearest = there[0]
    if any(kind != nearest and cost < least / MARGIN for cost, kind, _ in ranked):
        return None
    return load_objects()[nearest].name


def place_answer(scene: Sequence[Instance], first: int, second: int, direction: Direction) -> str | None:
    """Return "Yes" or "No": whether one instance lies in a direction of another.

    None where one of them is not the only one of its kind, or they are closer than `MIN_DIFFERENCE`.
    """
    if not (_is_single(scene, first) and _is_single(scene, second)):
        return None
    along, _ = _along_across(scene[second], scene[first], direction)
    if abs(along) < MIN_DIFFERENCE:
        return None
    return "Yes" if along > 0 else "No"


def comparison_answer(scene: Sequence[Instance], first: int, second: int, comparison: Comparison) -> str | None:
    """Return the name of the instance that is further to one side; None as in `place_answer`."""
    direction = next(name for name, value in _AS_COMPARISON.items() if value == comparison)
    answer = place_answer(scene, first, second, direction)
    return answer and load_objects()[scene[first if answer == "Yes" else second][0]].name


def _is_single(scene: Sequence[Instance], place: int) -> bool:
    return sum(kind == scene[place][0] for kind, _, _ in scene) == 1


def _along_across(origin: Instance, other: Instance, direction: Direction) -> tuple[float, float]:
    """Return the offset from `origin` to `other`: along the direction, and at right angles to it."""
    dx, dy = other[1] - origin[1], other[2] - origin[2]
    return {"left": (-dx, dy), "right": (dx, dy), "above": (-dy, dx), "below": (dy, dx)}[direction]
