"""References in prompts: the ids and values of a point or a box that marks something in the image."""

import torch
from torch import Tensor

from bench.nano.questions.layout import COORD, SIZE, Part, counted, only
from bench.nano.scenes.batched.compose import Scenes

BOX_SHIFT = 0.06
"""Edges of a marking box are off by up to this share of the box's size."""
REFERENCE_TOKENS = 3


def reference(scenes: Scenes, instance: Tensor, box: Tensor, free: Tensor, used: Tensor) -> Part:
    """Mark instances of scenes, or places without an object. `instance`: places in them, [S, B]; `box`: mark it with a
    box rather than with a point, [S, B]; `free`: point at the background instead, [S, B]; `used`: no reference where
    False, [S, B]. Returns [S * B, 3].
    """
    scene = counted(instance.shape[1], instance.device)
    point = torch.where(free[..., None], scenes.free, scenes.spots[scene, instance])
    marked = scenes.boxes[scene, instance]
    centre, size = marked[..., :2], marked[..., 2:]
    shift = (2 * torch.rand(2, *size.shape, device=size.device) - 1) * BOX_SHIFT * size
    low, high = (centre - size / 2 + shift[0]).clamp(0, 1), (centre + size / 2 + shift[1]).clamp(0, 1)
    place = torch.where(box[..., None], (low + high) / 2, point)
    values = torch.stack((place[..., :1].expand_as(place), place[..., 1:].expand_as(place), high - low), 2)
    coord = only(used, COORD)
    ids = torch.stack((coord, coord, only(used & box, SIZE)), 2)
    return Part(ids.flatten(0, 1), values.flatten(0, 1))
