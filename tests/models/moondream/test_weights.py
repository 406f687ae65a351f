import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from photonlite.errors import CheckpointError
from photonlite.models.families import LoadOptions
from photonlite.models.loading import resolve
from photonlite.models.moondream import weights
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.moondream.weights import load_model
from photonlite.models.shards import find_weights
from tests.models.checkpoints import GOLDEN, SMALL, golden_tensors, make_folder, random_state, shard

VISUAL = "vision_encoder.encoder.model.visual."
# The flat training names, as the reference lists them, from the public ones.
FLAT = [
    (r"vision\.patch_emb\.", f"{VISUAL}patch_embed.linear."),
    (r"vision\.pos_emb$", f"{VISUAL}pos_embed"),
    (r"vision\.blocks\.(\d+)\.ln(\d)\.", rf"{VISUAL}blocks.\1.norm\2."),
    (r"vision\.blocks\.", f"{VISUAL}blocks."),
    (r"vision\.post_ln\.", f"{VISUAL}norm."),
    (r"vision\.proj_mlp\.", "vision_encoder.projection.mlp."),
    (r"text\.wte$", "text_model.transformer.embd.wte.weight"),
    (r"text\.blocks\.(\d+)\.attn\.qkv\.", r"text_model.transformer.h.\1.mixer.Wqkv."),
    (r"text\.blocks\.(\d+)\.attn\.proj\.", r"text_model.transformer.h.\1.mixer.out_proj."),
    (r"text\.blocks\.", "text_model.transformer.h."),
    (r"text\.post_ln\.", "text_model.lm_head.ln."),
    (r"text\.lm_head\.", "text_model.lm_head.linear."),
    (r"region\.(coord|size)_features$", r"region_model.\1_features.weight"),
    (r"region\.(coord|size)_encoder\.", r"region_model.\1_encoder."),
    (r"region\.(coord|size)_decoder\.(fc\d)\.", r"region_model.\1_decoder.\2."),
    (r"region\.(coord|size)_decoder\.", r"region_model.\1_head."),
    (r"region\.ln\.", "region_model.ln."),
]


