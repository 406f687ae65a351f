"""What tests of the training code share: sprites without a font, scenes without an image, one question maker."""

from functools import cache

import torch

from bench.nano.questions.maker import QuestionMaker
from bench.nano.questions.tokenizer import TOKENIZER_JSON, load_answer_tokenizer, load_tokenizer
from bench.nano.scenes.batched.compose import Composer, Scenes
from bench.nano.scenes.batched.layouts import Difficulty
from bench.nano.scenes.batched.truth import Dense
from bench.nano.training.config import config_dict
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.prompts import MoondreamPrompts
from photonlite.models.tokenizer import Tokenizer
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
    return Composer(squares(RED, GREEN, BLUE), (SIDE, SIDE), SIDE // PATCH, CPU, most=10)


@cache
def maker():
    return QuestionMaker(load_tokenizer(), load_answer_tokenizer(), CPU)


@cache
def shipped_prompts():
    """How the package asks a checkpoint with this code's config.json and the shipped tokenizer.json."""
    config = MoondreamConfig.from_dict(config_dict(load_tokenizer()))
    special = {"controls_to": config.family.controls_to, "vocab_size": config.text.vocab_size}
    return MoondreamPrompts(config, Tokenizer(TOKENIZER_JSON, **special))


def scenes_of(labels, boxes, seed=0):
    """Scenes that are not painted: labels ``[B, N]``, boxes ``[B, N, 4]``, and places and outlines at random."""
    generator = torch.Generator().manual_seed(seed)
    (batch, places), empty = labels.shape, torch.zeros(len(labels), 1)

    def rand(*shape):
        return torch.rand(shape, generator=generator)

    def inside(share):
        shift = (rand(batch, places, 2) - 0.5) * share
        return (boxes[..., :2] + shift * boxes[..., 2:]).clamp(0, 1)

    vertices = torch.randint(8, 33, (batch, places), generator=generator) * (labels >= 0)
    outlines = rand(batch, places, 32, 2) * (torch.arange(32) < vertices[..., None])[..., None]
    pixels = torch.zeros(batch, 1, 1, 3, dtype=torch.uint8)
    near, spots, free, free_ok = inside(0.1), inside(0.8), rand(batch, 2), rand(batch) < 0.9
    dense = Dense(empty.long(), empty > 0, empty.long(), *3 * (empty[..., None],))
    return Scenes(pixels, labels, boxes, near, spots, free, free_ok, outlines, vertices, dense)


def random_scenes(batch, seed=0, kinds=5, empty=0.3):
    """Up to ten objects of a few kinds each, in places in between which are empty."""
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randint(len(maker().objects), (batch, kinds), generator=generator)
    labels = pool.gather(1, torch.randint(kinds, (batch, 10), generator=generator))
    labels = torch.where(torch.rand(batch, 10, generator=generator) < empty, -1, labels)
    boxes = torch.rand(batch, 10, 4, generator=generator)
    boxes[..., 2:] = 0.05 + 0.4 * boxes[..., 2:]
    return scenes_of(labels, boxes, seed)
