from collections.abc import Callable

import pytest
import torch

from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.qwen.fused.vision import FusedTower
from photonlite.runner import patches
from photonlite.runner.graphs import CudaCapturer
from photonlite.runner.patches import GraphedPatches
from tests.models.qwen.fused.test_vision import patches_of, tower_of
from tests.models.qwen.tiny import CASES

Grid = tuple[int, int]
CPU = torch.device("cpu")


class Recorder:
    """Runs the work where a graph would be captured and replayed; refuses all captures if asked."""

    def __init__(self) -> None:
        self.captured = 0
        self.replayed: list[int] = []
        self.refuses = False

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        if self.refuses:
            raise RuntimeError("no such kernel")
        work()
        number, self.captured = self.captured, self.captured + 1

        def replay() -> None:
            self.replayed.append(number)
            work()

        return replay

    def used_bytes(self) -> int:
        return self.captured


class Rig:
    """A tower with graphs, and one without."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, case: str, *cameras: Grid, refuses: bool = False) -> None:
        plain = tower_of(case).double()
        side = plain.images.patch
        monkeypatch.setattr(patches, "CAMERAS", [(columns * side, rows * side) for rows, columns in cameras])
        self.tower, self.recorder = plain, Recorder()
        self.recorder.refuses = refuses
        self.graphed = GraphedPatches(FusedTower(plain), plain.images, CPU)
        self.report = self.graphed.capture(self.recorder, lambda replays: 0)

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

    assert (rig.report.graphs, rig.recorder.captured) == (2, 2)
    for grid in ((4, 6), (8, 10), (6, 4), (4, 6)):  # a graph still has what belongs to its own size
        rig.check(grid)
    assert rig.recorder.replayed == [1, 0, 1]


def test_several_images_and_other_sizes_need_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "MOST_PATCHES", 32)
    rig = Rig(monkeypatch, "3", (4, 4), (4, 10))

    assert rig.report.graphs == 1
    rig.check((4, 4), (4, 4))
    rig.check((4, 10))
    rig.check((4, 6))
    assert rig.recorder.replayed == []


def test_without_a_camera_small_enough_nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "MOST_PATCHES", 8)
    rig = Rig(monkeypatch, "3", (4, 4))

    assert rig.report.graphs == 0
    rig.check((4, 4))


def test_a_size_that_cannot_be_captured_is_encoded_without_a_graph(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(monkeypatch, "3", (4, 6), refuses=True)
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
    monkeypatch.setattr(patches, "CAMERAS", [(columns * side, rows * side) for rows, columns in grids])
    fused, graphed = FusedTower(tower), GraphedPatches(FusedTower(tower), tower.images, device)
    assert graphed.capture(CudaCapturer(device)).graphs == len(grids)

    for grid in grids * 4:
        given = patches_of(tower, [grid]).to(device)
        found, expected = graphed.encode(given, [grid]).float(), fused.encode(given, [grid]).float()
        assert (found - expected).norm() < 0.02 * expected.norm()  # their attention may be another one
