import math
from typing import Any

import pytest
import torch
from torch import Tensor

from photonlite.models.layers import attend
from photonlite.models.moondream.model import (
    coord_from_bin,
    fourier_features,
    size_from_bin,
)
from tests.models.moondream.golden import CASES, SKILLS, TOLERANCE, distance, embeddings, expected, loaded
from tests.tiny import tiny_config, tiny_model

PREFIX = 730


class PrefixAttention:
    """Attention over whole sequences: bidirectional in the prefix, causal behind it. Keeps layer 0's keys."""

    def __init__(self, prefix: int) -> None:
        self.prefix = prefix
        self.keys: Tensor | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer == 0:
            self.keys = k
        mask = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril()
        mask[: self.prefix, : self.prefix] = True
        return attend(q, k, v, mask)


@pytest.mark.long
@pytest.mark.parametrize("skill", SKILLS)
@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_a_prompt_gives_the_logits_of_the_reference(case: dict[str, Any], skill: str) -> None:
    model = loaded().model
    ids = torch.tensor([0, *case[f"{skill}_prompt_ids"]])
    words = model.embed(ids)
    x = torch.cat((words[:1], embeddings(case), words[1:]))[None]
    attention = PrefixAttention(PREFIX)

    hidden = model.forward(x, torch.arange(x.shape[1]), attention)[0]
    logits = model.logits(hidden[-1])

    assert distance(hidden[PREFIX - 1], expected(case, "prefix_hidden_last")) <= TOLERANCE
    assert distance(hidden[-1], expected(case, f"{skill}.hidden_last")) <= TOLERANCE
    assert distance(logits, expected(case, f"{skill}.logits")) <= TOLERANCE
    assert int(logits.argmax()) == case[f"{skill}_argmax"]
    assert attention.keys is not None
    assert distance(interleave(attention.keys[0, PREFIX - 1]), expected(case, "prefix_k0_last")) <= TOLERANCE


def interleave(keys: Tensor) -> Tensor:
    """Convert the half-split layout of the rotated dimensions to the reference's interleaved one."""
    half = keys.shape[-1] // 2
    order = [j // 2 + half // 2 * (j % 2) for j in range(half)]
    return torch.cat((keys[..., order], keys[..., half:]), dim=-1)


def test_the_shape_follows_the_configuration() -> None:
    shape = tiny_model(tiny_config(text={"n_layers": 5})).shape

    assert (shape.layers, shape.kv_heads, shape.head_dim) == (5, 1, 8)
    assert (shape.max_context, shape.prefix_length, shape.bos_id) == (120, 26, 0)


def test_crops_follow_the_configuration() -> None:
    spec = tiny_model(tiny_config()).crop_spec

    assert (spec.crop_size, spec.patch_size, spec.overlap_margin, spec.max_crops) == (20, 4, 1, 6)


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
    region = tiny_model(tiny_config(kind, text={"n_kv_heads": 3})).region

    assert type(region.coord_decoder).__name__ == type(region.size_decoder).__name__ == decoder
    assert type(region.ln).__name__ == ("LayerNorm" if decoder == "Linear" else "Identity")


def test_heads_give_bins_width_first() -> None:
    model = tiny_model(tiny_config())
    hidden = torch.randn(7, 24)

    assert model.coordinate_logits(hidden).shape == (7, 40)
    flat = model.region.size_decoder(model.region.ln(hidden))
    assert torch.equal(model.size_logits(hidden), torch.stack((flat[:, :30], flat[:, 30:]), dim=1))
