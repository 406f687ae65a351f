import itertools
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from photonlite.batch import CropGroup, EncodeJob
from photonlite.image_inputs import CutImage, UncutImage
from photonlite.images.crops import CropSpec
from photonlite.images.decode import rgb_bytes
from photonlite.images.packing import pack_image
from photonlite.runner.buffers import CropBuffers
from photonlite.runner.images import ImageEncoder
from photonlite.runner.slots import SlotShape
from tests.kernels.images import noise, pillows

SPEC = CropSpec(crop_size=20, patch_size=4, overlap_margin=1, max_crops=6)
CPU = torch.device("cpu")
NO_ENCODER: Any = None
ANYBODY: Any = None
SHAPE = SlotShape(max_rows=1, max_tokens=1, page_size=1, max_pages=1, mask_words=1, pending_rows=1)
ROOM = 4
CROPS = (ROOM, SPEC.crop_size, SPEC.crop_size, 3)
SIZES = [(50, 40), (30, 60), (10, 10), (200, 31)]


@dataclass
class Asked:
    """An image on its way, and the crops that must come of it."""

    job: EncodeJob
    wanted: Tensor


def uncut(width: int, height: int, seed: int) -> UncutImage:
    image = noise(width, height, seed)
    found = pack_image(rgb_bytes(image), image.size, SPEC, lambda shape: np.zeros(shape, np.uint8))
    assert found is not None
    return found


def asked(number: int, size: tuple[int, int], cut: bool) -> Asked:
    wanted, image = pillows(noise(*size, number), SPEC), uncut(*size, number)
    crops = CutImage(wanted.numpy().copy(), image.tiling) if cut else image
    return Asked(EncodeJob(number, "", crops, ANYBODY), wanted)


def buffers(image_bytes: int = 1 << 18) -> CropBuffers:
    return CropBuffers(CROPS, CPU, image_bytes=image_bytes)


def launches(waiting: list[Asked], rooms: list[int]) -> list[list[tuple[Asked, CropGroup]]]:
    """Share the crops out to launches with room for so many, oldest image first."""
    left = [(one, index) for one in waiting for index in range(one.job.total)]
    found = []
    for room in itertools.cycle(rooms):
        if not left:
            return found
        now, left = left[:room], left[room:]
        groups = itertools.groupby(now, key=lambda entry: entry[0].job.number)
        found.append(
            [(parts[0][0], CropGroup(parts[0][0].job, parts[0][1], len(parts))) for _, g in groups if (parts := [*g])]
        )
    raise AssertionError("unreachable")


@given(cuts=st.lists(st.booleans(), min_size=1, max_size=4), rooms=st.lists(st.integers(1, ROOM), min_size=1))
@settings(max_examples=25)
def test_launches_see_the_crops_of_their_groups_however_they_are_shared_out(cuts: list[bool], rooms: list[int]) -> None:
    waiting = [asked(number, SIZES[number], cut) for number, cut in enumerate(cuts)]
    images, slots = ImageEncoder(NO_ENCODER, SPEC), [buffers(), buffers()]

    for number, launch in enumerate(launches(waiting, rooms)):
        slot, groups = slots[number % 2], [group for _, group in launch]
        # Whatever a slot holds is its own launch's.
        slot.images.random_(0, 256)
        slot.crops.random_(0, 256)
        images.upload(slot, groups)
        found = images.cut(slot, groups)

        wanted = [one.wanted[group.first : group.first + group.count] for one, group in launch]
        assert torch.equal(found, torch.cat(wanted))


def test_an_image_is_copied_by_its_first_launch_alone() -> None:
    one, slot, images = asked(0, SIZES[0], False), buffers(), ImageEncoder(NO_ENCODER, SPEC)
    groups = [CropGroup(one.job, 0, 2)]
    images.upload(slot, groups)
    assert isinstance(one.job.crops, UncutImage)
    one.job.crops.packed[:] = 0

    assert torch.equal(images.cut(slot, groups), one.wanted[:2])
    later = [CropGroup(one.job, 2, one.job.total - 2)]
    slot.images.fill_(3)
    images.upload(slot, later)
    assert (slot.images == 3).all()
    assert torch.equal(images.cut(slot, later), one.wanted[2:])


def test_an_image_whose_first_launch_failed_disturbs_no_other() -> None:
    lost, sound = asked(0, SIZES[0], False), asked(2, SIZES[2], False)
    slot, images = buffers(), ImageEncoder(NO_ENCODER, SPEC)
    groups = [CropGroup(lost.job, 2, 2), CropGroup(sound.job, 0, 1)]

    images.upload(slot, groups)

    assert torch.equal(images.cut(slot, groups)[2:], sound.wanted)


def test_a_forgotten_image_leaves_nothing_behind() -> None:
    one, slot, images = asked(0, SIZES[0], False), buffers(), ImageEncoder(NO_ENCODER, SPEC)
    groups = [CropGroup(one.job, 0, 2)]
    images.upload(slot, groups)
    images.cut(slot, groups)
    slot.crops.fill_(7)

    images.forget(one.job)

    assert (images.cut(slot, [CropGroup(one.job, 2, 2)]) == 7).all()


def test_rehearsing_needs_no_image() -> None:
    slot = buffers()
    slot.crops.fill_(7)

    ImageEncoder(NO_ENCODER, SPEC).rehearse(slot)

    assert (slot.crops[0] == 0).all()
    assert (slot.crops[1:] == 7).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_launches_on_a_card_see_the_crops_of_their_groups() -> None:
    card = torch.device("cuda", 0)
    waiting = [asked(number, size, random.Random(number).random() < 0.3) for number, size in enumerate(SIZES)]
    images = ImageEncoder(NO_ENCODER, SPEC)
    slot = CropBuffers(CROPS, card, image_bytes=1 << 18)
    images.rehearse(slot)

    for launch in launches(waiting, [3, 4, 1]):
        groups = [group for _, group in launch]
        images.upload(slot, groups)
        found = images.cut(slot, groups)

        wanted = [one.wanted[group.first : group.first + group.count] for one, group in launch]
        assert torch.equal(found.cpu(), torch.cat(wanted))
