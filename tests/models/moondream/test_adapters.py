"""Moondream's own adapters, against plain arithmetic written from the facts about them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from photonlite.errors import AdapterError
from photonlite.kernels.adapters import AdapterRows
from photonlite.models.adapters.files import find_adapter, read_adapter
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.layers import MaskedAttention
from photonlite.models.moondream import checkpoint
from photonlite.models.moondream.model import MoondreamModel
from tests.tiny import CPU, EXPERTS, tiny_config, tiny_model

OLD = {"mixer.Wqkv": (24, 40), "mixer.out_proj": (24, 24), "mlp.fc1": (24, 32), "mlp.fc2": (32, 24)}


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64) * shape[-1] ** -0.5


def old_variant(rank: int = 3) -> dict[str, Tensor]:
    torch.manual_seed(0)
    found = {}
    for block in range(2):
        for name, (inputs, outputs) in OLD.items():
            key = f"text_model.transformer.h.{block}.{name}.parametrizations.weight.0"
            found |= {f"{key}.A": draw(rank, inputs), f"{key}.B": draw(outputs, rank)}
    return found


def bank_of(model: MoondreamModel, tensors: dict[str, Tensor], folder: Path) -> AdapterBank:
    save_file({key: one.contiguous() for key, one in tensors.items()}, folder / "final.safetensors")
    weights = read_adapter(find_adapter(folder / "final.safetensors"), model, checkpoint, dtype=torch.float64, rank=8)
    bank = AdapterBank(model, slots=1, rank=8)
    bank.write(1, weights)
    return bank


def run(model, x: Tensor) -> Tensor:
    length = x.shape[1]
    mask = MaskedAttention(torch.ones(length, length, dtype=torch.bool).tril())
    return model.forward(x, torch.arange(length), mask)


def adapted(bank: AdapterBank, x: Tensor, slots: list[int]) -> Tensor:
    with torch.inference_mode(), bank.running(AdapterRows.of(slots, [1] * len(slots), CPU)) as model:
        return run(model, x)


class OldReference(MoondreamModel):
    """The public reference's way: no scale, and the term of `proj` reads what the norm returns."""

    def forward(self, x, positions, attention, deepstack=None):
        from photonlite.models.layers import rotary_table, rotate

        rotary = rotary_table(positions, self.text.rotary_dim, self.text.rope_theta)
        for index, block in enumerate(self.text.blocks):

            def low(name: str, value: Tensor, index: int = index) -> Tensor:
                key = f"text_model.transformer.h.{index}.{name}.parametrizations.weight.0"
                return value @ self.variant[f"{key}.A"].T @ self.variant[f"{key}.B"].T

            n = block.ln(x)
            qkv = (block.attn.qkv(n) + low("mixer.Wqkv", n)).unflatten(-1, (-1, 8))
            q, k, v = qkv.split((3, 1, 1), dim=2)
            out = attention(index, rotate(q, *rotary), rotate(k, *rotary), v).flatten(2)
            attended = block.attn.proj(out) + low("mixer.out_proj", n)
            inside = functional.gelu(block.mlp.fc1(n) + low("mlp.fc1", n), approximate="tanh")
            x = x + attended + block.mlp.fc2(inside) + low("mlp.fc2", inside)
        return x


def test_a_variant_of_moondream_2_answers_as_the_reference(tmp_path: Path) -> None:
    model, reference = tiny_model(tiny_config()).double(), tiny_model(tiny_config()).double()
    reference.__class__, reference.variant = OldReference, old_variant()
    x = torch.randn(3, 6, 24, dtype=torch.float64)
    found = adapted(bank_of(model, reference.variant, tmp_path), x, [1, 0, 1])
    with torch.inference_mode():
        expected, plain = run(reference, x), run(model, x)
    torch.testing.assert_close(found[[0, 2]], expected[[0, 2]])
    torch.testing.assert_close(found[1], plain[1])
    assert not torch.allclose(expected[0], plain[0])


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("mixer.out_proj.parametrizations.weight.0", "lacks a matrix of text.blocks.1.attn.proj"),
        ("B", "lacks a matrix"),
    ],
)
def test_a_variant_has_all_four_layers_of_every_block(tmp_path: Path, lost: str, message: str) -> None:
    tensors = {key: one for key, one in old_variant().items() if not ("h.1" in key and lost in key)}
    with pytest.raises(AdapterError, match=message):
        bank_of(tiny_model(tiny_config()), tensors, tmp_path)


def test_a_file_of_nothing_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="holds weight, which is no part of a Moondream variant"):
        bank_of(tiny_model(tiny_config()), {"weight": draw(3, 3)}, tmp_path)


NEW = tiny_config("moondream3", text=EXPERTS)


def new_variant(prefix: str = "text_lora.", rank: int = 2) -> dict[str, Tensor]:
    """One block is dense; the other has 8 experts whose MLPs have an inner size of 10."""
    torch.manual_seed(1)
    dense = {"up_a": (rank, 24), "up_b": (32, rank), "down_a": (rank, 32), "down_b": (24, rank)}
    moe = {"up_a": (8, rank, 24), "up_b": (8, 20, rank), "down_a": (8, rank, 10), "down_b": (8, 24, rank)}
    found = {f"{prefix}dense.0.{name}": draw(*shape) for name, shape in dense.items()}
    return found | {f"{prefix}moe.0.{name}": draw(*shape) for name, shape in moe.items()}


@pytest.mark.parametrize("prefix", ["text_lora.", "model._text."])
def test_a_variant_of_moondream_3_changes_each_expert(tmp_path: Path, prefix: str) -> None:
    model, changed = tiny_model(NEW).double(), tiny_model(NEW).double()
    tensors = new_variant(prefix)
    with torch.no_grad():
        for block, kind in ((0, "dense"), (1, "moe")):
            mlp = changed.text.blocks[block].mlp
            for layer, side in ((mlp.fc1, "up"), (mlp.fc2, "down")):
                key = f"{prefix}{kind}.0.{side}"
                layer.weight += tensors[f"{key}_b"] @ tensors[f"{key}_a"]
    x = torch.randn(3, 5, 24, dtype=torch.float64)
    found = adapted(bank_of(model, tensors, tmp_path), x, [1, 0, 1])
    with torch.inference_mode():
        torch.testing.assert_close(found[[0, 2]], run(changed, x)[[0, 2]])
        torch.testing.assert_close(found[1], run(model, x)[1])


def test_a_variant_of_another_generation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="no part of a Moondream variant"):
        bank_of(tiny_model(tiny_config()), new_variant(), tmp_path)
    with pytest.raises(AdapterError, match="was made for another model"):
        bank_of(tiny_model(NEW), {key: one[..., :-1] for key, one in new_variant().items()}, tmp_path)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("moe.0.up_a", (4, 2, 24), "of 8 experts are expected"),
        ("moe.0.up_a", (2, 24), "of 8 experts are expected"),
        ("dense.0.up_a", (2, 2, 24), "was made for another model"),
        ("dense.0.down_b", (24,), r"of shape \[24\]: matrices are needed"),
    ],
)
def test_matrices_of_other_dimensions_are_refused(
    tmp_path: Path, name: str, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(AdapterError, match=message):
        bank_of(tiny_model(NEW).double(), new_variant() | {f"text_lora.{name}": draw(*shape)}, tmp_path)
