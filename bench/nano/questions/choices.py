"""Random choice of what to ask about scenes: kinds, instances, relations, pairs, colours.

The rules are those of `language.py`, `relations.py` and `colours.py`, for batches: B scenes of N places.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.nano.questions import mix
from bench.nano.questions.layout import NONE, arange, masked, scalar
from bench.nano.questions.text.colours import COLOUR_NOUNS
from bench.nano.questions.text.language import ROWS
from bench.nano.questions.text.relations import BORDER, MARGIN, MIN_DIFFERENCE, MIN_OFFSET
from bench.nano.questions.text.typed import CLEARLY_LARGEST
from bench.nano.scenes.batched.compose import Scenes
from bench.nano.scenes.objects import COLOURS, load_objects


def chance(share: float, shape: torch.Size | tuple[int, ...], device: torch.device) -> Tensor:
    """Draw True with a probability for every place of a shape."""
    return torch.rand(shape, device=device) < share


def random_true(valid: Tensor) -> Tensor:
    """Choose a random True place of [..., K]; 0 where there is none."""
    return ((1 - torch.rand(valid.shape, device=valid.device)) * valid).argmax(-1)


def weighted_choice(valid: Tensor, weights: Tensor) -> Tensor:
    """Choose among the True places of [..., K] with odds of `weights`: the smallest sample of Exp(weight) wins."""
    rings = torch.rand(valid.shape, device=valid.device).clamp(min=1e-30).log().neg()
    return (weights * valid / rings).argmax(-1)


def reading_order(boxes: Tensor, wanted: Tensor) -> Tensor:
    """Order places [..., N] by row, then from left to right, like `language.centre_order`; unwanted ones last."""
    position = (boxes[..., 1] * ROWS).floor() * 2 + boxes[..., 0]
    return torch.where(wanted, position, torch.inf).argsort(-1)


class Kinds:
    def __init__(self, device: torch.device) -> None:
        objects = load_objects()
        categories = sorted({item.category for item in objects})
        self.count = len(objects)
        self.category = torch.tensor([categories.index(item.category) for item in objects], device=device)

    def asked(self, labels: Tensor, count: int) -> Tensor:
        """Choose kinds to ask for in scenes [B, N]: three in four there, the rest not; [count, B]."""
        order = torch.where(labels >= 0, torch.rand(labels.shape, device=labels.device), 2.0).argsort(1)
        ranked = labels.gather(1, order).T
        chosen = ranked[:count]
        present = torch.where(chosen >= 0, chosen, ranked[:1])
        negative = chance(mix.ABSENT_SHARE, present.shape, labels.device) | (present < 0)
        return torch.where(negative, self.absent(labels, present), present)

    def absent(self, labels: Tensor, present: Tensor) -> Tensor:
        """Choose absent kinds, one for each of `present` [K, B]: NONE for an unknown word, else half of them of the
        category of the present kind.
        """
        device = labels.device
        scores = torch.rand(*present.shape, self.count, device=device)
        same = self.category == self.category[present.clamp(min=0)][..., None]
        alike = chance(mix.ALIKE_SHARE, (*present.shape, 1), device)
        taken = (labels[..., None] == arange(self.count, device)).any(1)
        absent = (scores + (same & alike).float() - 2 * taken.float()).argmax(-1)
        return masked(chance(1 - mix.UNKNOWN_SHARE, present.shape, device), absent)


class Colours:
    """The table of `COLOUR_NOUNS` on the device."""

    def __init__(self, device: torch.device) -> None:
        table = torch.full((len(load_objects()) + 1, len(COLOUR_NOUNS)), NONE)
        for noun, kinds in enumerate(COLOUR_NOUNS.values()):
            for kind, colour in kinds.items():
                table[kind, noun] = COLOURS.index(colour)
        self._table = table.to(device)  # the last row is of empty places

    def __call__(self, labels: Tensor) -> Tensor:
        """Return the colour that every noun has in scenes [B, N], NONE without an answer: [B, nouns]."""
        colour = self._table[labels]
        high = colour.amax(1)
        low = torch.where(colour >= 0, colour, scalar(len(COLOURS), colour.device)).amin(1)
        return masked(high == low, high)


def single(labels: Tensor) -> Tensor:
    """Whether instances [B, N] are the only ones of their kind."""
    return (labels >= 0) & ((labels[:, :, None] == labels[:, None, :]).sum(2) == 1)


def distinct(scenes: Scenes) -> Tensor:
    """Whether instances [B, N] are clearly the largest of their kind and have an outline."""
    labels, area = scenes.labels, scenes.boxes[..., 2] * scenes.boxes[..., 3]
    place = arange(labels.shape[1], labels.device)
    itself = place == place[:, None]
    rival = (labels[:, :, None] == labels[:, None, :]) & ~itself
    largest_rival = torch.where(rival, area[:, None, :], 0.0).amax(2)
    return (labels >= 0) & (scenes.vertices > 0) & (area >= CLEARLY_LARGEST * largest_rival)


@dataclass(frozen=True)
class Relations:
    """Answers about places in scenes; directions are left, right, above, below."""

    nearest: Tensor  # The label of what is nearest in a direction of an instance, NONE for nothing, [B, 4, N]
    clear: Tensor  # Where that can be asked, [B, 4, N]
    lies: Tensor  # Whether the first instance lies in a direction of the second, [B, 4, N first, N second]
    apart: Tensor  # Where that can be asked, and which of the two is further, [B, 4, N, N]


def relate(scenes: Scenes) -> Relations:
    """Return all relations of scenes by the rules of `questions.text.relations`."""
    labels, centres = scenes.labels, scenes.boxes[..., :2]
    there, alone = labels >= 0, single(labels)
    offset = centres[:, None, :, :] - centres[:, :, None, :]  # [B, from, to, 2]
    dx, dy = offset.unbind(-1)
    along = torch.stack((-dx, dx, -dy, dy), 1)
    across = torch.stack((dy, dy, dx, dx), 1)
    place = arange(labels.shape[1], labels.device)
    itself = place == place[:, None]
    other = (there[:, None, :] & ~itself)[:, None]  # [B, 1, 1 or from, to]
    cost = torch.where(other & (along > BORDER), torch.hypot(along, 2 * across), torch.inf)
    least, place = torch.where(along > MIN_OFFSET, cost, torch.inf).min(-1)
    found = least < torch.inf
    kind = labels[:, None].expand(-1, 4, -1).gather(2, place)
    rivals = torch.where(labels[:, None, None, :] != kind[..., None], cost, torch.inf).amin(-1)
    nothing_near = (cost == torch.inf).all(-1)
    clear = torch.where(found, rivals >= least / MARGIN, nothing_near) & alone[:, None]
    both = (alone[:, :, None] & alone[:, None, :] & ~itself)[:, None]
    # `along` runs from its first instance to its second: here the first lies in the direction of the second.
    reverse = along.transpose(2, 3)
    return Relations(masked(found, kind), clear, reverse > 0, both & (reverse.abs() >= MIN_DIFFERENCE))
