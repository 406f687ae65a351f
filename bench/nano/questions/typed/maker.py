"""Questions answered with JSON in which coordinate and size tokens stand for numbers.

```
prompt  {"  fruit  ":"  banana  ","  count  ":  3  ,"  box  ":  c c s  }
        run  key  run    value                                native    run
           └─────── a cell ──────┘
```

An answer is its cells side by side, at most `CELLS` of them: item after item, property after property. An answer
that is too long for its row is cut; its beginning still counts in the loss.
"""

import torch
from torch import Tensor

from bench.nano.questions.choices import Relations, chance
from bench.nano.questions.grounding import Vocabulary
from bench.nano.questions.layout import ANSWER, BOS, Part, Questions, arange, join_parts, masked, padded, scalar, token
from bench.nano.questions.names import random_below
from bench.nano.questions.typed.choices import TEXT, TopicChooser, TypedTopic, TypedTruth, TypedValues, natives
from bench.nano.questions.typed.tables import (
    BARE,
    BOX,
    CALLED,
    COUNT,
    GROUP,
    KIND,
    LEFT,
    LIST,
    NAME,
    OBJECT,
    OUTER,
    PRESENT,
    SCALAR,
    SCENE,
    Keys,
    Runs,
    Values,
)
from bench.nano.scenes.batched.compose import Scenes

TYPED_LENGTH = 128
CELLS = 24
_FORCED = 0.2
"""What weighs a token that the grammar forces, or nearly so; one that decides something weighs 1."""
_BEGUN, _BEGUN_LIST = 0.02, 0.3
"""Without a grammar the same questions are answered in words: how JSON begins is to be left to the grammar. Whether a
list is empty is not."""
_MAIN_SHARE, _BOXES_SHARE = 0.45, 0.6
_APART = 0.4
"""Share of the strings, and of the lists of strings or objects, that begin with a quote or a brace of their own: where
the model took a property for a number and the schema wants a string, the colon has been written alone."""


