"""Questions answered with an object whose properties have any names, in any order.

```
flat     {"  banana_count  ":  2  ,"  email  ":"    ","  answer  ":  true  }
             └────── a cell ──────┘
wrapped  {"  result  ":{"  cells  }}
nested   {"  bananas  ":{"  count  ":  2  ,"  color  ":"  yellow  "}  ,"  dog  ":{"  present  ":  false  }}
```

A question about the scene may have its caption as the first or last property. An answer that is too long for its row is
cut.
"""

import random

import torch
from torch import Tensor

from bench.nano.questions import mix
from bench.nano.questions.captions import SHORT, Captions
from bench.nano.questions.choices import Relations, chance, weighted_choice
from bench.nano.questions.grounding import Vocabulary
from bench.nano.questions.layout import (
    ANSWER,
    BOS,
    Part,
    Questions,
    arange,
    join_parts,
    masked,
    padded,
    scalar,
    token,
)
from bench.nano.questions.names import random_below
from bench.nano.questions.queries import QueryMaker
from bench.nano.questions.text.properties import MEANINGS
from bench.nano.questions.typed.cells import KIND, NESTED, SCENE, WRAPPED, CellMaker, NamedCells, NamedTexts
from bench.nano.questions.typed.choices import TEXT, natives
from bench.nano.questions.typed.property_names import PropertyNames
from bench.nano.questions.typed.tables import punctuation
from bench.nano.scenes.batched.compose import Scenes

CELLS = 5
"""Most properties, a caption aside."""


