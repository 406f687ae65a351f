import copy
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from bench.bubble.subjects import fill_randomly
from photonlite.images.crops import cut_crops
from photonlite.models.checkpoint import load_checkpoint
from photonlite.models.layers import MaskedAttention, rotary_table, rotate
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.moondream.text import DecoderBlock
from tests.tiny import CPU, tiny_config, tiny_model

DESK = Path(__file__).resolve().parents[3] / "assets" / "desk.png"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("theta", "frequencies"), [(1e4, [1, 0.5623, 0.3162, 0.1778]), (1.5e6, [1, 0.4111, 0.1690, 0.0695])]
)
def test_inverse_frequencies(theta: float, frequencies: list[float]) -> None:
    cos, sin = rotary_table(torch.tensor([1]), 32, theta)

    angle = torch.atan2(sin, cos).flatten()
    assert angle[:4].tolist() == pytest.approx(frequencies, abs=1e-4)
    assert len(angle) == 16


def test_rotary_tables_stay_float32_in_a_bfloat16_model() -> None:
    model = tiny_model(tiny_config()).to(torch.bfloat16)
    tables = []
    model.text.blocks[0].register_forward_pre_hook(lambda module, args: tables.extend(args[1]))

    hidden = model(torch.randn(1, 3, 24, dtype=torch.bfloat16), torch.arange(500, 503), MaskedAttention())

    assert hidden.dtype == torch.bfloat16
    assert [table.dtype for table in tables] == [torch.float32] * 2


def test_half_split_and_interleaved_rotation_give_the_same_products() -> None:
    q, k = torch.randn(2, 1, 5, 2, 16)
    cos, sin = rotary_table(torch.arange(5), 8, 1e4)

    def interleaved(x: torch.Tensor) -> torch.Tensor:
        real, imag = x[..., :4], x[..., 4:8]
        pairs = torch.stack((real * cos - imag * sin, real * sin + imag * cos), dim=-1)
        return torch.cat((pairs.flatten(-2), x[..., 8:]), dim=-1)

    products = torch.einsum("bthd,bshd->bhts", rotate(q, cos, sin), rotate(k, cos, sin))
    assert torch.allclose(products, torch.einsum("bthd,bshd->bhts", interleaved(q), interleaved(k)), atol=1e-5)


def test_rotation_depends_on_the_distance_alone_and_spares_the_second_half() -> None:
    q, k = torch.randn(2, 1, 1, 1, 16)

    def product(at: int, other: int) -> float:
        one = rotate(q, *rotary_table(torch.tensor([at]), 8, 1e4))
        two = rotate(k, *rotary_table(torch.tensor([other]), 8, 1e4))
        assert torch.equal(one[..., 8:], q[..., 8:])
        return float((one * two).sum())

    assert product(3, 1) == pytest.approx(product(90, 88), abs=1e-4)
    assert product(3, 1) != pytest.approx(product(3, 2), abs=1e-4)


def test_positions_may_differ_between_sequences() -> None:
    model = tiny_model(tiny_config())
    x = torch.randn(2, 4, 24)
    positions = torch.tensor([[0, 1, 2, 3], [30, 31, 32, 33]])

    together = model(x, positions, MaskedAttention())

    for row in range(2):
        assert torch.allclose(
            together[row : row + 1], model(x[row : row + 1], positions[row], MaskedAttention()), atol=1e-5
        )


def test_attention_and_mlp_read_the_same_norm() -> None:
    config = tiny_config().text
    block = DecoderBlock(config, 0)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(1, 3, config.dim)
    positions = torch.arange(3)
    rotary = rotary_table(positions, config.rotary_dim, config.rope_theta)
    attention = MaskedAttention()

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(0, rotate(q, *rotary), rotate(k, *rotary), v)

    normed = block.ln(x)
    wanted = x + block.attn(normed, attend) + block.mlp(normed)

    assert torch.allclose(block(x, rotary, positions, attention), wanted)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_query_heads_share_key_heads_in_groups(kv_heads: int) -> None:
    config = tiny_config(
        text={"dim": 32, "n_heads": 4, "n_kv_heads": kv_heads}, vision={"proj_out_dim": 32}, region={"dim": 32}
    )
    seen = {}

    def spy(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen[layer] = (q, k, v)
        group = 4 // kv_heads
        wide_k, wide_v = (t.repeat_interleave(group, dim=2) for t in (k, v))
        weights = (torch.einsum("bthd,bshd->bhts", q, wide_k) / 8**0.5).softmax(-1)
        return torch.einsum("bhts,bshd->bthd", weights, wide_v)

    model = tiny_model(config)
    x = torch.randn(1, 6, 32)
    by_hand = model(x, torch.arange(6), spy)

    assert seen[1][0].shape == (1, 6, 4, 8)
    assert seen[1][1].shape == seen[1][2].shape == (1, 6, kv_heads, 8)
    assert torch.allclose(by_hand, model(x, torch.arange(6), MaskedAttention()), atol=1e-5)


def test_a_mask_hides_what_comes_later() -> None:
    model = tiny_model(tiny_config())
    x = torch.randn(1, 6, 24)
    causal = MaskedAttention(torch.ones(6, 6).tril().bool())
    changed = x.clone()
    changed[:, 4] = torch.randn(24)

    before, after = model(x, torch.arange(6), causal), model(changed, torch.arange(6), causal)

    assert torch.allclose(before[:, :4], after[:, :4], atol=1e-5)
    assert not torch.allclose(before[:, 5], after[:, 5], atol=1e-3)


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
