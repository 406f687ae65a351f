"""Captions and lists of scenes as `language.caption` writes them, for batches: every item at once, in its rank."""

import torch
from torch import Tensor

from bench.nano.questions import mix
from bench.nano.questions.choices import reading_order
from bench.nano.questions.layout import NONE, Part, arange, masked, padded
from bench.nano.questions.names import NUMBERS, Encode
from bench.nano.questions.text import language
from bench.nano.scenes.batched.compose import Scenes
from bench.nano.scenes.batched.layouts import MAX_KINDS
from bench.nano.scenes.objects import load_objects

SHORT, NORMAL, LONG = range(3)


class Captions:
    def __init__(self, encode: Encode, device: torch.device) -> None:
        objects = load_objects()
        names = [[encode(" " + item.name), encode(" " + item.plural)] for item in objects]
        subjects = [[encode(f" {language.subject_of(item, many)}") for many in (False, True)] for item in objects]
        self._names, self._subjects = _stacked(names, device), _stacked(subjects, device)  # [classes, 2, W]
        self._zones = padded([encode(" " + zone) for row in language.ZONES for zone in row], device)
        self._joins = padded([[], encode(","), encode(" and")], device, 1)  # before an item
        self._space = padded([encode(" ")], device, 1)
        self._numbers = padded([encode(str(n)) for n in range(NUMBERS)], device, 1)
        self._nothing = padded([encode("Nothing"), encode(" nothing")], device, 1)
        self._opening, self._stop = padded([encode("A picture of")], device), padded([encode(".")], device, 1)
        self._at, self._everywhere = padded([encode(" at the")], device), padded([encode(" everywhere")], device)

    def __call__(self, scenes: Scenes, style: Tensor, room: int) -> tuple[Tensor, Part]:
        """Describe scenes in a style (SHORT, NORMAL or LONG), [B]. Returns styles as written, and ids with gaps."""
        kinds, count = _kinds(scenes)
        sentence = style != SHORT
        opening = masked(sentence[:, None], self._opening)
        nothing = masked((kinds < 0).all(1)[:, None], self._nothing[sentence.long()])
        stop = self._stop.expand(len(style), -1)
        listing = torch.cat((opening, self._listing(kinds, count, sentence), nothing, stop), 1)
        located = self._locations(scenes, kinds, count)
        fits = (listing != NONE).sum(1) + (located != NONE).sum(1) <= room
        style = torch.where(fits, style, style.clamp(max=NORMAL))
        ids = torch.cat((listing, masked((style == LONG)[:, None], located)), 1)
        return style, Part(ids, weight=self._weights(kinds.shape[1]))

    def _weights(self, kinds: int) -> tuple[float, ...]:
        """How much each column counts: what follows from the words before it, little."""
        names, subjects = self._names.shape[-1], self._subjects.shape[-1]
        item = (mix.JOIN_WEIGHT, mix.PHRASE_WEIGHT, mix.COUNTED_WEIGHT, *names * [mix.NAMED_WEIGHT])
        listing = (*self._opening.shape[1] * [mix.PHRASE_WEIGHT], *kinds * item, mix.JOIN_WEIGHT, mix.JOIN_WEIGHT)
        zones = language.MAX_ZONES * (1 + self._zones.shape[1]) + self._everywhere.shape[1] + 1
        words = (subjects + self._at.shape[1]) * [mix.PHRASE_WEIGHT]
        return (*listing, *min(kinds, language.MAX_LOCATED_KINDS) * (*words, *zones * [1.0]))

    def longest_listing(self, places: int) -> int:
        """Most tokens of a caption of a scene of so many places that says not where things are."""
        name = (self._names != NONE).sum(-1).amax(1).sort(descending=True).values[:places]
        number = self._joins.shape[1] + self._space.shape[1] + self._numbers.shape[1]
        return self._opening.shape[1] + places * number + int(name.sum()) + self._stop.shape[1]

    def _joined(self, present: Tensor) -> Tensor:
        """What stands before each item of lists with `present` [..., K], the first ones: [..., K, 1]."""
        rank = arange(present.shape[-1], present.device)
        last = rank == present.sum(-1, keepdim=True) - 1
        return masked(present[..., None], self._joins[(rank > 0) * (1 + last.long())])

    def _listing(self, kinds: Tensor, count: Tensor, sentence: Tensor) -> Tensor:
        present = (kinds >= 0)[..., None]
        first = arange(kinds.shape[1], kinds.device) == 0
        spaced = present & (sentence[:, None] | ~first)[..., None]
        number = self._numbers[count.clamp(max=NUMBERS - 1)]
        name = self._names[kinds.clamp(min=0), (count > 1).long()]
        item = torch.cat((masked(spaced, self._space), number, name), 2)
        return torch.cat((self._joined(kinds >= 0), masked(present, item)), 2).flatten(1)

    def _locations(self, scenes: Scenes, kinds: Tensor, count: Tensor) -> Tensor:
        """Sentences on where the first kinds are."""
        kinds, count = (x[:, : language.MAX_LOCATED_KINDS] for x in (kinds, count))
        cell = (scenes.boxes[..., :2] * 3).long().clamp(0, 2)
        zone = (cell[..., 1] * 3 + cell[..., 0])[..., None] == arange(len(self._zones), kinds.device)
        mine = (scenes.labels[:, None] == kinds[..., None]) & (kinds >= 0)[..., None]  # [B, K, N]
        used = (mine[..., None] & zone[:, None]).any(2)  # [B, K, zones]
        order = (~used).int().argsort(dim=2, stable=True)[..., : language.MAX_ZONES]
        listed = used.gather(2, order)
        everywhere = (used.sum(2) > language.MAX_ZONES)[..., None]
        names = masked(listed[..., None], self._zones[order])
        places = torch.cat((self._joined(listed), names), 3).flatten(2)
        shape = (*kinds.shape, -1)
        at = torch.cat((self._at.expand(shape), places), 2)
        sentence = torch.cat(
            (
                self._subjects[kinds.clamp(min=0), (count > 1).long()],
                masked(~everywhere, at),
                masked(everywhere, self._everywhere),
                self._stop.expand(shape),
            ),
            2,
        )
        return masked((kinds >= 0)[..., None], sentence).flatten(1)


def _kinds(scenes: Scenes) -> tuple[Tensor, Tensor]:
    """Kinds in reading order of their first instance, [B, MAX_KINDS], NONE past the last, and how many of each."""
    order = reading_order(scenes.boxes, scenes.labels >= 0)
    labels = scenes.labels.gather(1, order)
    same = (labels[:, :, None] == labels[:, None, :]) & (labels >= 0)[:, :, None]
    first = (~same.tril(-1).any(2)) & (labels >= 0)
    order = (~first).int().argsort(dim=1, stable=True)
    order = order[:, :MAX_KINDS]
    return masked(first, labels).gather(1, order), same.sum(2).gather(1, order)


def _stacked(rows: list[list[list[int]]], device: torch.device) -> Tensor:
    width = max(len(ids) for row in rows for ids in row)
    return torch.stack([padded(row, device, width) for row in rows])