class TypedMaker:
    def __init__(self, vocabulary: Vocabulary, device: torch.device) -> None:
        self._vocabulary, encode = vocabulary, vocabulary.encode
        self._choose = TopicChooser(device)
        self._values, self._keys = Values(encode, device), Keys(encode, device)
        self._truth = TypedTruth(self._values, self._choose.colours)
        self._prefix = padded([vocabulary.prompts["query"]["prefix"]], device)
        runs = Runs(encode, device)
        # Rows of each table: for a number and for a string beside it.
        self._colon, self._comma = runs('":', '":"'), runs(',"', '","')
        self._quote, self._begun = runs('"'), runs("", '"', '{"', '{"', "")  # the second half of what is written apart
        self._next = runs('},{"', '"},{"', ",", '","')  # of objects, of values
        self._open = runs("", '"', '{"', '{"')  # a value, an object
        self._top = runs("[", '["', '[{"', '[{"', "[]")
        self._key, self._inner = runs('{"'), runs('":[', '":["', '":[{"', '":[{"', '":[]}')
        self._close = runs("", '"', "}", '"}')
        self._end = runs("]", '"]', "}]", '"}]', "]}", '"]}', "}]}", '"}]}')
        self._group = _groups(vocabulary, device)

    def longest(self) -> int:
        """Most tokens of a question with its frame, and of the answer's first cell."""
        asked = max(self._vocabulary.wording.longest(name) for name in ("typed", "count", "existence", "total"))
        key, value = self._keys.ids.shape[2], self._values.ids.shape[1]
        return self._prefix.shape[1] + asked + 1 + 6 + 2 * key + value

    def __call__(self, scenes: Scenes, relations: Relations, kind: Tensor) -> Questions:
        """Ask every scene one question; `kind` [B] is what may be asked for."""
        topic = self._choose(scenes, relations, kind)
        truth = self._truth(scenes, relations, topic)
        words = self._words(topic)
        prompt = [self._prefix.expand(len(words), -1), words, token(ANSWER, words)]
        parts = [Part(ids) for ids in prompt] + self._answer(scenes, topic, truth)
        return join_parts(parts, TYPED_LENGTH)

    def _words(self, topic: TypedTopic) -> Tensor:
        names, device = self._vocabulary.names, topic.form.device
        boxes = topic.has(BOX) & chance(_BOXES_SHARE, topic.form.shape, device) & (topic.form >= LIST)
        count = topic.has(COUNT) & ~(topic.form >= LIST)
        main = chance(_MAIN_SHARE, topic.form.shape, device) & ~topic.counts_all & (topic.about == SCENE)
        main = (main & (topic.form == OBJECT)) | ((topic.form == SCALAR) & (topic.about == SCENE))
        case = torch.where(boxes | main, scalar(1, device), scalar(0, device))
        only_value = topic.form == SCALAR
        case = torch.where(only_value & count, scalar(2, device), case)
        case = torch.where(only_value & topic.has(PRESENT), scalar(3, device), case)
        group = self._group[topic.form, topic.about, case]
        of_group = topic.about == GROUP
        return self._vocabulary.wording(
            group, torch.where(of_group, names.groups + topic.group, names(torch.where(of_group, 0, topic.kind)))
        )

    def _answer(self, scenes: Scenes, topic: TypedTopic, truth: TypedValues) -> list[Part]:
        rows, count = truth.rows, truth.count
        device, batch = rows.device, len(rows)
        cell = arange(CELLS, device)
        item, place = cell // topic.properties[:, None], cell % topic.properties[:, None]  # [B, CELLS]
        role = topic.roles.gather(1, place)
        there = item < count[:, None]
        at = item.clamp(max=rows.shape[1] - 1) * rows.shape[2] + role
        row, instance = rows.flatten(1).gather(1, at), truth.seen.flatten(1).gather(1, at)
        type_ = truth.type.gather(1, role)
        text = type_ == TEXT
        quoted = (self._values.quoted[row] & text).long()
        last = torch.cat((torch.zeros_like(quoted[:, :1]), quoted[:, :-1]), 1)
        bare = (topic.form == SCALAR) | (topic.form == BARE)
        keyed = there & ~bare[:, None]
        first, further = place == 0, (cell > 0) & there
        apart = chance(_APART, keyed.shape, device)
        values = self._values.ids[row]
        keys = self._property(topic).gather(1, place[..., None].expand(-1, -1, self._keys.ids.shape[2]))
        numbers, places = natives(scenes, type_, instance, there)
        columns = [
            (masked((further & first)[..., None], self._next[2 * bare[:, None].long() + last]), 1.0),
            (masked((further & ~first)[..., None], self._comma[last]), _FORCED),
            (masked(keyed[..., None], keys), _FORCED),
            (masked(keyed[..., None], self._colon[quoted * ~apart]), _FORCED),
            (masked((keyed & apart & (quoted > 0))[..., None], self._quote[0]), _FORCED),
            (masked((there & text)[..., None], values), 1.0),
            (numbers, 1.0),
        ]
        ids = torch.cat([ids for ids, _ in columns], 2)
        weight = tuple(weight for ids, weight in columns for _ in range(ids.shape[2]))
        zeros = torch.zeros((), device=device).expand(batch, CELLS, ids.shape[2] - numbers.shape[2], 2)
        cells = Part(ids.flatten(1), torch.cat((zeros, places), 2).flatten(1, 2), weight * CELLS)
        ended = there.sum(1) - 1
        ending = quoted.gather(1, ended.clamp(min=0)[:, None])[:, 0] * (ended >= 0)
        return [*self._opening(scenes, topic, quoted[:, 0], count), cells, *self._closing(topic, ending, count)]

    def _property(self, topic: TypedTopic) -> Tensor:
        role, keys = topic.roles, self._keys
        sided = (topic.about == OUTER)[:, None] & (role >= LEFT) & (role < LEFT + 4)
        called = (topic.about == CALLED)[:, None] & (role == NAME) & (topic.form == OBJECT)[:, None]
        lot = torch.where(sided, keys.outer + role - LEFT, role)
        return self._drawn(torch.where(called, keys.group + topic.group[:, None], lot))

    def _drawn(self, lot: Tensor) -> Tensor:
        return self._keys.ids[lot, random_below(self._keys.sizes[lot])]

    def _opening(self, scenes: Scenes, topic: TypedTopic, quoted: Tensor, count: Tensor) -> list[Part]:
        device, batch = quoted.device, len(quoted)
        single, objects = topic.single, ((topic.form == OBJECT) | (topic.form == LIST)).long()
        way = 2 * objects + quoted
        inside = torch.where(count > 0, way, scalar(4, device))
        apart = chance(_APART, inside.shape, device) & (count > 0)
        top = ~single & ~topic.wrapped
        inner = ~single & topic.wrapped
        counted_first = inner & topic.counted
        of_kind = (topic.about == KIND) | (topic.about == GROUP)
        total = torch.where(of_kind, topic.match.sum(1), (scenes.labels >= 0).sum(1))
        names = (topic.form == BARE) & topic.has(NAME)
        lot = self._keys.lists + (topic.form == BARE).long() * torch.where(names, scalar(1, device), scalar(2, device))
        lot = torch.where(topic.about == CALLED, self._keys.groups + topic.group, lot)
        return [
            Part(masked(single[:, None], self._open[way]), weight=_BEGUN),
            Part(masked(top[:, None], self._top[inside * ~apart]), weight=_BEGUN_LIST),
            Part(masked((top & apart)[:, None], self._begun[inside]), weight=_FORCED),
            Part(masked(inner[:, None], self._key.expand(batch, -1)), weight=_BEGUN),
            Part(masked(counted_first[:, None], self._drawn(scalar(COUNT, device).expand(batch))), weight=_FORCED),
            Part(masked(counted_first[:, None], self._colon[:1].expand(batch, -1)), weight=_FORCED),
            Part(masked(counted_first[:, None], self._values.ids[self._values.number + total]), weight=1.0),
            Part(masked(counted_first[:, None], self._comma[:1].expand(batch, -1)), weight=_FORCED),
            Part(masked(inner[:, None], self._drawn(lot)), weight=_FORCED),
            Part(masked(inner[:, None], self._inner[inside * ~apart]), weight=1.0),
            Part(masked((inner & apart)[:, None], self._begun[inside]), weight=_FORCED),
        ]

    def _closing(self, topic: TypedTopic, quoted: Tensor, count: Tensor) -> list[Part]:
        objects = ((topic.form == OBJECT) | (topic.form == LIST)).long()
        whole = count * topic.properties <= CELLS
        way = 2 * objects + quoted
        ends = masked((~topic.single & (count > 0) & whole)[:, None], self._end[way + 4 * topic.wrapped.long()])
        return [
            Part(masked((topic.single & whole)[:, None], self._close[way]), weight=_FORCED),
            Part(ends, weight=1.0),
            Part(masked(whole[:, None], token(BOS, ends)), weight=_FORCED),
        ]


def _groups(vocabulary: Vocabulary, device: torch.device) -> Tensor:
    """Return how questions are worded: groups of `Wording` by form, by what they are about, and by case.

    The cases: plainly, about the largest or with boxes, and of values alone: how many, whether there is one.
    """
    number_of = vocabulary.wording.group
    one = {SCENE: ("scene", "main"), KIND: ("kind", "kind"), GROUP: ("group", "group")}
    several = {SCENE: ("list", "list boxes"), KIND: ("kind list", "kind boxes"), GROUP: ("group list", "group boxes")}
    value = {SCENE: ("scene", "main"), KIND: ("kind place", "kind place"), GROUP: ("group", "group")}
    counts = {SCENE: "total", KIND: "count", GROUP: "count"}
    table = torch.zeros(4, 5, 4, dtype=torch.long)
    for form, groups in ((SCALAR, value), (OBJECT, one), (LIST, several), (BARE, several)):
        for about in range(5):
            asked = about if about in groups else SCENE
            names = [f"typed {name}" for name in groups[asked]]
            table[form, about] = torch.tensor([number_of[name] for name in (*names, counts[asked], "existence")])
    return table.to(device)
