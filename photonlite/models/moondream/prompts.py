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

from photonlite.errors import SettingsError, SpatialRefError, UnsupportedSkillError
from photonlite.grammar.decoding.grammars import PATH_GRID, PathIds, Vocabulary
from photonlite.grammar.prompts import Conversations, InlineImages
from photonlite.models.moondream.config import MoondreamConfig, Template
from photonlite.models.prompting import TokenizedText
from photonlite.models.tokenizer import Tokenizer
from photonlite.request import Token
from photonlite.settings import plain

_LENGTHS = ("short", "normal", "long")
_COMMANDS = frozenset("MmLlHhVvCcSsQqTtZz")


class MoondreamPrompts(TokenizedText):
    """Encodes prompts for one checkpoint and decodes its text.

    Prompts raise UnsupportedSkillError for what the checkpoint was not trained for, SpatialRefError for an invalid
    reference, and PromptError for text that cannot be encoded.
    """

    def __init__(self, config: MoondreamConfig, tokenizer: Tokenizer) -> None:
        self._family, self._ids, self._tokenizer = config.family, config.tokenizer, tokenizer
        self.skills = config.tokenizer.skills
        self.inline: InlineImages | None = None
        self.conversations: Conversations | None = None
        self.max_context = config.text.max_context
        self.prefix_length = config.prefix_length
        self.vocab_size = config.text.vocab_size

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        ids, family = self._ids, self._family

        def suppressed(names: tuple[str, ...]) -> tuple[int, ...]:
            return tuple(getattr(ids, name) for name in names) if ids.suppress else ()

        return Vocabulary(
            end=ids.eos_id,
            answer=ids.answer_id,
            coordinate=ids.coord_id,
            size=ids.size_id,
            ground_start=ids.start_ground_points_id,
            ground_end=ids.end_ground_id,
            any_id_continues=family.any_id_continues,
            suppressed_in_answer=suppressed(family.suppressed_in_answer),
            suppressed_in_reasoning=suppressed(family.suppressed_in_reasoning),
            never_in_text=self._never_in_text(),
        )

    def _never_in_text(self) -> tuple[int, ...]:
        texts = self._ids.never_in_text
        if not texts:
            return ()
        ids = range(self._family.controls_to, self.vocab_size)
        return tuple(one for one in ids if any(text in self._tokenizer.decode([one]) for text in texts))

    @functools.cached_property
    def path_ids(self) -> PathIds:
        """Ids of paths: stripped, their text is a command letter, an integer of the grid or a minus."""
        commands, integers, minus = {}, {}, set()
        for token_id in range(self._family.controls_to, self.vocab_size):
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
        templates = self._ids.caption
        if length not in templates:
            offered = f"captions of length {', '.join(templates)}" if templates else self._offer()
            raise UnsupportedSkillError(
                f"this checkpoint was not trained for captions of length {length}; it has {offered}"
            )
        return _text(templates[length])

    def query(
        self, question: str, *, reasoning: bool, refs: Sequence[Sequence[float]], images: int = 1
    ) -> tuple[Token, ...]:
        """Return the prompt for a question; the image, if there is one, stands before it."""
        return self._prompt("query", question, refs, reasoning=reasoning)

    def detect(self, subject: str) -> tuple[Token, ...]:
        return self._prompt("detect", " " + subject)

    def point(self, subject: str, *, refs: Sequence[Sequence[float]]) -> tuple[Token, ...]:
        return self._prompt("point", " " + subject, refs)

    def segment(self, subject: str, *, refs: Sequence[Sequence[float]]) -> tuple[Token, ...]:
        if self._ids.segment and not (self.path_ids.integers and {"M", "m"} & set(self.path_ids.commands.values())):
            raise UnsupportedSkillError(
                "this checkpoint has a segment prompt, but its tokenizer has no single tokens for path commands and "
                "integers: use the tokenizer.json it was trained with"
            )
        return self._prompt("segment", subject, refs)

    def _prompt(
        self, skill: str, text: str, refs: Sequence[Sequence[float]] = (), *, reasoning: bool = False
    ) -> tuple[Token, ...]:
        template: Template | None = getattr(self._ids, skill)
        if template is None:
            raise UnsupportedSkillError(f"this checkpoint was not trained for {skill}; it has {self._offer()}")
        if reasoning and not self._ids.reasoning:
            raise UnsupportedSkillError("this checkpoint was not trained for reasoning: ask with reasoning=False")
        if refs and not self._ids.spatial_refs:
            raise UnsupportedSkillError("this checkpoint was not trained for spatial references: ask without them")
        places = [token for ref in refs for token in self._reference(check_reference(ref))]
        suffix = template.reasoning_suffix if reasoning else template.suffix
        return (*_text(template.prefix), *places, *_text(self._tokenizer.encode(text)), *_text(suffix))

    def _reference(self, values: tuple[float, ...]) -> list[Token]:
        """Encode a point as two coordinates, a box as its centre and its size."""
        coordinate, size = self._ids.coord_id, self._ids.size_id
        if len(values) == 2:
            return [Token(coordinate, (value,)) for value in values]
        left, top, right, bottom = values
        centre = ((left + right) / 2, (top + bottom) / 2)
        return [*(Token(coordinate, (value,)) for value in centre), Token(size, (right - left, bottom - top))]

    def _offer(self) -> str:
        return ", ".join(self.skills) or "no skills at all"


def check_reference(ref: Sequence[float]) -> tuple[float, ...]:
    """Return a point (x, y) or a box (x_min, y_min, x_max, y_max) in [0, 1] as floats; SpatialRefError otherwise."""
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
