import pytest
import torch

from bench.nano.scenes.batched.backgrounds import KINDS, filtered
from bench.nano.scenes.batched.painting import Canvas
from tests.tiny import CPU


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def number(value):
    return torch.tensor(float(value)).view(1, 1, 1, 1)


def centre_of_frequencies(plane):
    """Mean cycles an image along x and along y, weighted by power."""
    power = torch.fft.rfft2(plane).abs().square()[0, 0]
    down = torch.fft.fftfreq(len(power), 1 / len(power)).abs()[:, None]
    right = torch.arange(power.shape[1])[None]
    return float((power * right).sum() / power.sum()), float((power * down).sum() / power.sum())


def test_crests_are_as_many_as_asked_for_and_drawn_out_along_their_direction():
    canvas = Canvas(1, 128, CPU)
    even = filtered._band(canvas, 1, number(16), number(0), number(1))
    right, down = centre_of_frequencies(even)
    assert right == pytest.approx(down, rel=0.2)
    assert (right**2 + down**2) ** 0.5 == pytest.approx(16, rel=0.25)
    along, across = centre_of_frequencies(filtered._band(canvas, 1, number(16), number(0), number(6)))
    assert along < 0.35 * across


def test_what_is_spread_keeps_its_sum_and_its_place():
    impulses = torch.zeros(1, 1, 32, 32)
    impulses[0, 0, 10, 20] = 3.0
    along, across = filtered._frequencies(Canvas(1, 32, CPU), number(0.4))
    spread = filtered._spread(impulses, torch.exp(-0.05 * (along.square() + across.square())))
    assert float(spread.sum()) == pytest.approx(3, rel=1e-4)
    assert int(spread.flatten().argmax()) == 10 * 32 + 20
    assert float(spread[0, 0, 10, 20]) < 1


def test_star_fields_are_dark_with_a_few_bright_places():
    made = filtered.star_field(Canvas(12, 64, CPU)).amax(1)
    dim = made.flatten(1).median(1).values
    assert float(dim.median()) < 0.3
    assert float((made.flatten(1).amax(1) - dim).median()) > 0.3


def test_natural_kinds_are_painted_twice_as_often_as_the_others():
    assert all(KINDS.count(kind) == 2 for kind in filtered.KINDS)
