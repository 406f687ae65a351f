"""Properties of any names: what each is about, its value, and its name, for batches.

A question is one with a short answer, about a kind, or about the scene. A property is a cell:

- plain: its name says nothing, so the question and the type of the value decide;
- asked: its name says what of the question's subject is meant, such as its count;
- unknown: no picture tells it;
- mention: its name mentions a kind, which need not be the question's.

B scenes, C cells, N places, V values, M meanings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.nano.questions import mix
from bench.nano.questions.choices import chance, weighted_choice
from bench.nano.questions.layout import NONE, arange, masked, padded, scalar
from bench.nano.questions.mix import COLOUR, EXISTENCE, NAMED_VALUES, PLACE, QUESTIONS, TOTAL
from bench.nano.questions.names import NUMBERS, Answers, Encode
from bench.nano.questions.queries import Queries
from bench.nano.questions.text.language import ZONES
from bench.nano.questions.text.properties import FILLERS, MEANINGS
from bench.nano.questions.typed.choices import AREA, LARGER, POINT, TEXT, first_place, zone_of
from bench.nano.questions.typed.property_names import PropertyNames
from bench.nano.questions.typed.tables import colours_of_kinds
from bench.nano.scenes.batched.compose import Scenes

_CONTEXTS = (*QUESTIONS, "kind", "scene")
KIND, SCENE = len(QUESTIONS), len(QUESTIONS) + 1
"""What questions can be beside `QUESTIONS`."""
PLAIN, ASKED, UNKNOWN, MENTION = range(4)
FLAT, WRAPPED, NESTED = range(3)
"""Properties side by side; in one object inside; in an object for each of several kinds."""


class NamedTexts:
    """Values that are text. `ids` [values, W]; `quoted` [values]; other attributes are first rows of a kind."""

    def __init__(self, encode: Encode, answers: Answers, device: torch.device) -> None:
        plain = [*map(str, range(NUMBERS)), "false", "true", "null"]
        behind = [*(zone for row in ZONES for zone in row), "", *FILLERS.values()]
        width = max(answers.longest, *(len(encode(text)) for text in behind))
        rows = [padded([encode(text) for text in texts], device, width) for texts in (plain, behind)]
        wide = torch.nn.functional.pad(answers.ids, (0, width - answers.longest), value=NONE)
        self.ids = torch.cat((rows[0], wide, rows[1]))
        self.quoted = torch.arange(len(self.ids), device=device) >= len(plain)
        self.number, self.false, self.null, self.answer = 0, NUMBERS, NUMBERS + 2, len(plain)
        self.zone = self.answer + len(answers.ids)
        self.empty = self.zone + len(behind) - 1 - len(FILLERS)
        fillers = [self.empty + 1 + [*FILLERS].index(one) if one in FILLERS else self.empty for one in MEANINGS]
        self.filler = torch.tensor(fillers, device=device)  # by meaning


@dataclass(frozen=True)
class NamedCells:
    text: Tensor  # Row of `NamedTexts`, [B, C]
    type: Tensor  # POINT or AREA where the value is numbers, else TEXT, [B, C]
    instance: Tensor  # Which these numbers describe, [B, C]
    name: Tensor  # Row of `PropertyNames`, [B, C]
    mentioned: Tensor  # The kind that a name mentions, or could, [B, C]

    def ordered(self, order: Tensor) -> "NamedCells":
        """Return the cells in another order, [B, C]."""
        columns = (self.text, self.type, self.instance, self.name, self.mentioned)
        return NamedCells(*(column.gather(1, order) for column in columns))


class CellMaker:
    def __init__(
        self, texts: NamedTexts, answers: Answers, names: PropertyNames, cells: int, device: torch.device
    ) -> None:
        self._texts, self._answers, self._names, self._cells = texts, answers, names, cells
        self._colours = colours_of_kinds(device)
        self._keys = torch.tensor(_key_odds(), device=device)  # [nested, contexts, keys]
        self._meanings = torch.tensor(_meaning_odds(), device=device)  # [keys, contexts, M]
        self._values = torch.tensor(_value_odds(), device=device)  # [keys, contexts, M, V]

    def __call__(
        self, scenes: Scenes, context: Tensor, kind: Tensor, queries: Queries, mentioned: Tensor, shape: Tensor
    ) -> NamedCells:
        """Choose cells. `context` [B]: one of `QUESTIONS`, KIND or SCENE; `kind` [B] of KIND; `mentioned` [B, C]."""
        device, area = context.device, scenes.boxes[..., 2:].prod(2).clamp(min=1e-9).log()[:, None]
        subject, whole = self._subject(context, kind, queries)
        key = self._drawn(self._keys[(shape == NESTED).long(), context][:, None].expand(-1, self._cells, -1))
        of_mention = (key == MENTION) | (shape == NESTED)[:, None]
        context_of = torch.where(of_mention, scalar(KIND, device), context[:, None])
        about = torch.where(of_mention, mentioned, subject[:, None])
        there = (scenes.labels >= 0)[:, None]
        match = (scenes.labels[:, None] == about[..., None]) & there
        match = torch.where((whole[:, None] & ~of_mention)[..., None], there, match)
        count = match.sum(2)
        target, clear = first_place(area, match, LARGER)
        # Beside a thing or at a place may be another one than the largest of its kind.
        named = (context_of == KIND) | (context_of <= QUESTIONS.index(EXISTENCE))
        placed = ((clear & named) | (count <= 1)) & ~(whole[:, None] & ~of_mention)
        meaning = self._drawn(self._meanings[key, context_of])
        # A name that says nothing is no reason to tell that a colour is unknown.
        coloured = (key != PLAIN) | ((self._colours[about] != NONE) & (count > 0))
        odds = self._values[key, context_of, meaning] * _possible(placed, coloured)
        unplaced = odds.sum(2) == 0
        meaning = torch.where(unplaced, scalar(MEANINGS.index("count"), device), meaning)
        value = torch.where(unplaced, scalar(NAMED_VALUES.index("number"), device), self._drawn(odds))
        is_place = (context_of == QUESTIONS.index(PLACE)) & ~of_mention
        holds = (queries.answer == self._answers.no_yes + 1).long()
        count = torch.where(is_place, holds[:, None], count)
        text, blank = self._text(scenes, value, meaning, about, count, target, context_of, queries.answer[:, None])
        type_ = self._type(value, blank)
        name = torch.where(key == MENTION, self._names.mention(meaning, mentioned), self._names(meaning))
        return NamedCells(text, type_, target, name, mentioned)

    def _drawn(self, odds: Tensor) -> Tensor:
        return weighted_choice(odds > 0, odds)

    def _subject(self, context: Tensor, kind: Tensor, queries: Queries) -> tuple[Tensor, Tensor]:
        """Return the kind that a question is about, NONE for another thing, and whether it is about all, [B] each."""
        device = context.device
        names = queries.answer - self._answers.name
        named = masked((names >= 0) & (names < len(self._colours) - 1), names)
        about = torch.where(context <= QUESTIONS.index(EXISTENCE), queries.kind, named)
        about = torch.where(context == KIND, kind, about)
        whole = (context == QUESTIONS.index(TOTAL)) | (context == SCENE)
        silent = whole | (context == QUESTIONS.index(PLACE)) | (context == QUESTIONS.index(COLOUR))
        return torch.where(silent, scalar(NONE, device), about), whole

    def _text(
        self,
        scenes: Scenes,
        value: Tensor,
        meaning: Tensor,
        about: Tensor,
        count: Tensor,
        target: Tensor,
        context: Tensor,
        answer: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Rows of the values as text, and whether there is nothing to tell, [B, C] each."""
        texts, answers, device = self._texts, self._answers, value.device
        count, some = count.clamp(max=NUMBERS - 1), (count > 0).long()
        small = 2 * chance(mix.SMALL_YES_SHARE, value.shape, device).long()
        colour = self._colours[about]
        centre = scenes.boxes[arange(len(about), device)[:, None], target, :2]
        # About a kind there is no answer in words but its name.
        name = texts.answer + answers.name + about.clamp(min=0)
        is_name = context == KIND
        spoken = (answer == answers.no_yes) | (answer == answers.no_yes + 1)
        words = torch.where(is_name, name, texts.answer + answer + small * spoken)
        null, empty, zero = (scalar(row, device).expand_as(value) for row in (texts.null, texts.empty, texts.number))
        rows = {
            "number": texts.number + count,
            "truth": texts.false + some,
            "digits": texts.answer + answers.number + count,
            "yes": texts.answer + answers.no_yes + some + small,
            "name": name,
            "colour": texts.answer + answers.colour + colour.clamp(min=0),
            "zone": texts.zone + zone_of(centre),
            "answer": words,
            "point": null,
            "area": null,
            "empty": empty,
            "null": null,
            "zero": zero,
            "false": texts.false + zero,
            "filler": texts.filler[meaning],
        }
        text = torch.stack([rows[one] for one in NAMED_VALUES], 2).gather(2, value[..., None])[..., 0]
        nothing = count == 0
        silent = torch.where(is_name, nothing, answer == answers.nothing)
        no = {"name": nothing, "zone": nothing, "point": nothing, "area": nothing, "answer": silent}
        no["colour"] = nothing | (colour == NONE)
        false = torch.zeros_like(nothing)
        blank = torch.stack([no.get(one, false) for one in NAMED_VALUES], 2).gather(2, value[..., None])[..., 0]
        numbers = (value == NAMED_VALUES.index("point")) | (value == NAMED_VALUES.index("area"))
        is_null = numbers | chance(mix.BLANK_SHARE, value.shape, device)
        return torch.where(blank, torch.where(is_null, null, empty), text), blank

    def _type(self, value: Tensor, blank: Tensor) -> Tensor:
        point, text, area = (scalar(type_, value.device) for type_ in (POINT, TEXT, AREA))
        kinds = torch.where(value == NAMED_VALUES.index("point"), point, text)
        kinds = torch.where(value == NAMED_VALUES.index("area"), area, kinds)
        return torch.where(blank, text, kinds)


