import itertools
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from photonlite.batch import CropGroup, EncodeJob
from photonlite.images.crops import CropSpec
from photonlite.images.decode import rgb_bytes
from photonlite.images.packing import pack_image
from photonlite.kernels.autotune import BACKENDS
from photonlite.runner.buffers import CropBuffers
from photonlite.runner.graphs import CudaCapturer
from photonlite.runner.images import GraphedEncoder, ImageEncoder
from photonlite.runner.slots import SlotShape
from photonlite.sequence import CutImage, UncutImage
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
    images, slots = ImageEncoder(NO_ENCODER, SPEC, CPU, cuts=True), [buffers(), buffers()]

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
    one, slot, images = asked(0, SIZES[0], False), buffers(), ImageEncoder(NO_ENCODER, SPEC, CPU, cuts=True)
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
    slot, images = buffers(), ImageEncoder(NO_ENCODER, SPEC, CPU, cuts=True)
    groups = [CropGroup(lost.job, 2, 2), CropGroup(sound.job, 0, 1)]

    images.upload(slot, groups)

    assert torch.equal(images.cut(slot, groups)[2:], sound.wanted)


def test_a_forgotten_image_leaves_nothing_behind() -> None:
    one, slot, images = asked(0, SIZES[0], False), buffers(), ImageEncoder(NO_ENCODER, SPEC, CPU, cuts=True)
    groups = [CropGroup(one.job, 0, 2)]
    images.upload(slot, groups)
    images.cut(slot, groups)
    slot.crops.fill_(7)

    images.forget(one.job)

    assert (images.cut(slot, [CropGroup(one.job, 2, 2)]) == 7).all()


def test_rehearsing_needs_no_image() -> None:
    slot = buffers()
    slot.crops.fill_(7)

    ImageEncoder(NO_ENCODER, SPEC, CPU, cuts=True).rehearse(slot)

    assert (slot.crops[0] == 0).all()
    assert (slot.crops[1:] == 7).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_launches_on_a_card_see_the_crops_of_their_groups() -> None:
    card = torch.device("cuda", 0)
    waiting = [asked(number, size, random.Random(number).random() < 0.3) for number, size in enumerate(SIZES)]
    images = ImageEncoder(NO_ENCODER, SPEC, card, cuts=True)
    slot = CropBuffers(CROPS, card, image_bytes=1 << 18)
    images.rehearse(slot)

    for launch in launches(waiting, [3, 4, 1]):
        groups = [group for _, group in launch]
        images.upload(slot, groups)
        found = images.cut(slot, groups)

        wanted = [one.wanted[group.first : group.first + group.count] for one, group in launch]
        assert torch.equal(found.cpu(), torch.cat(wanted))


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


class Doubling:
    """Features of a crop are twice its pixels; a projection gives the features back."""

    def __init__(self) -> None:
        self.encoded: list[int] = []
        self.projected: list[tuple[int, tuple[int, int]]] = []

    def encode(self, pixels: Tensor) -> Tensor:
        self.encoded.append(len(pixels))
        return pixels.flatten(1).unflatten(1, (-1, 3)).float() * 2

    def project(self, features: Tensor, tiling: tuple[int, int]) -> Tensor:
        self.projected.append((len(features), tiling))
        return features


class Recorder:
    """Runs the work where a graph would be captured and replayed; refuses some captures."""

    def __init__(self, refused: Sequence[int] = ()) -> None:
        self.captured = 0
        self.replayed: list[int] = []
        self._refused = refused

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        number, self.captured = self.captured, self.captured + 1
        if number in self._refused:
            raise RuntimeError("no such kernel")
        work()

        def replay() -> None:
            self.replayed.append(number)
            work()

        return replay

    def used_bytes(self) -> int:
        return 10 * self.captured


def graphed(encoder: Doubling, max_crops: int = 4) -> GraphedEncoder:
    return GraphedEncoder(encoder, crop_size=2, max_crops=max_crops, device=CPU)


def first(ways: Sequence[Callable[[], None]]) -> int:
    return 0


def last(ways: Sequence[Callable[[], None]]) -> int:
    return len(ways) - 1


