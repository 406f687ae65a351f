"""Reads typed answers of held-out scenes and compares them with the truth, field by field."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.nano.evaluation.asking.subjects import shown_at
from bench.nano.evaluation.records import Field
from bench.nano.evaluation.scoring import iou, match_boxes
from bench.nano.scenes.held_out.scene import Scene

GOOD_BOX = 0.5
_CORNERS = ("x_min", "y_min", "x_max", "y_max")


@dataclass(frozen=True)
class Wanted:
    key: str  # Its name; empty for a value alone
    kind: str  # "name", "count", "present", "colour", "zone", "box" or "point"
    value: Any  # The right one; a box of four numbers for both kinds of places; None where null is right
    place: int | None = None  # Of the instance that a point should lie on


def read_object(scene: Scene, wanted: Sequence[Wanted], answer: Any) -> list[Field]:
    return [_field(scene, one, answer[one.key]) for one in wanted]


def read_value(scene: Scene, wanted: Wanted, answer: Any) -> list[Field]:
    return [_field(scene, wanted, answer)]


def read_items(key: str, wanted: Sequence[Sequence[Wanted]], answer: Any) -> list[Field]:
    """Compare a list of objects: items belong together by their boxes, or else by their names. Returns two fields an
    item: those that are missing or too many are wrong.
    """
    items = answer[key] if key else answer
    name, second = wanted[0]
    pairs = _by_box(wanted, items) if second.kind == "box" else _by_name(wanted, items)
    fields = []
    for place, item in enumerate(wanted):
        given = items[pairs[place]] if place in pairs else {}
        for one in item:
            right = place in pairs and (one.kind == "box" or given[one.key] == one.value)
            fields.append(Field(f"{place}.{one.key}", one.kind, plain(one.value), plain(given.get(one.key)), right))
    for place in sorted(set(range(len(items))) - set(pairs.values())):
        fields += [
            Field(f"{place}.{one.key}", one.kind, None, plain(items[place][one.key]), False) for one in (name, second)
        ]
    return fields


def _by_box(wanted: Sequence[Sequence[Wanted]], items: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    box = wanted[0][1].key
    matches = match_boxes([plain(item[box]) for item in items], [one.value for _, one in wanted], GOOD_BOX)
    return {match.truth: match.answer for match in matches}


def _by_name(wanted: Sequence[Sequence[Wanted]], items: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    key = wanted[0][0].key
    first = {item[key]: place for place, item in reversed([*enumerate(items)])}
    return {place: first[name.value] for place, (name, _) in enumerate(wanted) if name.value in first}


def _field(scene: Scene, wanted: Wanted, answer: Any) -> Field:
    given = plain(answer)
    if wanted.value is None or answer is None:
        right = wanted.value is answer
    elif wanted.kind == "box":
        right = iou(given, wanted.value) >= GOOD_BOX
    elif wanted.kind == "point":
        right = shown_at(scene, given) == wanted.place
    else:
        right = given == wanted.value
    return Field(wanted.key, wanted.kind, plain(wanted.value), given, right)


def plain(value: Any) -> Any:
    """Return a place as a list of numbers, and anything else as it is."""
    if isinstance(value, Mapping):
        return [value[name] for name in (_CORNERS if "x_min" in value else ("x", "y"))]
    return [*value] if isinstance(value, tuple) else value
