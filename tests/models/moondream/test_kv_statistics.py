import copy
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from bench.bubble.subjects import fill_randomly
from photonlite.images.crops import cut_crops
from photonlite.models.checkpoint import load_checkpoint
from photonlite.models.layers import MaskedAttention
from photonlite.models.moondream.model import MoondreamModel
from tests.tiny import CPU, tiny_config, tiny_model

DESK = Path(__file__).resolve().parents[3] / "assets" / "desk.png"


class Observed(MaskedAttention):
    """Attention that notes the root mean square of keys and values."""

    def __init__(self, mask: Tensor | None = None) -> None:
        super().__init__(mask)
        self.rms: list[tuple[float, float]] = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.rms.append((float(k.square().mean().sqrt()), float(v.square().mean().sqrt())))
        return super().__call__(layer, q, k, v)


def observed(model: MoondreamModel, x: Tensor) -> list[tuple[float, float]]:
    attention = Observed()
    with torch.inference_mode():
        model.forward(x, torch.arange(x.shape[1]), attention)
    return attention.rms


def check(model: MoondreamModel, x: Tensor, factor: float) -> None:
    predicted, seen = model.kv_statistics(), observed(model, x)
    assert len(predicted) == len(seen) == model.shape.layers
    for layer, pairs in enumerate(zip(predicted, seen, strict=True)):
        for guess, truth in zip(*pairs, strict=True):
            assert 1 / factor < guess / truth < factor, f"layer {layer}: {guess} predicted, {truth} seen"


@pytest.mark.parametrize("kv_heads", [1, 3])
def test_keys_and_values_of_random_weights_are_as_large_as_predicted(kv_heads: int) -> None:
    config = tiny_config(text={"n_kv_heads": kv_heads})
    x = torch.randn(1, 60, config.text.dim, generator=torch.Generator().manual_seed(1))
    # With gains and offsets of the norm, biases, and queries a hundred times as large as keys.
    model = tiny_model(config)
    for block in model.text.blocks:
        block.attn.qkv.weight[: config.text.dim] *= 100
        block.attn.qkv.weight[-kv_heads * 8 :] *= 0.01
        block.attn.qkv.bias[-kv_heads * 8 :] *= 0.01
    check(model, x, 1.3)
    plain = copy.deepcopy(model)
    fill_randomly(plain, seed=3)
    check(plain, x, 1.3)


def test_statistics_of_the_shipped_checkpoint_are_within_a_factor_of_2() -> None:
    model = load_checkpoint(None, device=CPU, dtype=torch.float32).model
    assert isinstance(model, MoondreamModel)
    crops = cut_crops(Image.open(DESK).convert("RGB"), model.crop_spec)
    with torch.inference_mode():
        bos = model.embed(torch.tensor([model.shape.bos_id]))
        image = model.encode_image(torch.from_numpy(crops.pixels), crops.tiling)
    check(model, torch.cat((bos, image))[None], 2)


def test_half_precision_weights_are_summed_in_float32() -> None:
    model = tiny_model(tiny_config())
    wanted = model.kv_statistics()
    for found, pair in zip(model.bfloat16().kv_statistics(), wanted, strict=True):
        assert found == pytest.approx(pair, rel=0.01)
