import numpy as np
import pytest
import torch

from bench.bubble.subjects import random_model
from bench.kv_fp8.rounding import Prompt, RoundedAttention, WatchedAttention, compare_logits, watch_layers
from photonlite.images.crops import ImageCrops
from photonlite.kernels.reference.attention import FP8
from photonlite.models.layers import MaskedAttention
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.model import MoondreamModel
from photonlite.runner.buffers import KvFormat
from tests.tiny import CPU, tiny_config, tiny_model


def prompt(config: MoondreamConfig, words: int) -> Prompt:
    rng = np.random.default_rng(0)
    side = config.vision.crop_size
    crops = ImageCrops(rng.integers(0, 256, (1, side, side, 3), np.uint8), (1, 1))
    return Prompt(crops, rng.integers(21, config.text.vocab_size, words).tolist())


class Foretold:
    def kv_statistics(self) -> list[tuple[float, float]]:
        return [(1.0, 1.0)]


def test_rounding_costs_what_four_bits_must_and_cuts_what_is_too_large() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 200, 2, 16, generator=generator)
    mask = torch.ones(200, 200, dtype=torch.bool).tril()
    watched = WatchedAttention(mask, Foretold(), KvFormat(FP8, ((0.25, 2.0**-9),)))  # type: ignore[arg-type]

    out = watched(0, q, k, v)

    assert torch.equal(out, MaskedAttention(mask)(0, q, k, v))
    [layer] = watched.layers
    assert layer.keys.error == pytest.approx(0.026, abs=0.002)
    assert layer.keys.observed == pytest.approx(1, abs=0.05)
    assert layer.keys.largest == pytest.approx(4 * float(k.abs().max()))
    assert layer.values.largest > 448
    assert layer.values.error > 0.1
    assert layer.attention > layer.keys.error
    rounded = RoundedAttention(mask, KvFormat(FP8, ((0.25, 0.25),)))(0, q, k, v)
    assert 0.001 < float((rounded - out).norm() / out.norm()) < 0.1


def test_every_layer_of_a_model_is_watched() -> None:
    model = tiny_model(tiny_config())

    layers = watch_layers(model, prompt(model.config, 20))

    assert len(layers) == model.shape.layers
    assert all(0.015 < one.error < 0.04 for layer in layers for one in (layer.keys, layer.values))


def test_logits_are_compared_with_the_same_weights_in_float32() -> None:
    config = tiny_config("moondream2")
    model: MoondreamModel = random_model(config, CPU, torch.float32)
    for parameter in model.parameters():
        parameter.mul_(20)

    found = compare_logits(model, prompt(config, 40), torch.bfloat16)

    plain, both, fp8 = found.values()
    assert list(found) == ["bfloat16, KV in bfloat16", "bfloat16, KV in FP8", "float32, KV in FP8"]
    assert 0 < plain.error < both.error < 0.5
    assert 0 < fp8.error < both.error * 1.1
    assert all(0.5 < one.agree <= 1 and one.lost < one.error * 10 for one in found.values())
