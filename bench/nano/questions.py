"""Questions about composed scenes and their answers as tensors, made on the device by table look-up.

A question is a row of segments (prompt, phrase, answer ...) whose unused places hold -1; `_compact` closes the gaps.
Every text that can appear is tokenised once, on the host, into tables of random variants.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from tokenizers import Tokenizer
from torch import Tensor

from bench.nano import language
from bench.nano.compose import Scenes
from bench.nano.language import ROWS
from bench.nano.objects import load_objects

BOS, ANSWER, COORD, SIZE = 0, 3, 5, 6
NONE = -1
DETECT_LENGTH, POINT_LENGTH, QUERY_LENGTH, TEXT_LENGTH = 46, 36, 28, 112
_LENGTHS = ("short", "normal", "long")
_VARIANTS = 48
_PHRASE_TOKENS, _QUESTION_TOKENS = 10, 22


def templates(tokenizer: Tokenizer) -> dict[str, dict[str, list[int]]]:
    """Prompt ids of every skill, as config.json carries them."""

    def word(text: str) -> int:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) != 1:
            raise ValueError(f"{text!r} is {len(ids)} tokens: skill words are single tokens")
        return int(ids[0])

    framed = {name: {"prefix": [1, word(name), 2], "suffix": [ANSWER]} for name in ("query", "detect", "point")}
    caption = {length: [1, word("caption"), 2, word(length), ANSWER] for length in _LENGTHS}
    framed["query"]["reasoning_suffix"] = [4]
    return {"caption": caption, **framed}


@dataclass(frozen=True)
class Questions:
    """A batch of questions of one layout.

    Attributes:
        ids: input and target ids, ``[B, L]``; coordinate and size places hold their special ids.
        values: what those places stand for, ``[B, L, 2]``: a coordinate in the first, or width and height.
        answer: True where the place belongs to the answer, ``[B, L]``.
    """

    ids: Tensor
    values: Tensor
    answer: Tensor


class QuestionMaker:
    """Asks about scenes; holds the token tables.

    Args:
        tokenizer: of the checkpoint.
        answers: the same without its normaliser.
        device: where scenes live.
        seed: of the table variants.
    """

    def __init__(self, tokenizer: Tokenizer, answers: Tokenizer, device: torch.device, seed: int = 0) -> None:
        self.device, self._tokenizer, self._answers, self._rng = device, tokenizer, answers, random.Random(seed)
        self.objects = load_objects()
        self._constants: dict[tuple[int, ...], Tensor] = {}
        rng, count = self._rng, range(len(self.objects))
        self.prompts = templates(tokenizer)
        categories = sorted({o.category for o in self.objects})
        self.category = torch.tensor([categories.index(o.category) for o in self.objects], device=device)
        self.phrases = self._table(lambda i: " " + language.object_phrase(rng, i), count, _PHRASE_TOKENS)
        self.unknown = self._flat(lambda: " " + language.unknown_phrase(rng, "train"), _PHRASE_TOKENS)
        self.counts = self._table(lambda i: language.count_question(rng, language.name_pair(rng, i)), count)
        self.exists = self._table(lambda i: language.existence_question(rng, language.name_pair(rng, i)), count)
        self.unknown_counts = self._flat(lambda: language.count_question(rng, language.unknown_pair(rng, "train")))
        self.unknown_exists = self._flat(lambda: language.existence_question(rng, language.unknown_pair(rng, "train")))
        self.totals = self._flat(lambda: language.total_question(rng), size=256)
        self.lists = self._flat(lambda: language.list_question(rng), size=256)
        self._caption_tables()

    def __call__(self, scenes: Scenes) -> list[Questions]:
        """Ask three detect, one point, two query questions and one for a text about every scene."""
        kinds = self._ask_for(scenes.labels, 6)
        detect = [self._grounding(scenes, kinds[:, i], "detect") for i in range(3)]
        point = self._grounding(scenes, kinds[:, 3], "point")
        query = [self._query(scenes, kinds[:, 4], counting=True), self._query(scenes, kinds[:, 5], counting=False)]
        return [*detect, point, *query, self._text(scenes)]

    # ---- tables

    def encode(self, text: str) -> list[int]:
        """Tokenise text that the model writes; phrases and questions go through `encode_prompt`."""
        return list(self._answers.encode(text, add_special_tokens=False).ids)

    def encode_prompt(self, text: str) -> list[int]:
        """Tokenise text that a user types."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _rows(self, rows: Sequence[Sequence[int]], width: int | None = None) -> Tensor:
        width = width or max(map(len, rows))
        return torch.tensor([[*row, *[NONE] * (width - len(row))] for row in rows], device=self.device)

    def _short_enough(self, make: Callable[[], str], limit: int) -> list[int]:
        while len(ids := self.encode_prompt(make())) > limit:
            pass
        return ids

    def _table(self, make: Callable[[int], str], items: range, limit: int = _QUESTION_TOKENS) -> Tensor:
        rows = [[self._short_enough(partial(make, i), limit) for _ in range(_VARIANTS)] for i in items]
        return torch.stack([self._rows(row, limit) for row in rows])  # [classes, variants, limit]

    def _flat(self, make: Callable[[], str], limit: int = _QUESTION_TOKENS, size: int = 4096) -> Tensor:
        return self._rows([self._short_enough(make, limit) for _ in range(size)], limit)

    def _caption_tables(self) -> None:
        self.caption_prompts = self._rows([self.prompts["caption"][length] for length in _LENGTHS])
        name = [self.encode(" " + o.name) for o in self.objects]
        plural = [self.encode(" " + o.plural) for o in self.objects]
        self.names = torch.stack((self._rows(name, _PHRASE_TOKENS), self._rows(plural, _PHRASE_TOKENS)), dim=1)
        subjects = ([self.encode(f" {language.subject_of(o, many)}") for o in self.objects] for many in (False, True))
        self.subjects = torch.stack([self._rows(rows, _PHRASE_TOKENS) for rows in subjects], dim=1)  # [classes, 2, L]
        self.zones = self._rows([self.encode(" " + zone) for row in language.ZONES for zone in row])
        self.joins = self._rows([[], self.encode(","), self.encode(" and")])  # before an item: none, comma, and
        self.number = torch.tensor([self.encode(str(n)) for n in range(32)], device=self.device)
        self.spaced_number = self._rows([self.encode(f" {n}") for n in range(32)])
        self.nothing = self._rows([self.encode("Nothing"), self.encode(" nothing")])
        self.yes_no = self._rows([self.encode("No"), self.encode("Yes")])

    # ---- questions

    def _constant(self, ids: Sequence[int], batch: int) -> Tensor:
        """Repeat the same ids for every scene; copied to the device once."""
        key = tuple(ids)
        if key not in self._constants:
            self._constants[key] = torch.tensor(key, device=self.device)
        return self._constants[key].expand(batch, -1)

    def _pick(self, table: Tensor, batch: int) -> Tensor:
        return table[torch.randint(len(table), (batch,), device=self.device)]

    def _pick_of(self, table: Tensor, kind: Tensor) -> Tensor:
        return table[kind, torch.randint(table.shape[1], kind.shape, device=self.device)]

    def _ask_for(self, labels: Tensor, count: int) -> Tensor:
        """Choose kinds to ask for, ``[B, count]``: three in four in the picture, the rest not; NONE is an unknown word.

        Half of the absent ones share a category with something in the picture: telling them apart is what is hard.
        """
        batch, device = labels.shape[0], self.device
        order = torch.where(labels >= 0, torch.rand(labels.shape, device=device), 2.0).argsort(1)
        chosen = labels.gather(1, order[:, :count])
        there = labels.gather(1, order[:, :1]).expand(batch, count)
        present = torch.where(chosen >= 0, chosen, there)
        scores = torch.rand(batch, count, len(self.objects), device=device)
        same = self.category[None, None, :] == self.category[present.clamp(min=0)][..., None]
        hard = torch.rand(batch, count, 1, device=device) < 0.5
        taken = (labels[..., None] == torch.arange(len(self.objects), device=device)).any(1)[:, None]
        absent = (scores + (same & hard).float() - 2 * taken.float()).argmax(-1)
        unknown = torch.rand(batch, count, device=device) < 0.4
        negative = torch.where(unknown, NONE, absent)
        use_negative = (torch.rand(batch, count, device=device) < 0.25) | (present < 0)
        return torch.where(use_negative, negative, present)

    def _grounding(self, scenes: Scenes, kind: Tensor, skill: str) -> Questions:
        batch, device = kind.shape[0], self.device
        known = self._pick_of(self.phrases, kind.clamp(min=0))
        phrase = torch.where((kind >= 0)[:, None], known, self._pick(self.unknown, batch))
        match = (scenes.labels == kind[:, None]) & (kind >= 0)[:, None]
        order = _reading_order(scenes.boxes, match)
        boxes = scenes.boxes.gather(1, order[..., None].expand(-1, -1, 4))
        there = match.gather(1, order)
        steps = [(COORD, boxes[..., 0:1]), (COORD, boxes[..., 1:2])] + [(SIZE, boxes[..., 2:4])] * (skill == "detect")
        ids = torch.stack([torch.where(there, step, NONE) for step, _ in steps], dim=2).flatten(1)
        values = torch.stack([value.expand(-1, -1, 2) for _, value in steps], dim=2).flatten(1, 2)
        prompt = self.prompts[skill]
        head = torch.cat((self._constant(prompt["prefix"], batch), phrase, self._constant(prompt["suffix"], batch)), 1)
        body = torch.cat((ids, self._constant([BOS], batch)), 1)
        values = torch.cat(
            (torch.zeros(batch, head.shape[1], 2, device=device), values, torch.zeros(batch, 1, 2, device=device)), 1
        )
        return _compact(head, body, values, DETECT_LENGTH if skill == "detect" else POINT_LENGTH)

    def _framed(self, skill: str, question: Tensor, answer: Tensor, length: int) -> Questions:
        batch = question.shape[0]
        prompt = self.prompts[skill]
        head = torch.cat(
            (self._constant(prompt["prefix"], batch), question, self._constant(prompt["suffix"], batch)), 1
        )
        return _compact(head, torch.cat((answer, self._constant([BOS], batch)), 1), None, length)

    def _query(self, scenes: Scenes, kind: Tensor, counting: bool) -> Questions:
        batch = kind.shape[0]
        known_table, unknown_table = (
            (self.counts, self.unknown_counts) if counting else (self.exists, self.unknown_exists)
        )
        known, unknown = self._pick_of(known_table, kind.clamp(min=0)), self._pick(unknown_table, batch)
        question = torch.where((kind >= 0)[:, None], known, unknown)
        count = ((scenes.labels == kind[:, None]) & (kind >= 0)[:, None]).sum(1)
        if not counting:
            return self._framed("query", question, self.yes_no[(count > 0).long()], QUERY_LENGTH)
        total = torch.rand(batch, 1, device=self.device) < 0.25
        question = torch.where(total, self._pick(self.totals, batch), question)
        count = torch.where(total[:, 0], (scenes.labels >= 0).sum(1), count)
        return self._framed("query", question, self.number[count], QUERY_LENGTH)

    def _text(self, scenes: Scenes) -> Questions:
        """A caption of one of the three lengths, or the answer to an open question."""
        batch, device = scenes.labels.shape[0], self.device
        style = torch.randint(4, (batch,), device=device)  # short, normal, long, list question
        prompts = self.caption_prompts
        query = self.prompts["query"]
        listing = torch.cat(
            (
                self._constant(query["prefix"], batch),
                self._pick(self.lists, batch),
                self._constant(query["suffix"], batch),
            ),
            1,
        )
        head = torch.full((batch, listing.shape[1]), NONE, device=device)
        head[:, : prompts.shape[1]] = prompts[style.clamp(max=2)]
        head = torch.where((style == 3)[:, None], listing, head)
        sentence = (style == 1) | (style == 2)
        opening = self._constant(self.encode("A picture of"), batch)
        body = [torch.where(sentence[:, None], opening, NONE), *self._listing(scenes, sentence)]
        located = [torch.where((style == 2)[:, None], part, NONE) for part in self._locations(scenes)]
        stop = self._constant([*self.encode(".")], batch)
        return _compact(head, torch.cat((*body, stop, *located, self._constant([BOS], batch)), 1), None, TEXT_LENGTH)

    def _kinds(self, scenes: Scenes) -> tuple[Tensor, Tensor]:
        """Kinds in reading order of their first instance, ``[B, N]``, NONE past the last, and how many of each."""
        labels = scenes.labels
        order = _reading_order(scenes.boxes, labels >= 0)
        labels = labels.gather(1, order)
        same = (labels[:, :, None] == labels[:, None, :]) & (labels >= 0)[:, :, None]  # [B, i, j]
        first = (~same.tril(-1).any(2)) & (labels >= 0)
        count = same.sum(2)
        order = (~first).int().argsort(dim=1, stable=True)
        return torch.where(first, labels, NONE).gather(1, order), count.gather(1, order)

    def _joined(self, rank: int, present: Tensor) -> Tensor:
        """The separator before the item `rank` of lists with ``present [B, N]``: none, a comma, or "and"."""
        if rank == 0:
            return self.joins[torch.zeros(len(present), dtype=torch.long, device=self.device)]
        last = present[:, rank + 1 :].any(1) if rank + 1 < present.shape[1] else torch.zeros_like(present[:, 0])
        join = torch.where(last, 1, 2)
        return torch.where(present[:, rank, None], self.joins[join], NONE)

    def _listing(self, scenes: Scenes, sentence: Tensor) -> list[Tensor]:
        kinds, count = self._kinds(scenes)
        present = kinds >= 0
        parts = []
        for rank in range(kinds.shape[1]):
            here, many = present[:, rank, None], (count[:, rank] > 1).long()
            bare = self.number[count[:, rank].clamp(max=31)]
            number = self.spaced_number[count[:, rank].clamp(max=31)]
            if rank == 0:
                padded = torch.full_like(number, NONE)
                padded[:, :1] = bare
                number = torch.where(sentence[:, None], number, padded)
            name = self.names[kinds[:, rank].clamp(min=0), many]
            parts += [self._joined(rank, present), torch.where(here, number, NONE), torch.where(here, name, NONE)]
        return [*parts, torch.where(present.any(1)[:, None], NONE, self.nothing[sentence.long()])]

    def _locations(self, scenes: Scenes) -> list[Tensor]:
        kinds, count = self._kinds(scenes)
        batch = kinds.shape[0]
        cell = (scenes.boxes[..., :2] * 3).long().clamp(0, 2)
        zone = cell[..., 1] * 3 + cell[..., 0]
        at, end = self._constant(self.encode(" at the"), batch), self._constant(self.encode("."), batch)
        everywhere = self._constant(self.encode(" everywhere"), batch)
        parts = []
        for rank in range(language.MAX_LOCATED_KINDS):
            kind, here = kinds[:, rank], (kinds[:, rank] >= 0)[:, None]
            mine = (scenes.labels == kind[:, None]) & here
            used = ((zone[..., None] == torch.arange(9, device=self.device)) & mine[..., None]).any(1)  # [B, 9]
            order = (~used).int().argsort(dim=1, stable=True)[:, : language.MAX_ZONES]
            listed = used.gather(1, order)
            spread = (used.sum(1) > language.MAX_ZONES)[:, None]
            sentence = [self.subjects[kind.clamp(min=0), (count[:, rank] > 1).long()], torch.where(spread, NONE, at)]
            for i in range(language.MAX_ZONES):
                name = torch.where(listed[:, i, None], self.zones[order[:, i]], NONE)
                sentence += [torch.where(spread, NONE, part) for part in (self._joined(i, listed), name)]
            sentence += [torch.where(spread, everywhere, NONE), end]
            parts += [torch.where(here, part, NONE) for part in sentence]
        return parts