class NamedMaker:
    def __init__(self, vocabulary: Vocabulary, captions: Captions, rng: random.Random, device: torch.device) -> None:
        self._vocabulary, self._captions = vocabulary, captions
        encode, answers = vocabulary.encode, vocabulary.answers
        self._names = PropertyNames(encode, rng, device)
        self._texts = NamedTexts(encode, answers, device)
        self._cells = CellMaker(self._texts, answers, self._names, CELLS, device)
        self._queries = QueryMaker(vocabulary.names, vocabulary.wording, answers, [mix.NAMED_QUERIES], device)
        self._prefix = padded([vocabulary.prompts["query"]["prefix"]], device)
        self._sources = torch.tensor(mix.NAMED_SOURCE_ODDS, device=device)
        self._shapes = torch.tensor(mix.NAMED_SHAPE_ODDS, device=device)
        runs = [punctuation(encode, device, *pair) for pair in ((',"', '","'), ('":', '":"'), ("}", '"}'))]
        self._comma, self._colon, self._close = runs  # rows: for a number and for a string
        self._open, self._quote = (punctuation(encode, device, run) for run in ('{"', '"'))
        self._inside = torch.cat((self._colon[:1], self._open), 1)
        self._bare = scalar(MEANINGS.index("name"), device)

    def longest(self) -> int:
        """Most tokens of a question with its frame and the shortest answer."""
        wording = self._vocabulary.wording
        asked = max(wording.longest("typed"), *(self._queries.longest(question) for question in mix.NAMED_QUERIES))
        return self._prefix.shape[1] + asked + 1 + 6

    def __call__(self, scenes: Scenes, relations: Relations, kinds: Tensor) -> Questions:
        """Ask every scene one question; `kinds` [1 + CELLS, B] are what may be asked for, and mentioned."""
        batch, device = kinds.shape[1], kinds.device
        queries = self._queries(scenes, relations, kinds[:1])
        source = self._drawn(self._sources, batch)
        context = torch.where(source == 0, queries.question, scalar(KIND, device))
        context = torch.where(source == 2, scalar(SCENE, device), context)
        shape = self._drawn(self._shapes, batch)
        paired = (shape == NESTED) & chance(mix.PAIRED_SHARE, (batch,), device)
        cell = arange(CELLS, device)
        # Neighbours in an object are about the same kind.
        begins = (shape == NESTED)[:, None] & ~(paired[:, None] & (cell % 2 == 1))
        mentioned = kinds[1:].T
        mentioned = torch.where(begins | ~paired[:, None], mentioned, mentioned.roll(1, 1))
        cells = self._cells(scenes, context, kinds[0], queries, mentioned, shape)
        captioned = (context == SCENE) & (shape != NESTED) & chance(mix.CAPTION_SHARE, (batch,), device)
        alone = chance(mix.ALONE_SHARE, (batch,), device)
        count = torch.where(alone, (~captioned).long(), 1 + random_below(torch.full_like(context, CELLS)))
        used = (cell < count[:, None]) & self._distinct(cells, shape, paired)
        order = (~used).int().argsort(dim=1, stable=True)
        cells, begins, used = cells.ordered(order), begins.gather(1, order), used.gather(1, order)
        words = self._words(context, kinds[0])
        asks = (source == 0)[:, None]
        assert queries.reference.values is not None
        reference = Part(masked(asks, queries.reference.ids), queries.reference.values)
        prompt = [
            Part(self._prefix.expand(batch, -1)),
            reference,
            Part(masked(asks, queries.words)),
            Part(masked(~asks, words)),
            Part(token(ANSWER, words)),
        ]
        return join_parts([*prompt, *self._answer(scenes, cells, used, begins, shape, captioned)], mix.LENGTHS["named"])

    def _drawn(self, odds: Tensor, batch: int) -> Tensor:
        return weighted_choice(torch.ones_like(odds, dtype=torch.bool).expand(batch, -1), odds)

    def _words(self, context: Tensor, kind: Tensor) -> Tensor:
        wording, device = self._vocabulary.wording, context.device
        scene, about = (scalar(wording.group[name], device) for name in ("typed list", "typed about"))
        return wording(torch.where(context == KIND, about, scene), self._vocabulary.names(kind))

    def _distinct(self, cells: NamedCells, shape: Tensor, paired: Tensor) -> Tensor:
        """Which cells have another name than those before them, or, where nested, are of another kind, [B, C]."""
        names = self._names.ids[cells.name]
        alike = (names[:, :, None] == names[:, None]).all(3)
        kind = cells.mentioned[:, :, None] == cells.mentioned[:, None]
        place = arange(CELLS, names.device)
        together = paired[:, None, None] & (place // 2 == (place // 2)[:, None])
        alike = torch.where((shape == NESTED)[:, None, None], torch.where(together, alike, kind), alike)
        distinct = ~alike.tril(-1).any(2)
        # The second of a pair goes with the first.
        return distinct & (distinct.roll(1, 1) | ~(paired[:, None] & (place % 2 == 1)))

    def _answer(
        self, scenes: Scenes, cells: NamedCells, used: Tensor, begins: Tensor, shape: Tensor, captioned: Tensor
    ) -> list[Part]:
        forced, wrapped, some = mix.FORCED_WEIGHT, shape == WRAPPED, used.any(1)
        early = captioned & chance(0.5, captioned.shape, captioned.device)
        late = captioned & ~early
        quoted = self._texts.quoted[cells.text] & (cells.type == TEXT) & used
        last = (used.sum(1) - 1).clamp(min=0)
        closes = (shape == NESTED)[:, None] & used & torch.cat((begins[:, 1:] | ~used[:, 1:], used[:, :1] | True), 1)
        open_quote = quoted & ~closes
        ends_open = torch.where(some, open_quote.gather(1, last[:, None])[:, 0], early)
        always = some | True
        caption = self._caption(scenes)
        return [
            _part(always, self._open, mix.BEGUN_WEIGHT),
            *self._outer(wrapped),
            _named_caption(early, caption),
            self._body(scenes, cells, used, begins, closes, quoted, early),
            _part(late & some, self._comma[ends_open.long()], 1.0),
            _named_caption(late, caption),
            _part(always, self._close[(ends_open | late).long()], 1.0),
            _part(wrapped, self._close[:1], forced),
            _part(always, token(BOS, always), forced),
        ]

    def _body(
        self,
        scenes: Scenes,
        cells: NamedCells,
        used: Tensor,
        begins: Tensor,
        closes: Tensor,
        quoted: Tensor,
        early: Tensor,
    ) -> Part:
        """Lay the cells side by side; `early`: behind a caption."""
        device, forced, name = used.device, mix.FORCED_WEIGHT, mix.NAME_WEIGHT
        before = torch.cat((early[:, None], (quoted & ~closes)[:, :-1]), 1).long()
        further = used & ((arange(CELLS, device) > 0) | early[:, None])
        apart = quoted & chance(mix.APART_SHARE, used.shape, device)
        outer = self._names.ids[self._names.mention(self._bare.expand_as(cells.mentioned), cells.mentioned)]
        text, values = used & (cells.type == TEXT), self._texts.ids[cells.text]
        counts = text & (cells.text < self._texts.false)
        numbers, places = natives(scenes, cells.type, cells.instance, used)
        columns = [
            (masked(further[..., None], self._comma[before]), 1.0),
            (masked(begins[..., None] & used[..., None], outer), name),
            (masked(begins[..., None] & used[..., None], self._inside.expand(*used.shape, -1)), forced),
            (masked(used[..., None], self._names.ids[cells.name]), name),
            (masked(used[..., None], self._colon[(quoted & ~apart).long()]), forced),
            (masked(apart[..., None], self._quote.expand(*used.shape, -1)), forced),
            (masked(counts[..., None], values[..., :1]), mix.TYPED_COUNT_WEIGHT),
            (masked((text & ~counts)[..., None], values), 1.0),
            (numbers, 1.0),
            (masked(closes[..., None], self._close[quoted.long()]), 1.0),
        ]
        ids = torch.cat([ids for ids, _ in columns], 2)
        weight = tuple(weight for ids, weight in columns for _ in range(ids.shape[2]))
        zeros = torch.zeros((), device=device).expand(*used.shape, 1, 2)
        values = torch.cat((zeros.expand(-1, -1, ids.shape[2] - numbers.shape[2] - 1, -1), places, zeros), 2)
        return Part(ids.flatten(1), values.flatten(1, 2), weight * CELLS)

    def _outer(self, wrapped: Tensor) -> list[Part]:
        plain = scalar(MEANINGS.index("plain"), wrapped.device).expand_as(wrapped)
        name = self._names.ids[self._names(plain)]
        return [_part(wrapped, name, mix.NAME_WEIGHT), _part(wrapped, self._inside, mix.FORCED_WEIGHT)]

    def _caption(self, scenes: Scenes) -> tuple[Tensor, Tensor]:
        """A property that holds the scene's short caption, up to its last quote, and the weights of its ids."""
        batch, device = len(scenes.labels), scenes.labels.device
        caption, plain = (scalar(MEANINGS.index(one), device).expand(batch) for one in ("caption", "plain"))
        meaning = torch.where(chance(mix.PLAIN_CAPTION_SHARE, (batch,), device), plain, caption)
        name = self._names.ids[self._names(meaning)]
        colon = self._colon[1:].expand(batch, -1)
        _, text = self._captions(scenes, scalar(SHORT, device).expand(batch), mix.LENGTHS["named"])
        parts = Part(name, weight=mix.NAME_WEIGHT), Part(colon, weight=mix.FORCED_WEIGHT), text
        return torch.cat([part.ids for part in parts], 1), torch.cat([part.weights for part in parts], 1)


def _named_caption(where: Tensor, caption: tuple[Tensor, Tensor]) -> Part:
    return Part(masked(where[:, None], caption[0]), weight=caption[1])


def _part(where: Tensor, ids: Tensor, weight: float) -> Part:
    """Return ids [B or 1, W] in the rows in which they are written, [B]."""
    return Part(masked(where[:, None], ids), weight=weight)
