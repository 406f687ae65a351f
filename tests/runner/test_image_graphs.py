import logging
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from photonlite.kernels.autotune import BACKENDS
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.qwen.fused.vision import FusedTower
from photonlite.runner import image_graphs
from photonlite.runner.graphs import CudaCapturer
from photonlite.runner.image_graphs import GraphedCrops, GraphedPatches
from tests.models.qwen.fused.test_vision import patches_of, tower_of
from tests.models.qwen.tiny import CASES

Grid = tuple[int, int]
CPU = torch.device("cpu")


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


def graphed(encoder: Doubling, max_crops: int = 4) -> GraphedCrops:
    return GraphedCrops(encoder, crop_size=2, max_crops=max_crops, device=CPU)


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


def test_images_that_have_a_part_replay_its_graphs_and_none_of_those_that_may_run_meanwhile() -> None:
    encoder, whole, part = graphed(Doubling()), Recorder(), Recorder(refused=range(len(BACKENDS)))  # of 4 crops

    assert encoder.capture(whole, first).graphs == 4
    assert encoder.capture(part, first, in_part=True).graphs == 3
    kept = [encoder.encode(crops(count)) for count in (2, 4)]
    encoder.in_part = True
    kept += [encoder.encode(crops(count)) for count in (2, 4)]

    assert (len(whole.replayed), len(part.replayed)) == (2, 1)
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
    encoder = GraphedCrops(Attending(), crop_size=64, max_crops=3, device=device)

    assert encoder.capture(CudaCapturer(device)).graphs == 3

    for count in (1, 3, 2, 3):
        pixels = torch.randint(0, 256, (count, 64, 64, 3), dtype=torch.uint8, device=device)
        torch.testing.assert_close(encoder.encode(pixels), Attending().encode(pixels), atol=1e-2, rtol=1e-2)


class Rig:
    """A tower with graphs, and one without."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, case: str, *cameras: Grid, refused: Sequence[int] = ()) -> None:
        plain = tower_of(case).double()
        side = plain.images.patch
        monkeypatch.setattr(image_graphs, "CAMERAS", [(columns * side, rows * side) for rows, columns in cameras])
        self.tower, self.recorder = plain, Recorder(refused)
        self.graphed = GraphedPatches(FusedTower(plain), plain.images, CPU)
        self.report = self.graphed.capture(self.recorder, first)

    @torch.inference_mode()
    def check(self, *grids: Grid) -> None:
        given = patches_of(self.tower, list(grids))
        found = self.graphed.encode(given, grids)
        torch.testing.assert_close(found, self.tower.encode(given, grids), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_the_sizes_of_cameras_are_captured_largest_first_and_give_the_same(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(monkeypatch, case, (4, 6), (8, 10), (4, 6))

    assert rig.report.graphs == 2
    for grid in ((4, 6), (8, 10), (6, 4), (4, 6)):  # a graph still has what belongs to its own size
        rig.check(grid)
    small, large, again = rig.recorder.replayed
    assert large < small == again


def test_several_images_and_other_sizes_need_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_graphs, "MOST_PATCHES", 32)
    rig = Rig(monkeypatch, "3", (4, 4), (4, 10))

    assert rig.report.graphs == 1
    rig.check((4, 4), (4, 4))
    rig.check((4, 10))
    rig.check((4, 6))
    assert rig.recorder.replayed == []


def test_without_a_camera_small_enough_nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_graphs, "MOST_PATCHES", 8)
    rig = Rig(monkeypatch, "3", (4, 4))

    assert rig.report.graphs == 0
    rig.check((4, 4))


def test_a_size_that_cannot_be_captured_is_encoded_without_a_graph(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(monkeypatch, "3", (4, 6), refused=range(len(BACKENDS)))
    rig.check((4, 6))

    assert rig.report.graphs == 0
    assert "images of 4 x 6 patches are encoded without a CUDA graph" in caplog.text


@pytest.mark.gpu
@pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_on_a_card_replays_give_what_the_tower_gives(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    tower = tower_of(case).to(device, torch.bfloat16)
    grids, side = [(8, 12), (4, 6), (20, 6)], tower.images.patch
    monkeypatch.setattr(image_graphs, "CAMERAS", [(columns * side, rows * side) for rows, columns in grids])
    fused, graphed = FusedTower(tower), GraphedPatches(FusedTower(tower), tower.images, device)
    assert graphed.capture(CudaCapturer(device)).graphs == len(grids)

    for grid in grids * 4:
        given = patches_of(tower, [grid]).to(device)
        found, expected = graphed.encode(given, [grid]).float(), fused.encode(given, [grid]).float()
        assert (found - expected).norm() < 0.02 * expected.norm()  # their attention may be another one
