"""Boxes and points of Qwen-VL: how its makers ask for them, how it spells them, and where they are.

| | coordinates of an answer | in [0, 1] of the image |
|---|---|---|
| Qwen2.5-VL | pixels of the resized image | divided by its width or height |
| Qwen3-VL | whole numbers from 0 to 1000 | divided by 1000 |

The vision tower sees the whole upright image, resized without padding, so both divisions give places in the original.
"""

import json

from photonlite.errors import UnsupportedSkillError
from photonlite.grammar.decoding.items import ItemFormat
from photonlite.grammar.prompts import PlaceKind
from photonlite.models.qwen.config import Version
from photonlite.models.tokenizer import Tokenizer

RANGE = 1000  # of the newer generation's coordinates
_KEYS: dict[PlaceKind, tuple[str, int]] = {"detect": ("bbox_2d", 4), "point": ("point_2d", 2)}


def question(kind: PlaceKind, subject: str, version: Version) -> str:
    """Return the question that the makers use for all boxes or points of a subject."""
    if version.newer:
        what = "bbox" if kind == "detect" else "point"
        categories = f'Locate every instance that belongs to the following categories: "{subject}".'
        return f"{categories} Report {what} coordinates in JSON format."
    if kind == "detect":
        return f"Locate every {subject} in the image, report the bbox coordinates in JSON format."
    return f"Point to every {subject} in the image, report the point coordinates in JSON format."


def bounds(kind: PlaceKind, version: Version, resized: tuple[int, int]) -> tuple[int, ...]:
    """Return the largest coordinates of an item, x and y by turns; `resized` is the width and height the tower sees."""
    pair = (RANGE, RANGE) if version.newer else resized
    return pair * (_KEYS[kind][1] // 2)


class ItemSpelling:
    """Spells lists of boxes and points with the tokens of a checkpoint.

    Raises UnsupportedSkillError for a tokenizer whose digits are not single tokens.
    """

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        self._tokenizer, self._end = tokenizer, end
        self.digits = tuple(self._digit(str(digit)) for digit in range(10))

    def format(self, kind: PlaceKind, label: str) -> ItemFormat:
        """Return how items of one label are written: as the model was trained to, the label as in the question."""
        label = self._tokenizer.normalize(label)
        key, numbers = _KEYS[kind]
        opening = f'\n\t{{"{key}": ['
        closing = f'], "label": {json.dumps(label, ensure_ascii=False)}}}'
        return ItemFormat(
            numbers=numbers,
            digits=self.digits,
            separator=self._ids(", "),
            first=self._ids(f"```json\n[{opening}"),
            more=self._ids(f"{closing},{opening}"),
            last=(*self._ids(f"{closing}\n]\n```"), self._end),
            none=(*self._ids("```json\n[]\n```"), self._end),
        )

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.spell(text))

    def _digit(self, digit: str) -> int:
        # Between the brackets and commas of a list, and behind another digit.
        alone, pair = self._ids(digit), self._ids(f"[{digit}, {digit}{digit}]")
        if len(alone) != 1 or pair.count(alone[0]) != 3:
            raise UnsupportedSkillError(
                f"this tokenizer does not spell {digit} as a token of its own, which boxes and points need: use the "
                "tokenizer.json of this checkpoint"
            )
        return alone[0]
