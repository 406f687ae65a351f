from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.qwen.fused.vision import FusedTower
from photonlite.runner import patches
from photonlite.runner.graphs import CudaCapturer
from photonlite.runner.patches import MOST_GRAPHS, SIGHTINGS, GraphedPatches
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
        number, self.captured = self.captured, self.captured + 1
        work()

        def replay() -> None:
            self.replayed.append(number)
            work()

        return replay

    def used_bytes(self) -> int:
        return self.captured


class Rig:
    """A tower with graphs, and one without."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, case: str = "3", cameras: Sequence[Grid] = ()) -> None:
        monkeypatch.setattr(patches, "CAMERAS", cameras)
        plain = tower_of(case).double()
        self.images, self.tower, self.recorder = plain.images, plain, Recorder()
        self.graphed = GraphedPatches(FusedTower(plain), plain.images, self.recorder, CPU)
        self.report = self.graphed.capture()

    @torch.inference_mode()
    def check(self, *grids: Grid) -> None:
        given = patches_of(self.tower, list(grids))
        found = self.graphed.encode(given, grids)
        torch.testing.assert_close(found, self.tower.encode(given, grids), rtol=1e-9, atol=1e-9)

    def size_of(self, grid: Grid) -> tuple[int, int]:
        """Width and height of an image that has so many patches."""
        return grid[1] * self.images.patch, grid[0] * self.images.patch


@pytest.mark.parametrize("case", CASES)
def test_a_size_that_comes_often_is_captured_and_gives_the_same(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, case)
    for _ in range(SIGHTINGS - 1):
        rig.check((4, 6))
    rig.check((6, 4))
    assert rig.recorder.captured == 0

    for _ in range(2):
        rig.check((4, 6))
        rig.check((6, 4))  # the graph still has what belongs to its own size

    assert rig.recorder.replayed == [0, 0]


def test_the_sizes_of_cameras_are_captured_at_start_largest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    small, large = rig.size_of((4, 4)), rig.size_of((8, 10))

    rig = Rig(monkeypatch, cameras=(small, large, small, rig.size_of((400, 400))))

    assert (rig.report.graphs, rig.recorder.captured) == (3, 3)
    rig.check((4, 4))
    rig.check((8, 10))
    assert rig.recorder.replayed == [2, 1]


def test_several_images_and_large_ones_need_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "MOST_PATCHES", 32)
    rig = Rig(monkeypatch)
    for _ in range(SIGHTINGS + 1):
        rig.check((4, 4), (4, 4))
        rig.check((4, 10))

    assert rig.recorder.captured == 0


def test_the_graph_that_was_not_needed_for_longest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "SIGHTINGS", 1)
    rig = Rig(monkeypatch)
    sizes = [(2, 2 * columns) for columns in range(1, MOST_GRAPHS + 2)]
    for grid in sizes[:MOST_GRAPHS]:
        rig.check(grid)
    rig.check(sizes[0])
    rig.check(sizes[-1])

    captured = rig.recorder.captured
    rig.check(sizes[0])
    assert rig.recorder.captured == captured == MOST_GRAPHS + 1
    rig.check(sizes[1])
    assert rig.recorder.captured == captured + 1


def test_sizes_that_come_rarely_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "_REMEMBERED", 2)
    rig = Rig(monkeypatch)
    for _ in range(SIGHTINGS):
        for grid in ((2, 2), (2, 4), (4, 2), (4, 4)):
            rig.check(grid)

    assert rig.recorder.captured == 0
    assert len(rig.graphed._sightings) == 2


def test_a_size_that_cannot_be_captured_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(monkeypatch)
    rig.recorder.refuses = True
    for _ in range(2 * SIGHTINGS):
        rig.check((4, 6))

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "images of 4 x 6 patches are encoded without a CUDA graph" in caplog.text


@pytest.mark.gpu
@pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_on_a_card_replays_give_what_the_tower_gives(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "SIGHTINGS", 2)
    device = torch.device("cuda", torch.cuda.current_device())
    tower = tower_of(case).to(device, torch.bfloat16)
    fused = FusedTower(tower)
    graphed = GraphedPatches(FusedTower(tower), tower.images, CudaCapturer(device), device)
    graphed.capture()
    kept: list[tuple[Tensor, Tensor]] = []
    for grid in [(8, 12), (4, 6), (20, 6)] * 4:
        given = patches_of(tower, [grid]).to(device)
        kept.append((graphed.encode(given, [grid]).clone(), fused.encode(given, [grid])))

    assert sum(graph is not None for graph in graphed._graphs.values()) >= 3
    for found, wanted in kept:
        torch.testing.assert_close(found, wanted, atol=0, rtol=0)
