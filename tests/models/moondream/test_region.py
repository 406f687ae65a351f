import math

import pytest
import torch

from photonlite.models.moondream.model import (
    coord_from_bin,
    fourier_features,
    size_from_bin,
)
from tests.tiny import tiny_config, tiny_model


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("index", "size"),
    [
        (0, 0.0009765625),
        (100, 0.0019229),
        (512, 0.031356),
        (780, 0.192727),
        (838, 0.285506),
        (1022, 0.993247),
        (1023, 1),
    ],
)
def test_the_size_table(index: int, size: float) -> None:
    assert float(size_from_bin(torch.tensor(index), 1024)) == pytest.approx(size, rel=5e-5)


def test_golden_bins_give_the_golden_box() -> None:
    x, y = coord_from_bin(torch.tensor([269, 284]), 1024).tolist()
    width, height = size_from_bin(torch.tensor([780, 838]), 1024).tolist()

    box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    golden = (0.16633163392543793, 0.1345907300710678, 0.3590589910745621, 0.4200967699289322)
    assert box == pytest.approx(golden, abs=1e-6)
    assert coord_from_bin(torch.tensor([289, 326]), 1024).tolist() == [0.2822265625, 0.318359375]


def test_fourier_features_are_cosines_then_sines_of_whole_turns() -> None:
    value, frequencies = torch.tensor([[0.25, 0.5]]), torch.tensor([[1.0, 2.0], [0.0, 1.0]])

    angles = [2 * math.pi * 0.25, 2 * math.pi * (0.25 * 2 + 0.5)]
    wanted = [math.cos(a) for a in angles] + [math.sin(a) for a in angles]
    assert fourier_features(value, frequencies)[0].tolist() == pytest.approx(wanted, abs=1e-6)


def test_values_are_rounded_to_the_type_of_the_features_first() -> None:
    value = torch.tensor([[0.1234567]])
    frequencies = torch.tensor([[3.0]], dtype=torch.bfloat16)

    rounded = value.to(torch.bfloat16)
    assert torch.equal(fourier_features(value, frequencies), fourier_features(rounded, frequencies))
    assert fourier_features(value, frequencies).dtype == torch.bfloat16


@pytest.mark.parametrize(("kind", "decoder"), [("moondream2", "MLP"), ("moondream3", "Linear")])
def test_the_decoder_belongs_to_the_family(kind: str, decoder: str) -> None:
    region = tiny_model(tiny_config(kind)).region

    assert type(region.coord_decoder).__name__ == type(region.size_decoder).__name__ == decoder
    assert type(region.ln).__name__ == ("LayerNorm" if decoder == "Linear" else "Identity")


def test_heads_give_bins_width_first() -> None:
    model = tiny_model(tiny_config())
    hidden = torch.randn(7, 24)

    assert model.coordinate_logits(hidden).shape == (7, 40)
    flat = model.region.size_decoder(model.region.ln(hidden))
    assert torch.equal(model.size_logits(hidden), torch.stack((flat[:, :30], flat[:, 30:]), dim=1))
