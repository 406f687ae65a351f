"""Questions answered with JSON in which coordinate and size tokens stand for numbers.

```
prompt  {"  fruit  ":"  banana  ","  count  ":  3  ,"  box  ":  c c s  }
        run  key  run    value                                native    run
           └─────── a cell ──────┘
```

An answer is its cells side by side, at most `CELLS` of them: item after item, property after property. An answer
that is too long for its row is cut; its beginning still counts in the loss.
"""

from functools import partial

import torch
from torch import Tensor

from bench.nano.questions import mix
from bench.nano.questions.choices import Relations, chance
from bench.nano.questions.grounding import Vocabulary
from bench.nano.questions.layout import ANSWER, BOS, Part, Questions, arange, join_parts, masked, padded, scalar, token
from bench.nano.questions.names import random_below
from bench.nano.questions.typed.choices import TEXT, TopicChooser, TypedTopic, TypedTruth, TypedValues, natives
from bench.nano.questions.typed.tables import About, Form, Keys, Property, Values, punctuation
from bench.nano.scenes.batched.compose import Scenes

CELLS = 36


class TypedMaker:
    def __init__(self, vocabulary: Vocabulary, device: torch.device) -> None:
        self._vocabulary, encode = vocabulary, vocabulary.encode
        self._choose = TopicChooser(device)
        self._values, self._keys = Values(encode, device), Keys(encode, device)
        self._truth = TypedTruth(self._values, self._choose.colours)
        self._prefix = padded([vocabulary.prompts["query"]["prefix"]], device)
        runs = partial(punctuation, encode, device)
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
        return join_parts(parts, mix.LENGTHS["typed"])

    def _words(self, topic: TypedTopic) -> Tensor:
        names, device = self._vocabulary.names, topic.form.device
        boxes = topic.has(Property.BOX) & chance(mix.BOXES_SHARE, topic.form.shape, device) & (topic.form >= Form.LIST)
        count = topic.has(Property.COUNT) & ~(topic.form >= Form.LIST)
        main = chance(mix.MAIN_SHARE, topic.form.shape, device) & ~topic.counts_all & (topic.about == About.SCENE)
        main = (main & (topic.form == Form.OBJECT)) | ((topic.form == Form.SCALAR) & (topic.about == About.SCENE))
        case = torch.where(boxes | main, scalar(1, device), scalar(0, device))
        only_value = topic.form == Form.SCALAR
        case = torch.where(only_value & count, scalar(2, device), case)
        case = torch.where(only_value & topic.has(Property.PRESENT), scalar(3, device), case)
        group = self._group[topic.form, topic.about, case]
        of_group = topic.about == About.GROUP
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
        bare = (topic.form == Form.SCALAR) | (topic.form == Form.BARE)
        keyed = there & ~bare[:, None]
        first, further = place == 0, (cell > 0) & there
        apart = chance(mix.APART_SHARE, keyed.shape, device)
        values, counts = self._values.ids[row], text & (row < self._values.false)
        keys = self._property(topic).gather(1, place[..., None].expand(-1, -1, self._keys.ids.shape[2]))
        numbers, places = natives(scenes, type_, instance, there)
        columns = [
            (masked((further & first)[..., None], self._next[2 * bare[:, None].long() + last]), 1.0),
            (masked((further & ~first)[..., None], self._comma[last]), mix.FORCED_WEIGHT),
            (masked(keyed[..., None], keys), mix.FORCED_WEIGHT),
            (masked(keyed[..., None], self._colon[quoted * ~apart]), mix.FORCED_WEIGHT),
            (masked((keyed & apart & (quoted > 0))[..., None], self._quote[0]), mix.FORCED_WEIGHT),
            (masked((there & counts)[..., None], values[..., :1]), mix.TYPED_COUNT_WEIGHT),
            (masked((there & text & ~counts)[..., None], values), 1.0),
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
        sided = (topic.about == About.OUTER)[:, None] & (role >= Property.LEFT) & (role < Property.LEFT + 4)
        called = (topic.about == About.CALLED)[:, None] & (role == Property.NAME) & (topic.form == Form.OBJECT)[:, None]
        lot = torch.where(sided, keys.outer + role - Property.LEFT, role)
        return self._drawn(torch.where(called, keys.group + topic.group[:, None], lot))

    def _drawn(self, lot: Tensor) -> Tensor:
        return self._keys.ids[lot, random_below(self._keys.sizes[lot])]

    def _opening(self, scenes: Scenes, topic: TypedTopic, quoted: Tensor, count: Tensor) -> list[Part]:
        device, batch = quoted.device, len(quoted)
        single, way = topic.single, 2 * topic.objects + quoted
        inside = torch.where(count > 0, way, scalar(4, device))
        apart = chance(mix.APART_SHARE, inside.shape, device) & (count > 0)
        top = ~single & ~topic.wrapped
        inner = ~single & topic.wrapped
        counted, forced = inner & topic.counted, mix.FORCED_WEIGHT
        of_kind = (topic.about == About.KIND) | (topic.about == About.GROUP)
        total = torch.where(of_kind, topic.match.sum(1), (scenes.labels >= 0).sum(1))
        names = (topic.form == Form.BARE) & topic.has(Property.NAME)
        lot = self._keys.lists + (topic.form == Form.BARE).long() * (2 - names.long())
        lot = torch.where(topic.about == About.CALLED, self._keys.groups + topic.group, lot)
        called = (topic.about == About.KIND) & (topic.kind >= 0) & chance(mix.KIND_LIST_SHARE, lot.shape, device)
        lot = torch.where(called, self._keys.kinds + topic.kind.clamp(min=0), lot)
        return [
            _part(single, self._open[way], mix.BEGUN_WEIGHT),
            _part(top, self._top[inside * ~apart], mix.BEGUN_LIST_WEIGHT),
            _part(top & apart, self._begun[inside], forced),
            _part(inner, self._key, mix.BEGUN_WEIGHT),
            _part(counted, self._drawn(scalar(Property.COUNT, device).expand(batch)), forced),
            _part(counted, self._colon[:1], forced),
            _part(counted, self._values.ids[self._values.number + total], mix.TYPED_COUNT_WEIGHT),
            _part(counted, self._comma[:1], forced),
            _part(inner, self._drawn(lot), forced),
            _part(inner, self._inner[inside * ~apart], 1.0),
            _part(inner & apart, self._begun[inside], forced),
        ]

    def _closing(self, topic: TypedTopic, quoted: Tensor, count: Tensor) -> list[Part]:
        way = 2 * topic.objects + quoted
        whole = count * topic.properties <= CELLS
        return [
            _part(topic.single & whole, self._close[way], mix.FORCED_WEIGHT),
            _part(~topic.single & (count > 0) & whole, self._end[way + 4 * topic.wrapped.long()], 1.0),
            _part(whole, token(BOS, whole), mix.FORCED_WEIGHT),
        ]


def _part(where: Tensor, ids: Tensor, weight: float) -> Part:
    """Return ids [B or 1, W] in the rows in which they are written, [B]."""
    return Part(masked(where[:, None], ids), weight=weight)


def _groups(vocabulary: Vocabulary, device: torch.device) -> Tensor:
    """Return how questions are worded: groups of `Wording` by form, by what they are about, and by case.

    The cases: plainly, about the largest or with boxes, and of values alone: how many, whether there is one.
    """
    number_of = vocabulary.wording.group
    scene, kind, group = About.SCENE, About.KIND, About.GROUP
    one = {scene: ("scene", "main"), kind: ("kind", "kind"), group: ("group", "group")}
    several = {scene: ("list", "list boxes"), kind: ("kind list", "kind boxes"), group: ("group list", "group boxes")}
    value = one | {kind: ("kind place", "kind place")}
    counts = {scene: "total", kind: "count", group: "count"}
    table = torch.zeros(len(Form), len(About), 4, dtype=torch.long)
    for form, groups in ((Form.SCALAR, value), (Form.OBJECT, one), (Form.LIST, several), (Form.BARE, several)):
        for about in About:
            asked = about if about in groups else scene
            names = [f"typed {name}" for name in groups[asked]]
            table[form, about] = torch.tensor([number_of[name] for name in (*names, counts[asked], "existence")])
    return table.to(device)
