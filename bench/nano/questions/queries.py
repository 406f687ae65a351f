"""Questions with short answers: choice, wording and answer of each row.

Several slots are made at once: S slots of B scenes each. A question that a scene does not allow is replaced by another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.nano.questions import mix
from bench.nano.questions.choices import Colours, Relations, chance, random_true, weighted_choice
from bench.nano.questions.layout import COORD, NONE, SIZE, Part, arange, masked, scalar
from bench.nano.questions.mix import COLOUR, COMPARISON, COUNT, EXISTENCE, PLACE, QUESTIONS, REFERENCE, RELATION, Mix
from bench.nano.questions.names import Answers, Names
from bench.nano.questions.wording import Wording
from bench.nano.scenes.batched.compose import Scenes
from bench.nano.scenes.batched.painting import constant

BOX_SHIFT = 0.06
"""Edges of a marking box are off by up to this share of the box's size."""
REFERENCE_TOKENS = 3


def reference(scenes: Scenes, instance: Tensor, box: Tensor, free: Tensor, used: Tensor) -> Part:
    """Return references [S * B, 3] to instances: a point or, with `box`, a box; with `free`, a point on the background.

    All arguments are [S, B]; where `used` is False there is no reference.
    """
    scene = arange(instance.shape[1], instance.device)
    point = torch.where(free[..., None], scenes.free, scenes.spots[scene, instance])
    marked = scenes.boxes[scene, instance]
    centre, size = marked[..., :2], marked[..., 2:]
    shift = (2 * torch.rand(2, *size.shape, device=size.device) - 1) * BOX_SHIFT * size
    low, high = (centre - size / 2 + shift[0]).clamp(0, 1), (centre + size / 2 + shift[1]).clamp(0, 1)
    place = torch.where(box[..., None], (low + high) / 2, point)
    values = torch.stack((place[..., :1].expand_as(place), place[..., 1:].expand_as(place), high - low), 2)
    coord = masked(used, COORD)
    ids = torch.stack((coord, coord, masked(used & box, SIZE)), 2)
    return Part(ids.flatten(0, 1), values.flatten(0, 1))


_NAMES_OBJECT = (RELATION, COMPARISON, REFERENCE)
_FALLBACK = 1e-9  # so rare that it comes only where nothing else can be asked


@dataclass(frozen=True)
class Queries:
    """Rows of questions, [S * B] of them."""

    reference: Part  # Ids before the question, [S * B, 3]
    words: Tensor  # Of the question, with gaps, [S * B, W]
    answer: Tensor  # Rows of the answers
    question: Tensor  # Places in `QUESTIONS`
    kind: Tensor  # What it asks about, NONE for an unknown word

    def rows(self, part: slice) -> "Queries":
        mark = self.reference
        assert mark.values is not None
        rest = (column[part] for column in (self.words, self.answer, self.question, self.kind))
        return Queries(Part(mark.ids[part], mark.values[part]), *rest)


@dataclass(frozen=True)
class _Query:
    """One kind of question for all slots, [S, B]: its wording, answer, names, and whether it can be asked."""

    group: Tensor
    answer: Tensor
    valid: Tensor
    first: Tensor
    second: Tensor


