"""Questions answered with boxes, points, outlines, or reasoning that is grounded in points."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.nano.questions import mix
from bench.nano.questions.choices import Kinds, chance, distinct, random_true, reading_order
from bench.nano.questions.layout import (
    ANSWER,
    BOS,
    COORD,
    GROUND,
    GROUND_END,
    SIZE,
    THINK,
    Part,
    Questions,
    arange,
    join_parts,
    masked,
    padded,
    scalar,
    slots,
    token,
)
from bench.nano.questions.names import Answers, Encode, Names
from bench.nano.questions.queries import REFERENCE_TOKENS, Queries, reference
from bench.nano.questions.tokenizer import FIRST_INTEGER, INTEGERS
from bench.nano.questions.wording import Wording
from bench.nano.scenes.batched.compose import Scenes
from bench.nano.scenes.batched.painting import constant


@dataclass(frozen=True)
class Vocabulary:
    """What questions are made of."""

    encode: Encode  # To ids, without a normaliser
    prompts: Mapping[str, Mapping[str, list[int]]]  # Templates of the skills
    names: Names  # Of what is asked for
    wording: Wording  # Of phrases and questions
    answers: Answers  # Short ones
    kinds: Kinds  # To ask for


class GroundingMaker:
    def __init__(self, vocabulary: Vocabulary, device: torch.device) -> None:
        self._vocabulary = vocabulary
        prompts = [vocabulary.prompts[skill] for skill in ("detect", "point", "segment")]
        self._prefixes = padded([prompt["prefix"] for prompt in prompts], device)
        self._query = padded([vocabulary.prompts["query"]["prefix"]], device)
        self._move, self._line, self._close = (padded([vocabulary.encode(letter)], device, 1) for letter in "MLZ")

    def longest(self, places: int, vertices: int, question: int) -> dict[str, int]:
        """Most tokens of each layout, for scenes of so many places, outlines of so many vertices."""
        phrase = self._prefixes.shape[1] + self._vocabulary.wording.longest("phrase") + 1
        words = self._vocabulary.answers.longest
        return {
            "detect": phrase + 3 * places + 1,
            "segment": phrase + REFERENCE_TOKENS + 3 + 2 * vertices + 4,
            "reasoning": self._query.shape[1] + question + 1 + 1 + words + 2 * places + 4,
        }

    def objects(self, scenes: Scenes, kind: Tensor) -> list[Questions]:
        """Ask for boxes, in the last of the slots mostly for points; `kind` [S, B]."""
        device, labels = kind.device, scenes.labels
        last = arange(len(kind), device)[:, None] == len(kind) - 1
        point = last & chance(mix.POINT_SHARE, kind.shape, device)
        there = labels >= 0
        marked = point & chance(mix.MARKED_POINT_SHARE, kind.shape, device) & there.any(1)
        instance = random_true(there.expand(*kind.shape, -1))
        scene = arange(len(labels), device)
        kind = torch.where(marked, labels[scene, instance], kind)
        alike = (labels == kind[..., None]) & (kind >= 0)[..., None]
        chosen = arange(labels.shape[1], device) == instance[..., None]
        found = self._places(scenes, torch.where(marked[..., None], chosen, alike), point)
        box, never = chance(0.5, kind.shape, device), constant(False, torch.bool, device).expand(kind.shape)
        parts = [
            Part(self._prefixes[point.flatten().long()]),
            reference(scenes, instance, box, never, marked),
            Part(self._phrase(kind)),
            Part(token(ANSWER, found.ids)),
            found,
            Part(token(BOS, found.ids), weight=1.0),
        ]
        length = mix.LENGTHS["objects"]
        return slots(join_parts(parts, length), [length] * len(kind))

    def outline(self, scenes: Scenes, length: int) -> Questions:
        """Ask in so many tokens for the outline of one instance: the largest of its kind, or one that is marked."""
        labels, device = scenes.labels, scenes.labels.device
        batch, scene = len(labels), arange(len(labels), device)
        drawn, clear = (labels >= 0) & (scenes.vertices > 0), distinct(scenes)
        marked = (chance(mix.MARKED_OUTLINE_SHARE, (batch,), device) | ~clear.any(1)) & drawn.any(1)
        instance = random_true(torch.where(marked[:, None], drawn, clear))
        absent = chance(mix.ABSENT_OUTLINE_SHARE, (batch,), device) | ~drawn.any(1)
        kind = labels[scene, instance]
        asked = torch.where(absent, self._vocabulary.kinds.absent(labels, kind[None])[0], kind)
        box, never = chance(0.5, (1, batch), device), constant(False, torch.bool, device).expand(1, batch)
        phrase = self._phrase(asked[None])
        return join_parts(
            [
                Part(self._prefixes[2:].expand(batch, -1)),
                reference(scenes, instance[None], box, never, marked[None]),
                Part(phrase),
                Part(token(ANSWER, phrase)),
                *self._path(scenes, instance, absent),
                Part(token(BOS, phrase), weight=1.0),
            ],
            length,
        )

    def reasoning(self, scenes: Scenes, queries: Queries) -> Questions:
        """Ask queries about scenes, one each, that are answered after pointing at everything that counts."""
        answers, kind = self._vocabulary.answers, queries.kind
        total = queries.question == mix.QUESTIONS.index(mix.TOTAL)
        match = (scenes.labels == kind[:, None]) & (kind >= 0)[:, None]
        match = torch.where(total[:, None], scenes.labels >= 0, match)
        points = self._places(scenes, match[None], constant(True, torch.bool, kind.device).expand(1, len(kind)))
        found = match.any(1)
        everything, nothing = (scalar(row, kind.device) for row in (answers.everything, answers.nothing))
        spoken = torch.where(total, everything, answers.plural + kind.clamp(min=0))
        words = answers.ids[torch.where(found, spoken, nothing)]
        start, end = (masked(found[:, None], id_) for id_ in (GROUND, GROUND_END))
        return join_parts(
            [
                Part(self._query.expand(len(kind), -1)),
                Part(queries.words),
                Part(token(THINK, words)),
                Part(torch.cat((start, words), 1), weight=1.0),
                points,
                Part(torch.cat((end, token(ANSWER, words), answers.ids[queries.answer]), 1), weight=1.0),
                Part(token(BOS, words), weight=1.0),
            ],
            mix.LENGTHS["thought"],
        )

    def _phrase(self, kind: Tensor) -> Tensor:
        flat, wording = kind.flatten(), self._vocabulary.wording
        return wording(scalar(wording.group["phrase"], kind.device).expand_as(flat), self._vocabulary.names(flat))

    @staticmethod
    def _places(scenes: Scenes, match: Tensor, point: Tensor) -> Part:
        """Boxes or points [S * B, 3 N] of what matches [S, B, N], in reading order."""
        order = reading_order(scenes.boxes, match)
        scene = arange(match.shape[1], match.device)[:, None]
        boxes, there = scenes.boxes[scene, order], match.gather(2, order)
        place = torch.where(point[..., None, None], scenes.points[scene, order], boxes[..., :2])
        x, y = place[..., :1].expand_as(place), place[..., 1:].expand_as(place)
        values = torch.stack((x, y, boxes[..., 2:]), 3)
        coord = masked(there, COORD)
        ids = torch.stack((coord, coord, masked(there & ~point[..., None], SIZE)), 3)
        aside = ((place - boxes[..., :2]).abs() > mix.CENTRAL * boxes[..., 2:]).any(-1, keepdim=True)
        usual, more = (constant(weight, torch.float32, ids.device) for weight in (1.0, mix.ASIDE_WEIGHT))
        weight = torch.where(aside, more, usual).expand(ids.shape)
        return Part(ids.flatten(0, 1).flatten(1), values.flatten(0, 1).flatten(1, 2), weight.flatten(0, 1).flatten(1))

    def _path(self, scenes: Scenes, instance: Tensor, absent: Tensor) -> list[Part]:
        """The visible box and the outline in it; nothing at all where it is absent."""
        scene, there = arange(len(instance), instance.device), ~absent[:, None]
        box, outline = scenes.boxes[scene, instance], scenes.outlines[scene, instance]
        step = (outline * (INTEGERS - 1)).round()
        vertex = arange(outline.shape[1], instance.device)
        counts = (vertex < scenes.vertices[scene, instance, None]) & there
        ids = masked(counts[..., None], FIRST_INTEGER + step.long())
        values = (step / (INTEGERS - 1))[..., None].expand(*step.shape, 2)

        def integers(part: slice) -> Part:
            return Part(ids[:, part].flatten(1), values[:, part].flatten(1, 2), weight=1.0, outline=True)

        numbers = constant((COORD, COORD, SIZE), torch.long, box.device)
        x, y = box[:, :1], box[:, 1:2]
        box_values = torch.stack((x.expand(-1, 2), y.expand(-1, 2), box[:, 2:]), 1)
        return [
            Part(masked(there, numbers), box_values, weight=1.0),
            Part(masked(there, self._move), weight=1.0),
            integers(slice(0, 1)),
            Part(masked(there, self._line), weight=1.0),
            integers(slice(1, None)),
            Part(masked(there, self._close), weight=1.0),
        ]
