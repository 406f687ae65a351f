import pytest
import torch

from bench.nano.scenes.batched.backgrounds import KINDS
from bench.nano.scenes.batched.painting import Canvas, look_up, uniform
from tests.tiny import CPU


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_grid_gives_the_centres_of_pixels_x_first():
    x, y = Canvas(1, 4, CPU).grid()
    assert x[0].tolist() == y[:, 0].tolist() == [0.125, 0.375, 0.625, 0.875]
    assert torch.equal(x, y.T)


def test_uniform_stays_between_its_bounds():
    values = uniform((1000,), -2, 3, CPU)
    assert -2 <= float(values.min()) < -1.9
    assert 2.9 < float(values.max()) < 3


def test_noise_varies_within_the_range_of_an_image():
    canvas = Canvas(3, 32, CPU)
    for noise in (canvas.smooth_noise(2, 5), canvas.fractal(2)):
        assert noise.shape == (3, 2, 32, 32)
        assert float(noise.min()) >= 0
        assert float(noise.max()) <= 1
        assert float(noise.std((2, 3)).min()) > 0.05


@pytest.mark.parametrize("kind", dict.fromkeys(KINDS), ids=lambda kind: kind.__name__)
def test_kind_draws_another_image_every_time(kind):
    made = kind(Canvas(6, 48, CPU)).expand(6, 3, 48, 48)
    assert bool(made.isfinite().all())
    pairs = [(i, j) for i in range(6) for j in range(i)]
    assert all(float((made[i] - made[j]).abs().mean()) > 1e-3 for i, j in pairs)
    flat = made.std((2, 3)).amax(1) < 1e-4
    assert bool(flat.all()) if kind.__name__ == "solid" else not bool(flat.all())


def test_look_up_colours_every_index_of_a_plane():
    colour = Canvas(2, 2, CPU).palette(3)
    index = torch.tensor([[0.0, 1.0], [2.0, 3.0]]).expand(2, 1, 2, 2)
    made = look_up(index, colour)
    assert made.shape == (2, 3, 2, 2)
    assert torch.equal(made[:, :, 0, 1], colour[..., 1])
    assert torch.equal(made[:, :, 1, 1], colour[..., 0])  # beyond the last it begins anew
