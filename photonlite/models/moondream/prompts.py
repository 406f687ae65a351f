"""Prompts of the Moondream family: ids of every skill, spatial references, and the ids that grammars use.

```
caption    template of the length
query      prefix  [references]  question  suffix (or the suffix that opens reasoning)
detect     prefix  " " object  suffix
point      prefix  [references]  " " object  suffix
segment    prefix  [references]  object  suffix
```

The engine puts BOS and the image before all of them. Checkpoints were trained with the leading space of detect and
point.
"""

import functools
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import TypeVar

from photonlite.errors import SettingsError, SpatialRefError, UnsupportedSkillError
from photonlite.grammar.decoding.base import PATH_GRID, PathIds, Vocabulary
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.tokenizer import IncrementalDetokenizer, Tokenizer
from photonlite.request import Token
from photonlite.settings import plain

T = TypeVar("T")

_LENGTHS = ("short", "normal", "long")
_COMMANDS = frozenset("MmLlHhVvCcSsQqTtZz")


class MoondreamPrompts:
    """Encodes prompts for one checkpoint and decodes its text.

    Prompts raise UnsupportedSkillError where the checkpoint was not trained for the skill, for reasoning or for
    references, SpatialRefError for a reference that is neither a point nor a box inside the image, and PromptError for
    text that cannot be encoded.
    """

    def __init__(self, config: MoondreamConfig, tokenizer: Tokenizer) -> None:
        self._config = config
        self._tokenizer = tokenizer

    @property
    def skills(self) -> tuple[str, ...]:
        return self._config.tokenizer.skills

    @property
    def max_context(self) -> int:
        return self._config.text.max_context

    @property
    def prefix_length(self) -> int:
        return self._config.prefix_length

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        ids, family = self._config.tokenizer, self._config.family
        return Vocabulary(
            end=ids.eos_id,
            answer=ids.answer_id,
            coordinate=ids.coord_id,
            size=ids.size_id,
            ground_start=ids.start_ground_points_id,
            ground_end=ids.end_ground_id,
            any_id_continues=family.any_id_continues,
            suppressed_in_answer=tuple(getattr(ids, name) for name in family.suppressed_in_answer),
            suppressed_in_reasoning=tuple(getattr(ids, name) for name in family.suppressed_in_reasoning),
        )

    @functools.cached_property
    def path_ids(self) -> PathIds:
        """Ids of paths: stripped, their text is a command letter, an integer of the grid or a minus.

        The public format reads a path id by id in the same way.
        """
        commands, integers, minus = {}, {}, set()
        for token_id in range(self._config.family.controls_to, self._config.text.vocab_size):
            text = self._tokenizer.decode([token_id]).strip()
            if text in _COMMANDS:
                commands[token_id] = text
            elif text == "-":
                minus.add(token_id)
            elif text.isascii() and text.isdecimal() and int(text) <= PATH_GRID:
                integers[token_id] = int(text)
        return PathIds(commands, integers, frozenset(minus))

    def caption(self, length: str) -> tuple[Token, ...]:
        """Return the prompt for a description; SettingsError for an unknown length."""
        if length not in _LENGTHS:
            raise SettingsError(f"caption length {str(length)[:40]!r} is unknown: it is one of {', '.join(_LENGTHS)}")
        templates = self._config.tokenizer.caption
        if length not in templates:
            offered = f"captions of length {', '.join(templates)}" if templates else self._offer()
            raise UnsupportedSkillError(
                f"this checkpoint was not trained for captions of length {length}; it has {offered}"
            )
        return _text(templates[length])

    def query(self, question: str, *, reasoning: bool, refs: Sequence[Sequence[float]]) -> tuple[Token, ...]:
        """Return the prompt for a question, about the locations in `refs` if there are any."""
        template = self._template("query", self._config.tokenizer.query)
        if reasoning and not self._config.tokenizer.reasoning:
            raise UnsupportedSkillError("this checkpoint was not trained for reasoning: ask with reasoning=False")
        suffix = template.reasoning_suffix if reasoning else template.suffix
        return self._prompt(template.prefix, refs, question, suffix)

    def detect(self, subject: str) -> tuple[Token, ...]:
        """Return the prompt for the boxes of an object."""
        template = self._template("detect", self._config.tokenizer.detect)
        return self._prompt(template.prefix, (), " " + subject, template.suffix)

    def point(self, subject: str, *, refs: Sequence[Sequence[float]]) -> tuple[Token, ...]:
        """Return the prompt for the points of an object."""
        template = self._template("point", self._config.tokenizer.point)
        return self._prompt(template.prefix, refs, " " + subject, template.suffix)

    def segment(self, subject: str, *, refs: Sequence[Sequence[float]]) -> tuple[Token, ...]:
        """Return the prompt for the outline of an object."""
        template = self._template("segment", self._config.tokenizer.segment)
        path = self.path_ids
        if not path.integers or not {"M", "m"} & set(path.commands.values()):
            raise UnsupportedSkillError(
                "this checkpoint has a segment prompt, but its tokenizer has no single tokens for path commands and "
                "integers: use the tokenizer.json it was trained with"
            )
        return self._prompt(template.prefix, refs, subject, template.suffix)

    def spell(self, text: str) -> tuple[int, ...]:
        """Encode text as the model writes it, without special ids."""
        return tuple(self._tokenizer.spell(text))

    @property
    def vocab_size(self) -> int:
        return self._config.text.vocab_size

    def pieces(self) -> list[bytes]:
        """Return the bytes of each id; none for one that is special or has no token."""
        return self._tokenizer.pieces(self.vocab_size)

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids; special ones vanish."""
        return self._tokenizer.decode(list(ids))

    def detokenizer(self) -> IncrementalDetokenizer:
        """Return a decoder for a stream of ids."""
        return IncrementalDetokenizer(self._tokenizer)

    def _prompt(
        self, prefix: Iterable[int], refs: Sequence[Sequence[float]], text: str, suffix: Iterable[int]
    ) -> tuple[Token, ...]:
        return (*_text(prefix), *self._references(refs), *_text(self._tokenizer.encode(text)), *_text(suffix))

    def _references(self, refs: Sequence[Sequence[float]]) -> list[Token]:
        """Encode points as two coordinates each, boxes as centre and size."""
        if refs and not self._config.tokenizer.spatial_refs:
            raise UnsupportedSkillError("this checkpoint was not trained for spatial references: ask without them")
        coordinate, size = self._config.tokenizer.coord_id, self._config.tokenizer.size_id
        tokens = []
        for values in map(check_reference, refs):
            x, y = values[:2] if len(values) == 2 else ((values[0] + values[2]) / 2, (values[1] + values[3]) / 2)
            tokens += [Token(coordinate, (x,)), Token(coordinate, (y,))]
            if len(values) == 4:
                tokens.append(Token(size, (values[2] - values[0], values[3] - values[1])))
        return tokens

    def _template(self, skill: str, template: T | None) -> T:
        if template is None:
            raise UnsupportedSkillError(f"this checkpoint was not trained for {skill}; it has {self._offer()}")
        return template

    def _offer(self) -> str:
        return ", ".join(self.skills) or "no skills at all"


def check_reference(ref: Sequence[float]) -> tuple[float, ...]:
    """Return a point (x, y) or a box (x_min, y_min, x_max, y_max), normalised to [0, 1], as floats.

    Raises:
        SpatialRefError: It is neither, lies outside the image, or its corners are swapped.
    """
    what = "a point (x, y) or a box (x_min, y_min, x_max, y_max) with numbers from 0 to 1"
    if isinstance(ref, str | bytes) or not hasattr(ref, "__len__") or not hasattr(ref, "__iter__"):
        raise SpatialRefError(f"spatial reference {str(ref)[:60]!r} is not a list of numbers: give {what}")
    if len(ref) not in (2, 4):
        raise SpatialRefError(f"a spatial reference has {len(ref)} numbers: give {what}")
    if not all(isinstance(value, Real) and not isinstance(value, bool) for value in ref):
        raise SpatialRefError(f"spatial reference {str(list(ref))[:60]} holds what is not a number: give {what}")
    if not all(0 <= value <= 1 for value in ref):  # NaN is not
        shown = str(tuple(map(plain, ref)))[:60]
        raise SpatialRefError(
            f"spatial reference {shown} leaves the image: give {what}; divide pixels by the width and the height"
        )
    values = tuple(float(value) for value in ref)
    if len(values) == 4 and (values[0] > values[2] or values[1] > values[3]):
        raise SpatialRefError(
            f"spatial reference {values} has its corners swapped: give x_min <= x_max, y_min <= y_max"
        )
    return values


def _text(ids: Iterable[int]) -> tuple[Token, ...]:
    return tuple(Token(token_id) for token_id in ids)
