import pytest
import torch

from bench.nano import backgrounds as module
from bench.nano.backgrounds import KINDS, backgrounds, fractal, grid, smooth_noise, uniform
from tests.tiny import CPU


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_grid_gives_the_centres_of_pixels_x_first():
    x, y = grid(4, CPU)
    assert x[0].tolist() == y[:, 0].tolist() == [0.125, 0.375, 0.625, 0.875]
    assert torch.equal(x, y.T)


def test_uniform_stays_between_its_bounds():
    values = uniform((1000,), -2, 3, CPU)
    assert -2 <= float(values.min()) < -1.9
    assert 2.9 < float(values.max()) < 3


def test_noise_varies_within_the_range_of_a_picture():
    for noise in (smooth_noise(3, 2, 5, 32, CPU), fractal(3, 2, 32, CPU)):
        assert noise.shape == (3, 2, 32, 32)
        assert float(noise.min()) >= 0
        assert float(noise.max()) <= 1
        assert float(noise.std((2, 3)).min()) > 0.05


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_kind_draws_another_picture_every_time(kind):
    made = kind(6, 48, CPU).expand(6, 3, 48, 48)
    assert bool(made.isfinite().all())
    pairs = [(i, j) for i in range(6) for j in range(i)]
    assert all(float((made[i] - made[j]).abs().mean()) > 1e-3 for i, j in pairs)
    flat = made.std((2, 3)).amax(1) < 1e-4
    assert bool(flat.all()) if kind.__name__ == "solid" else not bool(flat.all())


@pytest.mark.parametrize("batch", [1, 5, 22])
def test_backgrounds_are_pictures(batch):
    made = backgrounds(batch, 48, CPU)
    assert made.shape == (batch, 3, 48, 48)
    assert 0 <= float(made.min()) <= float(made.max()) <= 1


def test_all_kinds_are_drawn_equally_often(monkeypatch):
    asked = []

    def fake(number):
        return lambda n, size, device: asked.append((number, n)) or torch.full((n, 3, 1, 1), number / 10)

    monkeypatch.setattr(module, "KINDS", tuple(fake(number) for number in range(11)))
    made = backgrounds(24, 16, CPU)
    assert sum(n for _, n in asked) == 24
    assert {n for _, n in asked} == {2, 3}
    # Kinds come in random order; a third of the pictures are blends of two.
    whole = [round(float(picture[0, 0, 0]) * 10) for picture in made if float(picture.std()) < 1e-4]
    assert len(whole) >= 16
    assert whole != sorted(whole)
    assert any(float(picture.std()) > 0.01 for picture in made)