def _possible(placed: Tensor, coloured: Tensor) -> Tensor:
    """Which values can be told, [B, C, V]."""
    needs = {"zone": placed, "point": placed, "area": placed, "colour": coloured}
    yes = torch.ones_like(placed)
    return torch.stack([needs.get(one, yes) for one in NAMED_VALUES], 2)


def _row(odds: Mapping[Any, float], of: tuple[str, ...]) -> list[float]:
    return [float(odds.get(one, 0)) for one in of]


def _key_odds() -> list[list[list[float]]]:
    odds = mix.NAMED_KEY_ODDS
    plain = [odds["scene" if one in (PLACE, "scene") else "question"] for one in _CONTEXTS]
    return [[list(row) for row in plain], [list(odds["nested"]) for _ in plain]]


def _meaning_odds() -> list[list[list[float]]]:
    odds = mix.NAMED_MEANING_ODDS
    asked = {TOTAL: "asked total", COLOUR: "asked colour"}
    by_key = [["nothing" if one == "scene" else "plain" for one in _CONTEXTS]]
    by_key += [[asked.get(one, "asked") for one in _CONTEXTS]]
    by_key += [[group] * len(_CONTEXTS) for group in ("unknown", "mention")]
    return [[_row(odds[group], MEANINGS) for group in groups] for groups in by_key]


def _value_odds() -> list[list[list[list[float]]]]:
    plain = {TOTAL: "plain total", PLACE: "plain place", COLOUR: "only answer", "scene": "plain scene"}

    def group(key: int, context: str, meaning: str) -> str:
        if key == PLAIN:
            return plain.get(context, "plain") if meaning == "plain" or context == "scene" else "only answer"
        if key == ASKED and context == COLOUR:
            return "only answer"
        return "mentioned name" if key == MENTION and meaning == "name" else meaning

    odds, keys = mix.NAMED_VALUE_ODDS, (PLAIN, ASKED, UNKNOWN, MENTION)
    return [
        [[_row(odds[group(key, one, meaning)], NAMED_VALUES) for meaning in MEANINGS] for one in _CONTEXTS]
        for key in keys
    ]