def crops(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 2, 2, 3), dtype=torch.uint8, generator=generator)


def test_every_number_of_crops_is_captured_largest_first_with_every_attention() -> None:
    inner, recorder = Doubling(), Recorder()
    encoder = graphed(inner)

    report = encoder.capture(recorder, first)

    assert inner.encoded[1:] == [count for count in (4, 3, 2, 1) for _ in BACKENDS]
    assert report.graphs == 4
    assert report.bytes == 10 * 4 * len(BACKENDS)


def test_the_quickest_graph_replays() -> None:
    encoder, recorder = graphed(Doubling()), Recorder()
    encoder.capture(recorder, last)

    encoder.encode(crops(4))
    encoder.encode(crops(1))

    most = len(BACKENDS)
    assert recorder.replayed == [most - 1, 4 * most - 1]


def test_images_that_have_a_part_replay_its_graphs_where_there_are_some() -> None:
    encoder, whole, part = graphed(Doubling()), Recorder(), Recorder(refused=range(len(BACKENDS)))  # of 4 crops

    assert encoder.capture(whole, first).graphs == 4
    assert encoder.capture(part, first, in_part=True).graphs == 3
    kept = [encoder.encode(crops(count)) for count in (2, 4)]
    encoder.in_part = True
    kept += [encoder.encode(crops(count)) for count in (2, 4)]

    assert (len(whole.replayed), len(part.replayed)) == (3, 1)
    assert all(torch.equal(found, Doubling().encode(crops(len(found)))) for found in kept)


def test_features_stay_what_they_are_when_more_crops_are_encoded() -> None:
    encoder = graphed(Doubling())
    encoder.capture(Recorder(), first)

    kept = encoder.encode(crops(3))
    encoder.encode(crops(4, seed=1))

    assert torch.equal(kept, Doubling().encode(crops(3)))


def test_more_crops_than_were_captured_run_eagerly() -> None:
    inner, recorder = Doubling(), Recorder()
    encoder = graphed(inner, max_crops=2)
    encoder.capture(recorder, first)

    assert torch.equal(encoder.encode(crops(3)), Doubling().encode(crops(3)))
    assert recorder.replayed == []


def test_an_attention_that_cannot_be_captured_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    most = len(BACKENDS)
    encoder, recorder = graphed(Doubling(), max_crops=2), Recorder([0, *range(most, 2 * most)])

    with caplog.at_level(logging.WARNING, "photonlite"):
        report = encoder.capture(recorder, first)
    encoder.encode(crops(2))
    eager = encoder.encode(crops(1))

    assert report.graphs == 1
    assert recorder.replayed == [1]
    assert torch.equal(eager, Doubling().encode(crops(1)))
    assert len(caplog.records) == 1
    assert "1 crops are encoded without a CUDA graph" in caplog.text
    assert "no such kernel" in caplog.text


def test_the_projection_is_ready_before_the_first_image() -> None:
    inner = Doubling()
    encoder = graphed(inner, max_crops=1)

    encoder.capture(Recorder(), first)

    assert inner.projected == [(1, (1, 1)), (3, (1, 2))]
    assert torch.equal(encoder.project(torch.ones(1, 4, 3), (1, 1)), torch.ones(1, 4, 3))


class Attending(Doubling):
    """Crops attend to themselves, 64 numbers a head."""

    def encode(self, pixels: Tensor) -> Tensor:
        x = (pixels.reshape(len(pixels), 1, -1, 64).to(torch.bfloat16) - 128) / 64
        return torch.nn.functional.scaled_dot_product_attention(x, x, x).flatten(1).unflatten(1, (-1, 64))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a CUDA device")
def test_on_a_card_replays_give_what_the_encoder_gives() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    encoder = GraphedEncoder(Attending(), crop_size=64, max_crops=3, device=device)

    assert encoder.capture(CudaCapturer(device)).graphs == 3

    for count in (1, 3, 2, 3):
        pixels = torch.randint(0, 256, (count, 64, 64, 3), dtype=torch.uint8, device=device)
        torch.testing.assert_close(encoder.encode(pixels), Attending().encode(pixels), atol=1e-2, rtol=1e-2)
