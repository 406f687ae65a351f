"""Moondream's published int4, whose tensors are made here as its description says."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from photonlite.errors import CheckpointError, SettingsError
from photonlite.models.checkpoint import load_checkpoint, load_files
from photonlite.models.families import LoadOptions
from photonlite.models.loading import resolve
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.moondream.weights import load_model
from photonlite.models.precisions import Precisions
from tests.models.checkpoints import golden_tensors, make_folder

LAYER = "model.text.blocks.1.mlp.fc1"


def published() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the golden tensors with int4 weights in the blocks of the decoder, and the matrices these stand for."""
    tensors, matrices = golden_tensors(), {}
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if ".text.blocks." in name and tensors[name].dim() == 2]:
        shape = tensors.pop(name).shape
        groups = shape.numel() // 128
        codes = torch.randint(16, (groups, 128), generator=generator, dtype=torch.uint8)
        scale = (torch.rand(groups, 1, generator=generator) / 50).bfloat16()
        zero = torch.randint(5, 11, (groups, 1), generator=generator).bfloat16()
        high, low = codes.chunk(2)
        parts = {"packed": high << 4 | low, "scale": scale, "zero_point": zero}
        tensors |= {f"{name}.{part}": value for part, value in parts.items()}
        matrices[name.removeprefix("model.")] = ((codes.float() - zero.float()) * scale.float()).view(shape)
    return tensors, matrices


def load(folder: Path, precisions: Precisions | None = None) -> MoondreamModel:
    files, options = resolve(folder), LoadOptions("cpu", torch.float32, precisions=precisions or Precisions())
    return load_model(files.weights, files.config, options)


def test_published_int4_loads_as_it_is(tmp_path: Path) -> None:
    tensors, matrices = published()
    model = load(make_folder(tmp_path / "int4", tensors))

    assert len(matrices) == 12
    for name, wanted in matrices.items():
        found = model.get_submodule(name.removesuffix(".weight")).weight
        assert torch.allclose(found, wanted, rtol=0, atol=float(wanted.abs().max()) / 200)
    assert isinstance(model.text.lm_head, torch.nn.Linear)


def test_a_loaded_model_says_what_its_files_have_been_quantised_to(tmp_path: Path) -> None:
    where = {"device": torch.device("cpu"), "dtype": torch.float32}
    folder = make_folder(tmp_path / "int4", published()[0])
    assert str(load_checkpoint(folder, **where).precisions) == "text in int4"
    with_vision = load_files(resolve(folder), precisions=Precisions(vision="int8"), **where).precisions
    assert str(with_vision) == "text in int4 and vision in int8"
    assert not load_checkpoint(make_folder(tmp_path / "plain"), **where).precisions


def test_what_is_not_in_int4_is_quantised_when_asked_for(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "int4", published()[0])
    model = load(folder, Precisions("int4", "int8"))

    assert not isinstance(model.text.lm_head, torch.nn.Linear)
    with pytest.raises(SettingsError, match="weights is 'int8', but the checkpoint's own are in int4"):
        load(folder, Precisions("int8"))


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("scale", None, "without scale"),
        ("zero_point", lambda zero: zero[1:], r"zero_point is \[511, 1\] where \[512, 1\]"),
        ("packed", lambda packed: packed.int(), "has type I32 where U8"),
        ("packed", lambda packed: packed[:, :64].contiguous(), r"packed is \[256, 64\]"),
    ],
)
def test_damaged_int4_is_refused(part: str, change: object, message: str, tmp_path: Path) -> None:
    tensors, _ = published()
    value = tensors.pop(f"{LAYER}.weight.{part}")
    if change is not None:
        tensors[f"{LAYER}.weight.{part}"] = change(value)  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=message):
        load(make_folder(tmp_path / "int4", tensors))


def test_int4_of_a_layer_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    tensors, _ = published()
    for part in ("packed", "scale", "zero_point"):
        tensors[f"model.text.blocks.7.mlp.fc1.weight.{part}"] = tensors[f"{LAYER}.weight.{part}"].clone()
    with pytest.raises(CheckpointError, match=r"blocks\.7.*no place"):
        load(make_folder(tmp_path / "int4", tensors))