def _reading_order(boxes: Tensor, wanted: Tensor) -> Tensor:
    """Order places ``[B, N]`` by row, then from left to right, as `language.centre_order` does; unwanted ones last."""
    position = (boxes[..., 1] * ROWS).floor() * 2 + boxes[..., 0]
    return torch.where(wanted, position, torch.inf).argsort(1)


def _compact(head: Tensor, body: Tensor, values: Tensor | None, length: int) -> Questions:
    """Join prompt and answer, close the gaps, pad or cut to `length`."""
    ids = torch.cat((head, body), 1)
    answer = torch.arange(ids.shape[1], device=ids.device) >= head.shape[1]
    order = (ids == NONE).int().argsort(dim=1, stable=True)[:, :length]
    missing = length - order.shape[1]
    ids = torch.nn.functional.pad(ids.gather(1, order), (0, max(0, missing)), value=NONE)
    answer = torch.nn.functional.pad(answer.expand(len(order), -1).gather(1, order), (0, max(0, missing)))
    if values is None:
        filled = torch.zeros(*ids.shape, 2, device=ids.device)
    else:
        filled = values.gather(1, order[..., None].expand(-1, -1, 2))
        filled = torch.nn.functional.pad(filled, (0, 0, 0, max(0, missing)))
    used = ids != NONE
    return Questions(torch.where(used, ids, BOS), filled, answer & used)
