import copy

import pytest
import torch
from torch import Tensor

from photonlite.models.layers import MaskedAttention
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.fused.layers import pack_blocks
from photonlite.models.moondream.model import MoondreamModel
from tests.tiny import tiny_config, tiny_model

CONFIGS = [
    pytest.param(tiny_config(), id="one-shared-kv-head"),
    pytest.param(tiny_config("moondream2", text={"n_heads": 6, "n_kv_heads": 3}), id="3-of-6-kv-heads"),
    pytest.param(tiny_config(text={"n_layers": 1, "n_kv_heads": 3}), id="one-layer"),
]


def hidden(model: MoondreamModel) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 9, model.shape.dim, generator=generator).to(model.text.wte)
    return model.forward(x, torch.arange(9), MaskedAttention(torch.ones(9, 9).tril().bool()))


@pytest.mark.parametrize("config", CONFIGS)
def test_matrices_are_those_of_the_layers_side_by_side(config: MoondreamConfig) -> None:
    model = tiny_model(config)
    text = copy.deepcopy(model.text)

    packed = pack_blocks(model.text)

    assert len(packed) == config.text.n_layers
    for block, plain in zip(packed, text.blocks, strict=True):
        attn, mlp = plain.attn, plain.mlp
        assert torch.equal(block.w_in, torch.cat((attn.qkv.weight, mlp.fc1.weight)))
        assert torch.equal(block.b_in, torch.cat((attn.qkv.bias, mlp.fc1.bias)))
        assert torch.equal(block.w_out, torch.cat((attn.proj.weight, mlp.fc2.weight), dim=1))
        assert torch.equal(block.b_out, attn.proj.bias + mlp.fc2.bias)
        assert torch.equal(block.ln_weight, plain.ln.weight)
        assert torch.equal(block.ln_bias, plain.ln.bias)
        assert block.eps == plain.ln.eps == 1e-5
        assert block.w_in.is_contiguous()
        assert block.w_out.is_contiguous()


@pytest.mark.parametrize("config", CONFIGS)
def test_packing_keeps_the_parameters_as_views(config: MoondreamConfig) -> None:
    model = tiny_model(config).double()
    before, wanted = copy.deepcopy(model.state_dict()), hidden(model)

    packed = pack_blocks(model.text)

    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    torch.testing.assert_close(hidden(model), wanted, rtol=1e-13, atol=1e-13)
    shared = {
        tensor.untyped_storage().data_ptr() for block in packed for tensor in (block.w_in, block.b_in, block.w_out)
    }
    for block in model.text.blocks:
        layers = (block.attn.qkv, block.mlp.fc1, block.attn.proj, block.mlp.fc2)
        assert {layer.weight.untyped_storage().data_ptr() for layer in layers} <= shared
        assert {layer.bias.untyped_storage().data_ptr() for layer in layers[:2]} <= shared
        assert not any(parameter.requires_grad for parameter in block.parameters())


def test_weights_that_are_loaded_later_reach_the_packed_matrices() -> None:
    model, other = tiny_model(tiny_config()), tiny_model(tiny_config(), seed=1)
    packed = pack_blocks(model.text)

    model.load_state_dict(other.state_dict())

    for block, wanted in zip(packed, pack_blocks(other.text), strict=True):
        assert torch.equal(block.w_in, wanted.w_in)
        assert torch.equal(block.w_out, wanted.w_out)


def test_biases_of_half_precision_are_added_in_full() -> None:
    model = tiny_model(tiny_config(text={"n_layers": 1})).bfloat16()
    block = model.text.blocks[0]
    block.attn.proj.bias.fill_(1.0)
    block.mlp.fc2.bias.fill_(2.0**-10)  # bfloat16 has no 1 + 2**-10

    (packed,) = pack_blocks(model.text)

    assert packed.b_out.dtype == torch.float32
    assert packed.b_out.tolist() == [1 + 2.0**-10] * 24


def test_a_model_is_packed_once() -> None:
    model = tiny_model(tiny_config())
    blocks = model.packed_blocks
    memory = blocks[0].w_in.data_ptr()
    assert model.packed_blocks is blocks
    assert model.text.blocks[0].attn.qkv.weight.data_ptr() == memory
