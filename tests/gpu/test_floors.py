import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.gpu.ceilings import Ceilings, Heads, Product, attention_seconds, measure_ceilings, products_seconds
from bench.gpu.clock import Clock
from bench.gpu.floors import (
    Floors,
    bytes_of_expert,
    decoder_bytes,
    encoder_products,
    expert_bytes,
    measure_floors,
    prefill_products,
)
from bench.gpu.models import endless_model
from bench.shapes import TINY
from photonlite.models.layers import MaskedAttention
from photonlite.models.moondream.config import MoondreamConfig
from tests.tiny import CPU, tiny_config

CONFIGS = [MoondreamConfig.from_dict(TINY), tiny_config()]  # the second shares key/value heads


def products_of(work):
    """Operations of matrix products, attention aside."""
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        work()
    counts = counter.get_flop_counts()["Global"]
    return sum(count for operation, count in counts.items() if "attention" not in str(operation))


@pytest.mark.parametrize("config", CONFIGS)
def test_products_of_the_encoder_are_those_that_the_model_computes(config):
    model = endless_model(config, CPU, torch.float32)
    pixels = torch.zeros(3, config.vision.crop_size, config.vision.crop_size, 3, dtype=torch.uint8)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        computed = products_of(lambda: model.vision.encode(pixels))
    assert sum(one.operations for one in encoder_products(config, 3)) == computed


@pytest.mark.parametrize("config", CONFIGS)
def test_products_of_prefill_are_those_that_the_model_computes(config):
    model = endless_model(config, CPU, torch.float32)
    x, positions = torch.zeros(1, 11, config.text.dim), torch.arange(11)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        computed = products_of(lambda: model.forward(x, positions, MaskedAttention()))
    assert sum(one.operations for one in prefill_products(config, 11)) == computed


@pytest.mark.parametrize("config", CONFIGS)
def test_a_decode_step_reads_every_matrix_of_the_decoder_once(config):
    text = endless_model(config, CPU, torch.bfloat16).text
    matrices = [weight for weight in text.blocks.parameters() if weight.ndim == 2]
    assert decoder_bytes(config, torch.bfloat16, head=False) == sum(weight.nbytes for weight in matrices)
    head = decoder_bytes(config, torch.bfloat16) - decoder_bytes(config, torch.bfloat16, head=False)
    assert head == text.lm_head.weight.nbytes


def test_the_floor_of_decoding_counts_keys_and_values_of_every_stream():
    config = MoondreamConfig.from_dict({"model_type": "moondream2"})
    ceilings = Ceilings(1e9, "a sum", 1e9, 1e12, 8192, torch.bfloat16)
    floors = Floors(Clock(CPU), config, torch.bfloat16, ceilings)

    one, many = (floors.decode(streams, 850, kv_bytes=2) for streams in (1, 33))
    # 196,608 bytes a position of Moondream 2, in two bytes a number.
    assert (many - one) * 1e9 == pytest.approx(32 * 850 * 196_608)
    weights = one - floors.decode(0, 850, kv_bytes=2)
    assert one == pytest.approx(weights + (2.416e9 + 0.210e9) / 1e9, rel=1e-3)
    assert floors.decode(32, 850, kv_bytes=1, head=False) < floors.decode(32, 850, kv_bytes=1) < many
    assert floors.decode(0, 850, kv_bytes=2, matrices=2 * 10**9) == pytest.approx(2)


@pytest.mark.parametrize("fp8", [False, True])
def test_the_floor_of_experts_counts_those_that_even_routes_meet(fp8):
    config = MoondreamConfig.from_dict({"model_type": "moondream3", "text": {"moe": {"fp8": fp8}}})
    each = 6_291_456 * (1 if fp8 else 2) + (4 * 4096 if fp8 else 0)

    assert bytes_of_expert(config, torch.bfloat16) == each
    for streams, met in ((1, 8), (4, 26.5), (8, 42.0), (32, 63.1)):
        assert expert_bytes(config, torch.bfloat16, streams) == pytest.approx(20 * met * each, rel=2e-3)
    # Of 1,660,813,312 active numbers, biases, norms and alpha aside: all but the 8 experts of each layer.
    assert decoder_bytes(config, torch.bfloat16) == pytest.approx(2 * (1_660_813_312 - 160 * 6_291_456), rel=1e-3)


def test_what_is_measured_are_numbers_above_zero():
    clock = Clock(CPU)
    ceilings = measure_ceilings(clock, torch.float32, size=1 << 16, side=16)
    assert min(ceilings.read, ceilings.copy, ceilings.matmul) > 0
    assert "TB/s" in str(ceilings)
    floors = measure_floors(clock, CONFIGS[0], torch.float32)
    assert floors.encoder(1).seconds > floors.encoder(1).attention_s > 0
    assert floors.encoder(1) is floors.encoder(1)  # measured once
    assert floors.prefill(20, 2).seconds > 0
    assert floors.projector() > 0


def test_a_product_counts_as_often_as_it_runs(monkeypatch):
    monkeypatch.setattr(Clock, "measure", lambda self, work, **options: (work(), Fixed())[1])
    assert products_seconds(Clock(CPU), [Product(5, 8, 8, 12)], torch.float32) == pytest.approx(12 * 6.0 / 6)
    assert products_seconds(Clock(CPU), [Product(16, 8, 8)], torch.float32) == pytest.approx(6.0)
    # Six calls are timed together, at the head size and padded to 16.
    seconds, backend = attention_seconds(Clock(CPU), Heads(1, 2, 5, 8, count=3), torch.float32)
    assert seconds == pytest.approx(3.0)
    assert "MATH" in backend


class Fixed:
    median = 6.0
