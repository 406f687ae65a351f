"""What tests of the training code share: sprites without a font, scenes without a picture, one question maker."""

from functools import cache

import torch

from bench.nano.compose import Composer, Difficulty, Scenes
from bench.nano.questions import QuestionMaker
from bench.nano.tokenizer import load_answer_tokenizer, load_tokenizer
from photonlite.models.checkpoint import load_checkpoint
from tests.tiny import CPU

SIDE = 160  # of a composed scene: degrading needs at least 144
PATCH = 16
FULL = Difficulty().tensor(CPU)
RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def squares(*colours):
    """Opaque squares with a transparent rim of one pixel, as sprites of 128 pixels."""
    sprites = torch.zeros(len(colours), 128, 128, 4, dtype=torch.uint8)
    for sprite, colour in zip(sprites, colours, strict=True):
        sprite[1:-1, 1:-1] = torch.tensor([*colour, 255], dtype=torch.uint8)
    return sprites


@cache
def composer():
    """Red, green and blue squares."""
    return Composer(squares(RED, GREEN, BLUE), SIDE, PATCH, CPU)


class NotingMaker(QuestionMaker):
    """Remembers which text every row of ids was made from, and which object (or None) a text is about."""

    def __init__(self, *arguments):
        self.text_of, self.kind_of = {}, {}
        super().__init__(*arguments)

    def encode_prompt(self, text):
        ids = super().encode_prompt(text)
        self.text_of.setdefault(tuple(ids), text)
        return ids

    def _table(self, make, items, *limit):
        return super()._table(lambda i: self._note(make(i), i), items, *limit)

    def _note(self, text, kind):
        self.kind_of[tuple(super().encode_prompt(text))] = kind
        return text


@cache
def maker():
    return NotingMaker(load_tokenizer(), load_answer_tokenizer(), CPU)


@cache
def shipped_prompts():
    """What `photonlite.load()` asks the shipped checkpoint with: its own config.json and tokenizer.json."""
    return load_checkpoint(None, device=CPU, dtype=torch.float32).prompts


def scenes_of(labels, boxes):
    """Scenes that nobody has painted: labels ``[B, N]`` and boxes ``[B, N, 4]`` are all that questions read."""
    batch = len(labels)
    empty = torch.zeros(batch, 1)
    return Scenes(torch.zeros(batch, 1, 1, 3, dtype=torch.uint8), labels, boxes, empty.long(), empty[..., None])


def random_scenes(batch, seed=0, kinds=5, empty=0.3):
    """Up to ten objects of a few kinds each, in places in between which are empty."""
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randint(len(maker().objects), (batch, kinds), generator=generator)
    labels = pool.gather(1, torch.randint(kinds, (batch, 10), generator=generator))
    labels = torch.where(torch.rand(batch, 10, generator=generator) < empty, -1, labels)
    boxes = torch.rand(batch, 10, 4, generator=generator)
    boxes[..., 2:] = 0.05 + 0.4 * boxes[..., 2:]
    return scenes_of(labels, boxes)