def flat(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename bare names to the flat layout; Fourier matrices are transposed there."""
    renamed = {}
    for name, value in state.items():
        pattern, new = next((pattern, new) for pattern, new in FLAT if re.match(pattern, name))
        key = re.sub(f"^{pattern}", new, name).replace("region_model.coord_", "region_model.coordinate_")
        renamed[key] = (value.T if name.endswith("_features") else value).contiguous()
    return renamed


def bare(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("model."): value for name, value in state.items()}


def load(folder: Path, dtype: torch.dtype = torch.float32) -> MoondreamModel:
    files = resolve(folder)
    return load_model(files.weights, files.config, LoadOptions("cpu", dtype))


def holds(model: MoondreamModel, state: dict[str, Tensor]) -> bool:
    parameters = dict(model.named_parameters())
    return parameters.keys() == state.keys() and all(torch.equal(parameters[name], state[name]) for name in state)


def small(folder: Path, state: dict[str, Tensor], raw: dict[str, Any] = SMALL) -> MoondreamModel:
    folder.mkdir(exist_ok=True)
    save_file(state, folder / "model.safetensors")
    return load_model(find_weights(folder), MoondreamConfig.from_dict(raw), LoadOptions("cpu", torch.float32))


@pytest.fixture
def small_state() -> dict[str, Tensor]:
    with torch.device("meta"):
        model = MoondreamModel(MoondreamConfig.from_dict(SMALL))
    return random_state({name: tuple(value.shape) for name, value in model.state_dict().items()})


def test_the_public_layout_fills_every_parameter() -> None:
    model = load(GOLDEN)
    assert holds(model, bare(golden_tensors()))
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_the_bare_layout(tmp_path: Path) -> None:
    state = bare(golden_tensors())
    assert holds(load(make_folder(tmp_path, state)), state)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_flat_layout_with_the_decoders_of_moondream_2(tmp_path: Path, compiled: bool) -> None:
    state = bare(golden_tensors())
    renamed = flat(state)
    if compiled:
        renamed = {
            name.replace("_model.", "_model._orig_mod.").replace("h.0.", "h.0._orig_mod."): value
            for name, value in renamed.items()
        }
        assert sum("._orig_mod" in name for name in renamed) > 20
    assert "region_model.coordinate_decoder.fc1.weight" in flat(state)
    assert holds(load(make_folder(tmp_path, renamed)), state)


def test_the_flat_layout_with_the_heads_and_the_norm_of_moondream_3(
    tmp_path: Path, small_state: dict[str, Tensor]
) -> None:
    renamed = flat(small_state)
    assert {"region_model.coordinate_head.weight", "region_model.size_head.bias", "region_model.ln.bias"} <= set(
        renamed
    )
    assert holds(small(tmp_path, renamed), small_state)


def test_a_missing_region_norm_is_skipped(tmp_path: Path, small_state: dict[str, Tensor]) -> None:
    without = {name: value for name, value in small_state.items() if not name.startswith("region.ln.")}
    model = small(tmp_path, without)
    assert holds(model, without)
    assert not model.config.region.norm
    hidden = torch.randn(3, 16)
    decoder = (without["region.coord_decoder.weight"], without["region.coord_decoder.bias"])
    assert torch.allclose(model.coordinate_logits(hidden), torch.nn.functional.linear(hidden, *decoder))


@pytest.mark.parametrize("family", ["moondream3", "photonlite_nano"])
def test_region_heads_are_those_of_the_file_whatever_the_family(tmp_path: Path, family: str) -> None:
    folder = make_folder(tmp_path)
    raw = json.loads((folder / "config.json").read_text())
    raw["text"] |= {"tau": False, "moe": None}
    (folder / "config.json").write_text(json.dumps(raw | {"model_type": family}))

    model = load(folder)

    assert holds(model, bare(golden_tensors()))
    assert (model.config.region.decoder, model.config.region.norm) == ("mlp", False)
    assert not model.config.family.any_id_continues


def test_half_a_region_norm_is_an_error(tmp_path: Path, small_state: dict[str, Tensor]) -> None:
    del small_state["region.ln.bias"]
    with pytest.raises(CheckpointError, match=r"1 missing: region\.ln\.bias"):
        small(tmp_path, small_state)


def test_shards_fill_the_same_parameters(tmp_path: Path) -> None:
    shard(make_folder(tmp_path), golden_tensors())
    assert holds(load(tmp_path), bare(golden_tensors()))


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.float64, torch.float32),
    ],
)
def test_the_type_is_cast_on_load(tmp_path: Path, stored: torch.dtype, wanted: torch.dtype) -> None:
    state = {name: value.to(stored) for name, value in golden_tensors().items()}
    expected = {name: value.to(wanted) for name, value in bare(state).items()}
    assert holds(load(make_folder(tmp_path, state), wanted), expected)


def test_parameters_outlive_the_file(tmp_path: Path) -> None:
    model = load(make_folder(tmp_path))
    file = tmp_path / "model.safetensors"
    with file.open("r+b") as stream:
        stream.write(b"\0" * file.stat().st_size)
    assert holds(model, bare(golden_tensors()))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="lists mappings as Linux does")
def test_no_mapping_of_the_file_remains(tmp_path: Path) -> None:
    model = load(make_folder(tmp_path))
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert model.text.wte.is_contiguous()


def test_loading_leaves_the_random_state_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    load(GOLDEN)
    assert torch.equal(torch.get_rng_state(), before)


def test_stored_buffers_are_ignored(tmp_path: Path) -> None:
    state = golden_tensors()
    extra = ["text.freqs_cis", "text.attn_mask", "text.blocks.0.kv_cache.k_cache", "text.rotary_emb.inv_freq"]
    buffers = {f"model.{name}": torch.zeros(2, dtype=torch.int64) for name in extra}
    assert holds(load(make_folder(tmp_path, state | buffers)), bare(state))


def test_missing_tensors_are_named_and_counted(tmp_path: Path) -> None:
    state = golden_tensors()
    del state["model.text.wte"]
    with pytest.raises(CheckpointError, match=r"1 missing: text\.wte\. Check"):
        load(make_folder(tmp_path, state))
    vision = {name: value for name, value in state.items() if "vision" not in name}
    with pytest.raises(CheckpointError, match=r"334 missing: ([\w.]+; ){5}\.\.\."):
        load(make_folder(tmp_path, vision))


@pytest.mark.parametrize(
    "name",
    [
        "model.text.blocks.3.ln.weight",
        "text.blocks.0.attn.qkv.lora_A.weight",
        "step",
        "text_model.transformer.h.0.moe_quant.up_scale",
    ],
)
def test_an_unexpected_tensor_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=rf"1 unexpected: {re.escape(name)}\."):
        load(make_folder(tmp_path, golden_tensors() | {name: torch.zeros(2)}))


def test_a_wrongly_shaped_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    state = golden_tensors()
    state["model.text.wte"] = state["model.text.wte"][:270].contiguous()
    message = r"1 wrongly shaped: model\.text\.wte is \[270, 128\] where \[272, 128\] is expected"
    with pytest.raises(CheckpointError, match=message):
        load(make_folder(tmp_path, state))


def test_a_flat_fourier_matrix_that_was_not_transposed_is_named_with_the_shapes_of_the_file(tmp_path: Path) -> None:
    renamed = flat(bare(golden_tensors()))
    name = "region_model.size_features.weight"
    renamed[name] = renamed[name].T.contiguous()
    with pytest.raises(CheckpointError, match=r"size_features\.weight is \[2, 32\] where \[32, 2\] is expected"):
        load(make_folder(tmp_path, renamed))


def test_all_kinds_of_misfit_are_in_one_error(tmp_path: Path) -> None:
    state = golden_tensors()
    state["model.text.tew"] = state.pop("model.text.wte")
    state["model.text.post_ln.bias"] = torch.zeros(3)
    with pytest.raises(CheckpointError, match=r"1 missing: text\.wte\. 1 unexpected: .*tew\. 1 wrongly shaped: .*bias"):
        load(make_folder(tmp_path, state))


def test_no_data_are_read_of_a_checkpoint_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = golden_tensors()
    del state["model.text.wte"]
    folder = make_folder(tmp_path, state)
    read: list[object] = []
    monkeypatch.setattr(weights, "read_tensors", read.extend)
    with pytest.raises(CheckpointError, match="missing"):
        load(folder)
    assert read == []


def test_one_parameter_under_two_names_is_an_error(tmp_path: Path) -> None:
    state = golden_tensors()
    state["text.wte"] = state["model.text.wte"] * 2
    with pytest.raises(CheckpointError, match=r"text\.wte in .* and .*text\.wte in .* are the same parameter"):
        load(make_folder(tmp_path, state))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model.text.blocks.0.mlp.fc1.weight", torch.zeros(512, 128).to(torch.float8_e4m3fn)),
        ("model.text.blocks.0.mlp.fc1.weight", torch.zeros(512, 128, dtype=torch.int8)),
    ],
)
def test_a_quantised_checkpoint_is_refused(tmp_path: Path, name: str, value: Tensor) -> None:
    state = golden_tensors() | {name: value}
    with pytest.raises(CheckpointError, match=rf"is quantised \({re.escape(name)} .*not supported.*F16"):
        load(make_folder(tmp_path, state))


def test_an_empty_checkpoint_misses_everything(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"{len(golden_tensors())} missing"):
        load(make_folder(tmp_path, {}))