class QueryMaker:
    def __init__(
        self, names: Names, wording: Wording, answers: Answers, mixes: Sequence[Mix], device: torch.device
    ) -> None:
        self._names, self._wording, self._answers = names, wording, answers
        self._colours = Colours(device)
        least = {name: _FALLBACK if name in (COUNT, EXISTENCE) else 0.0 for name in QUESTIONS}
        odds = [list((least | dict(one)).values()) for one in mixes]
        self._odds = torch.tensor(odds, device=device)[:, None]  # [S, 1, questions]

    def __call__(self, scenes: Scenes, relations: Relations, kind: Tensor) -> Queries:
        """Ask about scenes, which have such relations; `kind` [S, B] is what counting and existence ask for."""
        shape, device = kind.shape, kind.device
        instance = random_true((scenes.labels >= 0).expand(*shape, -1))
        point = chance(0.5, shape, device)
        free = scenes.free_ok & (chance(mix.FREE_SHARE, shape, device) & point | (scenes.labels < 0).all(1))
        marked = self._marked(scenes, instance, point | free, free)
        spatial = self._spatial(scenes, relations, shape)
        asked = [*self._counting(scenes, kind), *spatial, self._colour(scenes, shape), marked]
        chosen = weighted_choice(torch.stack([one.valid for one in asked], 2), self._odds)
        columns = [(one.group, one.answer, one.first, one.second) for one in asked]
        stacked = torch.stack([x for column in columns for x in column]).view(len(asked), -1, *shape)
        picked = stacked.gather(0, chosen.expand(1, stacked.shape[1], *shape))[0].flatten(1)
        group, answer, first, second = picked.unbind()
        # Rows of nouns stand behind the kinds.
        noun = (chosen == QUESTIONS.index(COLOUR)).flatten()
        names = self._names(torch.stack((first * ~noun, second)))
        words = self._wording(group, torch.where(noun, self._names.nouns + first, names[0]), names[1])
        refers = chosen == QUESTIONS.index(REFERENCE)
        mark = reference(scenes, instance, ~(point | free), free, refers)
        return Queries(mark, words, answer, chosen.flatten(), first)

    def longest(self, question: str) -> int:
        answer = self._answers.longest if question in _NAMES_OBJECT else self._answers.longest_fixed
        if question == REFERENCE:
            return REFERENCE_TOKENS + max(map(self._wording.longest, ("point", "box"))) + answer
        return self._wording.longest(question) + answer

    def _of(self, group: str, like: Tensor) -> Tensor:
        return scalar(self._wording.group[group], like.device).expand_as(like)

    def _counting(self, scenes: Scenes, kind: Tensor) -> list[_Query]:
        always, no_yes = constant(True, torch.bool, kind.device).expand_as(kind), self._answers.no_yes
        count = ((scenes.labels == kind[..., None]) & (kind >= 0)[..., None]).sum(2)
        total = (scenes.labels >= 0).sum(1).expand_as(kind)
        return [
            _Query(self._of("count", kind), self._answers.number + count, always, kind, kind),
            _Query(self._of("existence", kind), no_yes + (count > 0).long(), always, kind, kind),
            _Query(self._of("total", kind), self._answers.number + total, always, kind, kind),
        ]

    def _spatial(self, scenes: Scenes, relations: Relations, shape: torch.Size) -> list[_Query]:
        """What is in a direction of something, whether it is there, and which of two is further."""
        labels = scenes.labels
        n, scene = labels.shape[1], arange(len(labels), labels.device)
        clear = relations.clear.flatten(1)
        at = random_true(clear.expand(*shape, -1))
        nearest = relations.nearest.flatten(1)[scene, at]
        origin = labels[scene, at % n]
        answer = torch.where(nearest == NONE, scalar(self._answers.nothing, at.device), self._answers.name + nearest)
        what = self._of("relation left", at) + at // n
        relation = _Query(what, answer, clear.any(1).expand(shape), origin, origin)
        return [relation, *(self._pair(relations, labels, shape, question) for question in (PLACE, COMPARISON))]

    def _pair(self, relations: Relations, labels: Tensor, shape: torch.Size, question: str) -> _Query:
        n, scene = labels.shape[1], arange(len(labels), labels.device)
        at = random_true(relations.apart.flatten(1).expand(*shape, -1))
        valid = relations.apart.flatten(1).any(1).expand(shape)
        holds = relations.lies.flatten(1)[scene, at]
        first, second = labels[scene, at // n % n], labels[scene, at % n]
        if question == PLACE:
            group, answer = self._of("place left", at), self._answers.no_yes + holds.long()
        else:
            group, answer = self._of("comparison left", at), self._answers.name + torch.where(holds, first, second)
        return _Query(group + at // (n * n), answer, valid, first, second)

    def _colour(self, scenes: Scenes, shape: torch.Size) -> _Query:
        colour = self._colours(scenes.labels)
        noun = random_true((colour != NONE).expand(*shape, -1))
        scene = arange(len(colour), colour.device)
        valid = (colour != NONE).any(1).expand(shape)
        return _Query(self._of("colour", noun), self._answers.colour + colour[scene, noun], valid, noun, noun)

    def _marked(self, scenes: Scenes, instance: Tensor, point: Tensor, free: Tensor) -> _Query:
        scene = arange(instance.shape[1], instance.device)
        kind = scenes.labels[scene, instance]
        answer = torch.where(free, scalar(self._answers.nothing, kind.device), self._answers.name + kind)
        group = torch.where(point, self._of("point", kind), self._of("box", kind))
        return _Query(group, answer, free | (kind >= 0), kind, kind)
