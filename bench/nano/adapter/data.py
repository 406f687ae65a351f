"""Questions about scenes of new objects, packed for training: one image, then several questions that do not see each
other.

```
positions   0 .. P - 1          P ..              P ..              P ..
            [BOS][ image ]      [question 0]      [question 1]      [padding]
attends to  the prefix          prefix, itself    prefix, itself
```

The scenes come from the generator of the held-out scenes, on the CPU: fonts and noise only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench.nano.questions.text.language import reading_order
from bench.nano.scenes.held_out.scene import Scene, make_scene
from bench.nano.scenes.objects import SceneObject, load_objects, parse_objects
from bench.nano.scenes.sprites import Sprites, render_sprites
from photonlite.grammar.prompts import Prompts
from photonlite.images.crops import CropSpec, cut_crops

SOURCE = Path(__file__).parent / "objects.txt"
QUESTIONS = 5  # about a scene, of which one in five asks for what is not there
_KNOWN_SHARE = 0.3  # of the scenes also show objects that the checkpoint knows
_CROWD = 8
_SIDE = 416

IGNORED = -1.0

Question = tuple[list[int], list[tuple[float, float, float, float]]]
"""Ids of a prompt, and boxes of its answer: centre x, centre y, width, height."""


def new_objects() -> tuple[SceneObject, ...]:
    """Return the objects that the adapter teaches."""
    return tuple(parse_objects(SOURCE.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Packed:
    """Scenes with their questions; P positions of prefix, S behind it."""

    crops: Tensor  # uint8 [B, C, C, 3]
    ids: Tensor  # [B, S]: words, 0 where the input is a number
    values: Tensor  # [B, S, 2]: the number that is fed in: (x, IGNORED), or width and height; IGNORED elsewhere
    positions: Tensor  # [B, P + S]
    mask: Tensor  # bool [B, 1, P + S, P + S]
    goes_on: Tensor  # [B, S]: 1 where another object follows, 0 where none does, IGNORED where nothing is decided
    coordinate: Tensor  # [B, S]: the coordinate to predict, or IGNORED
    size: Tensor  # [B, S, 2]: the same of width and height


class SceneMaker:
    """Draws scenes of new objects, among known ones in some, and asks for boxes."""

    def __init__(self, prompts: Prompts, spec: CropSpec, prefix: int) -> None:
        self.objects = new_objects()
        self._all = (*self.objects, *load_objects())
        self._sprites: Sprites = render_sprites(self._all)
        self._prompts, self._spec, self._prefix = prompts, spec, prefix

    def scene(self, seed: int) -> tuple[Scene, tuple[SceneObject, ...]]:
        """Return a scene and the objects that its indices mean."""
        rng = np.random.default_rng((7, seed))
        chosen = list(rng.permutation(len(self.objects))[:10])
        if rng.random() < _KNOWN_SHARE:
            chosen[5:] = rng.choice(np.arange(len(self.objects), len(self._all)), 5, replace=False)
        objects = tuple(self._all[index] for index in chosen)
        count = int(rng.integers(1, _CROWD + 1))
        return make_scene(seed, objects, self._sprites[chosen], size=(_SIDE, _SIDE), count=count), objects

    def batch(self, seeds: Sequence[int]) -> Packed:
        rows = []
        for seed in seeds:
            scene, objects = self.scene(seed)
            rng = np.random.default_rng((8, seed))
            crops = cut_crops(scene.image, self._spec).pixels
            rows.append((crops[0], self._questions(scene, objects, rng)))
        return _pack(rows, self._prefix)

    def _questions(self, scene: Scene, objects: Sequence[SceneObject], rng: np.random.Generator) -> list[Question]:
        """Return prompts and the boxes of their answers (centre x, centre y, width, height), in reading order."""
        there = sorted({placed.index for placed in scene.objects})
        asked = [int(index) for index in rng.permutation(there)[: QUESTIONS - 1]]
        absent = [item for item in self.objects if item not in [objects[index] for index in there]]
        names = [objects[index].name for index in asked]
        while len(names) < QUESTIONS:
            names.append(absent[int(rng.integers(len(absent)))].name)
        questions: list[Question] = []
        for place, name in enumerate(names):
            boxes = [one.box for one in scene.objects if place < len(asked) and one.index == asked[place]]
            ordered = [boxes[index] for index in reading_order(boxes)]
            centres = [((a + c) / 2, (b + d) / 2, c - a, d - b) for a, b, c, d in ordered]
            questions.append(([token.id for token in self._prompts.detect(name)], centres))
        return questions


def _pack(rows: Sequence[tuple[np.ndarray, list[Question]]], prefix: int) -> Packed:
    length = max(sum(len(prompt) + 3 * len(boxes) for prompt, boxes in questions) for _, questions in rows)
    count = len(rows)
    ids = torch.zeros(count, length, dtype=torch.long)
    values, size = torch.full((count, length, 2), IGNORED), torch.full((count, length, 2), IGNORED)
    goes_on, coordinate = torch.full((count, length), IGNORED), torch.full((count, length), IGNORED)
    positions = torch.arange(prefix + length).repeat(count, 1)
    owner = torch.full((count, prefix + length), -1)
    owner[:, :prefix] = 0
    for row, (_, questions) in enumerate(rows):
        begin = 0
        for number, (prompt, boxes) in enumerate(questions, start=1):
            place = begin + len(prompt)
            end = place + 3 * len(boxes)
            ids[row, begin:place] = torch.tensor(prompt)
            owner[row, prefix + begin : prefix + end] = number
            positions[row, prefix + begin : prefix + end] = torch.arange(prefix, prefix + end - begin)
            goes_on[row, place - 1] = float(bool(boxes))
            for index, (x, y, width, height) in enumerate(boxes):
                coordinate[row, place - 1], coordinate[row, place] = x, y
                size[row, place + 1] = torch.tensor((width, height))
                values[row, place, 0], values[row, place + 1, 0] = x, y
                values[row, place + 2] = torch.tensor((width, height))
                goes_on[row, place + 2] = float(index + 1 < len(boxes))
                place += 3
            begin = end
    causal = positions[:, :, None] >= positions[:, None]
    own = (owner[:, :, None] == owner[:, None]) & causal
    mask = own | ((owner == 0)[:, None] & (owner >= 0)[:, :, None])
    mask |= torch.eye(prefix + length, dtype=torch.bool)  # padding attends to itself: no row of scores is empty
    crops = torch.from_numpy(np.stack([crop for crop, _ in rows]))
    return Packed(crops, ids, values, positions, mask[:, None], goes_on, coordinate, size)


def octaves(size: Tensor, most: float) -> Tensor:
    """Return sizes in (0, 1] on the logarithmic scale of the heads, from 0 to 1."""
    return (size.clamp(min=2.0**-most).log2() + most) / most
