import inspect
from types import SimpleNamespace

import pytest
import torch

from bench.nano.questions.mix import ROOM
from bench.nano.scenes.batched.layouts import Difficulty
from bench.nano.scenes.batched.truth import TOLD, Dense
from bench.nano.training.batches import BatchSource, sheet_size, tiling_shares
from bench.nano.training.loss import Learner, cut_sheet
from photonlite.images.crops import CropSpec, select_tiling
from photonlite.models.moondream.config import MoondreamConfig
from tests.nano.small import composer, maker
from tests.tiny import tiny_config

ONE = CropSpec(crop_size=384, patch_size=16, overlap_margin=2, max_crops=1)
FOUR = CropSpec(crop_size=256, patch_size=16, overlap_margin=2, max_crops=4)


@pytest.mark.long
def test_a_batch_is_what_the_learner_takes():
    feed = BatchSource(composer(), maker(), 3)
    *batch, start = feed(Difficulty())
    names = [name for name in inspect.signature(Learner.forward).parameters if name != "self"]
    assert len(batch) == len(names)
    shapes = {name: tuple(value.shape) for name, value in zip(names, batch, strict=True)}
    assert all(shape[0] == 3 for shape in shapes.values())
    assert shapes["ids"] == shapes["weight"] == shapes["outline"] == shapes["part"] == (3, ROOM)
    assert start.shape == (3, ROOM)
    assert shapes["values"] == (3, ROOM, 2)
    assert shapes["boxes"] == (*shapes["labels"], 4)
    assert shapes["outlines"] == (*shapes["labels"], 2 * TOLD)
    assert names[1:7] == list(Dense._fields)


@pytest.mark.long
def test_the_feed_draws_scenes_of_the_difficulty_wanted():
    feed = BatchSource(composer(), maker(), 8)

    def kinds(difficulty):
        return [len(row[row < composer().classes].unique()) for row in feed(difficulty)[1]]

    assert max(kinds(Difficulty(max_count=1))) == 1  # some scenes are empty
    assert max(kinds(Difficulty())) > 1


@pytest.mark.long
def test_backgrounds_stay_fresh(monkeypatch):
    strokes = []
    monkeypatch.setattr(composer().bank, "refresh", strokes.append)
    monkeypatch.setattr(BatchSource, "_make", lambda feed: ())
    feed = BatchSource(composer(), maker(), 1)
    for _ in range(8):
        feed(Difficulty())
    assert len(strokes) == 2
    assert min(strokes) > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_batch_on_a_gpu_is_there_before_its_step_reads_it_and_as_long_as_it_does(monkeypatch):
    device = torch.device("cuda", 0)

    def make(feed):
        torch.cuda._sleep(1_000_000)  # a step that did not wait for its batch would read what its store held before
        return (torch.rand(1 << 16, device=device),)

    monkeypatch.setattr(BatchSource, "_make", make)
    feed = BatchSource(SimpleNamespace(device=device, bank=SimpleNamespace(refresh=lambda count: None)), None, 1)
    begun, ended = [], []
    for _ in range(12):
        (batch,) = feed(Difficulty())
        begun.append(batch.clone())
        torch.cuda._sleep(20_000_000)  # many batches could be made during a step: stores are not overwritten while read
        ended.append(batch.clone())

    assert len(torch.stack(begun).unique(dim=0)) == 12
    assert torch.equal(torch.stack(ended), torch.stack(begun))


def test_one_crop_has_one_tiling():
    assert tiling_shares(ONE) == {(1, 1): 1.0}
    assert sheet_size(ONE, (1, 1)) == (384, 384)


def test_tilings_are_those_of_the_engine():
    shares = tiling_shares(FOUR)
    assert sum(shares.values()) == pytest.approx(1)
    for tiling, share in shares.items():
        assert share >= 0.04
        rows, columns = sheet_size(FOUR, tiling)
        assert tiling == (1, 1) or select_tiling(3 * rows, 3 * columns, FOUR) == tiling
    assert {(1, 1), (1, 2), (2, 1), (2, 2)} <= set(shares)
    # Upright images are as common as broad ones.
    assert shares[(1, 2)] == pytest.approx(shares[(2, 1)], abs=0.03)


def test_sheets_fit_the_learner():
    config: MoondreamConfig = tiny_config(vision={"max_crops": 4})
    spec = CropSpec(20, 4, 1, 4)
    for tiling in ((1, 2), (2, 2), (2, 1)):
        crops, found = cut_sheet(torch.zeros(1, *sheet_size(spec, tiling), 3, dtype=torch.uint8), config.vision)
        assert found == tiling
        assert crops.shape[0] == 1 + tiling[0] * tiling[1]
