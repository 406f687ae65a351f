import random

import pytest
import torch

from bench.nano.scenes.batched import bank as module
from bench.nano.scenes.batched.bank import BackgroundBank, take
from tests.tiny import CPU

PLAIN = torch.eye(3, 4).expand(1, 2, 3, 4)
FIRST_ONLY = torch.zeros(1, 11)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    random.seed(0)  # draws the kinds: two plain ones may be as good as the same


@pytest.fixture
def kinds(monkeypatch):
    """Four kinds, each of one grey."""
    painters = tuple(lambda canvas, k=k: torch.full((canvas.batch, 3, 1, 1), k / 8) for k in range(1, 5))
    monkeypatch.setattr(module, "KINDS", painters)


def test_all_kinds_are_painted_equally_often(kinds):
    bank = BackgroundBank(16, CPU, 40)
    values, counts = bank.texels[:, 0, 0, 0].unique(return_counts=True)
    assert values.tolist() == [round(255 * k / 8) for k in range(1, 5)]
    assert counts.tolist() == [10] * 4
    assert torch.allclose(bank.means[:, 0], bank.texels[:, 0, 0, 0] / 255, atol=1 / 255)


def test_refresh_paints_the_oldest_entries(kinds, monkeypatch):
    bank = BackgroundBank(16, CPU, 10)
    monkeypatch.setattr(module, "KINDS", (lambda canvas: torch.ones(canvas.batch, 3, 1, 1),) * 4)
    bank.refresh(7)
    assert (bank.texels[:, 0, 0, 0] == 255).tolist() == [True] * 7 + [False] * 3
    assert (bank.means[:, 0] == 1).tolist() == [True] * 7 + [False] * 3
    bank.refresh(5)
    assert bool((bank.texels[..., :3] == 255).all())


@pytest.mark.parametrize("size", [(32, 48), (48, 32), (32, 32)])
def test_scenes_get_images_that_differ(size):
    bank = BackgroundBank(48, CPU, 8)
    made = bank(12, size)
    assert made.shape == (12, 3, *size)
    assert 0 <= float(made.min()) <= float(made.max()) <= 1
    assert all(float((made[i] - made[j]).abs().mean()) > 1e-3 for i in range(12) for j in range(i))


def test_places_lie_inside_the_entry():
    bank = BackgroundBank(48, CPU, 1)
    place = bank._places(200, (32, 48))
    ends = place[..., 2] + place[..., :2].abs().sum(-1), place[..., 2] - place[..., :2].abs().sum(-1)
    assert float(ends[0].max()) <= bank.side - 0.5 + 1e-3
    assert float(ends[1].min()) >= -0.5 - 1e-3
    turned = (place[:, 0, 0, 0] == 0).float().mean()
    assert 0.35 < float(turned) < 0.65


def test_contrast_and_order_of_channels_change_around_the_mean():
    bank = BackgroundBank(16, CPU, 2)
    entry = torch.randint(2, (100, 2))
    maps = bank._colours(entry)
    # What is as bright as the entry's mean keeps its brightness, inverted or not, whatever the contrast.
    mean = bank.means[entry]
    out = (maps[..., :3] * mean[:, :, None]).sum(-1) + maps[..., 3]
    same, inverted = (out.sort(-1).values - other.sort(-1).values for other in (mean, 1 - mean))
    assert float(torch.minimum(same.abs().amax(-1), inverted.abs().amax(-1)).max()) < 1e-5
    strength = maps[..., :3].abs().amax((-1, -2))
    assert 0.3 <= float(strength.min()) < 0.4
    assert 0.9 < float(strength.max()) <= 1


def test_take_samples_between_texels():
    texels = torch.zeros(1, 4, 4, 4, dtype=torch.uint8)
    texels[..., :3] = (torch.arange(4) * 50)[:, None].to(torch.uint8)  # brighter to the right
    place = torch.tensor([[1.0, 0.0, 1.5], [0.0, 1.0, 1.5]]).expand(1, 2, 2, 3)
    made = take(texels, torch.zeros(1, 2, dtype=torch.long), place, PLAIN, FIRST_ONLY, (2, 2))
    assert made[0, 0].mul(255).tolist() == [pytest.approx([50, 100]), pytest.approx([50, 100])]


def test_the_mask_chooses_between_two_entries():
    texels = torch.zeros(2, 4, 4, 4, dtype=torch.uint8)
    texels[1] = 255
    place = torch.tensor([[1.0, 0.0, 1.5], [0.0, 1.0, 1.5]]).expand(1, 2, 2, 3)
    mask = torch.zeros(1, 11)
    mask[0, 0], mask[0, 9], mask[0, 10] = 1.5, 100.0, 1.0  # sin(1.5 x), hard
    made = take(texels, torch.tensor([[0, 1]]), place, PLAIN, mask, (2, 4))
    assert made[0, 0, 0].round().tolist() == [0, 0, 1, 1]
    mask[0, 10] = 0
    assert not take(texels, torch.tensor([[0, 1]]), place, PLAIN, mask, (2, 4)).any()
