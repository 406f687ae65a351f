import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from photonlite.config import Precision
from photonlite.errors import CheckpointError, ConfigError, InputError, SettingsError
from photonlite.kernels import cards
from photonlite.models.checkpoint import load_files
from photonlite.models.families import LoadOptions
from photonlite.models.layers import MaskedAttention
from photonlite.models.loading import ModelFiles, resolve
from photonlite.models.precisions import Precisions, check_precisions
from photonlite.models.quantised import QuantisedLinear, fused_obstacle, obstacle, outline_bytes, prepare
from photonlite.models.shards import stored_bytes
from photonlite.models.writing import write_quantised
from tests.models.checkpoints import GOLDEN, golden_tensors, make_folder
from tests.models.paligemma import tiny as paligemma
from tests.models.qwen import tiny as qwen

CPU, F32 = torch.device("cpu"), torch.float32
NOISE: dict[Precision, float] = {"int8": 0.06, "fp8": 0.2, "int4": 0.7}


def folder_of(family: str, folder: Path) -> Path:
    """Return a checkpoint of a family: of Qwen-VL one with a head of its own, and one with a tied head."""
    if family == "moondream":
        return GOLDEN
    folder = folder / "full"
    folder.mkdir()
    name, _, case = family.partition("-")
    if name == "qwen":
        return qwen.save(qwen.reference_model(case), folder, case)
    return paligemma.save(paligemma.reference_model("capped"), folder)


FAMILIES = [
    pytest.param(family, marks=[] if family == "moondream" else pytest.mark.long)
    for family in ("moondream", "qwen-3", "qwen-3-tied", "paligemma")
]


def load(files: ModelFiles, precisions: Precisions | None = None, dtype: torch.dtype = F32) -> Any:
    return load_files(files, device=CPU, dtype=dtype, precisions=precisions, max_context=900)


def logits(model: Any) -> Tensor:
    """Return logits behind a short prompt of words."""
    ids = torch.tensor([[5, 9, 30, 7, 100]])
    positions = torch.arange(5)
    if model.shape.axes:
        positions = positions.expand(model.shape.axes, -1)
    hidden = model.forward(model.embed(ids), positions, MaskedAttention(torch.ones(5, 5, dtype=torch.bool).tril()))
    return model.logits(hidden)


def layers(model: nn.Module) -> dict[str, QuantisedLinear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, QuantisedLinear)}


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / (wanted - wanted.mean()).norm())


@torch.inference_mode()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("precision", ["int8", "fp8", "int4"])
def test_every_family_computes_about_the_same(tmp_path: Path, family: str, precision: Precision) -> None:
    files = resolve(folder_of(family, tmp_path))
    if (family, precision) == ("paligemma", "int4"):  # its rows have 24 numbers
        with pytest.raises(SettingsError, match=r"text\.blocks\.0\.q cannot have weights in int4: .*16.*int8 or fp8"):
            load(files, Precisions(text=precision))
        return
    full, model = load(files).model, load(files, Precisions(text=precision)).model

    assert 0 < relative(logits(model), logits(full)) < NOISE[precision]
    found = layers(model)
    assert all(name.startswith("text.") for name in found)
    options = LoadOptions(CPU, F32, precisions=Precisions(text=precision))
    unprepared, _ = files.family.load(files.config, files.tokenizer, files.weights, options)
    if family in ("qwen-3-tied", "paligemma"):
        full.text.head = nn.Linear(1, 1, bias=False)
    for name in found:
        full.get_submodule(name).weight = nn.Parameter(found[name].weight)
    assert relative(logits(unprepared), logits(full)) < 1e-5  # the same matrices, in the same places
    assert {name.rpartition(".")[2] for name in found} >= {"lm_head" if family == "moondream" else "head"}
    assert len(found) == sum(isinstance(m, nn.Linear) for m in full.text.modules())


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decoders_layer_computes_a_row_alike_in_any_batch(precision: Precision, dtype: torch.dtype) -> None:
    linear = torch.nn.Linear(256, 128).to(dtype)
    model = torch.nn.ModuleDict({"text": torch.nn.ModuleDict({"layer": QuantisedLinear.of(linear, precision)})})
    prepare(model, torch.device("cpu"))
    layer, x = model.get_submodule("text.layer"), torch.randn(300, 256, dtype=dtype)

    with torch.inference_mode():
        whole = layer(x)
        for count in (1, 3, 16, 64, 65, 299):
            assert torch.equal(layer(x[:count]), whole[:count])


@pytest.mark.parametrize("family", FAMILIES[:2])
def test_a_matrix_is_that_of_the_files_rounded(family: str, tmp_path: Path) -> None:
    files = resolve(folder_of(family, tmp_path))
    for name in ("text.blocks.1.attn.qkv", "text.blocks.1.attn.proj"):
        full, found = (load(files, one).model.get_submodule(name) for one in (None, Precisions(text="int8")))
        half = full.weight.abs().amax(dim=1, keepdim=True) / 127 / 2
        assert bool(((found.weight - full.weight).abs() <= 1.05 * half).all())
        assert found.weight.shape == full.weight.shape


@torch.inference_mode()
def test_the_image_encoder_is_asked_for_apart() -> None:
    files = resolve(GOLDEN)
    full, model = load(files).model, load(files, Precisions(vision="int8")).model
    pixels = torch.randint(256, (1, 378, 378, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)

    assert 0 < relative(model.vision.encode(pixels), full.vision.encode(pixels)) < 0.03
    assert torch.equal(logits(model), logits(full))
    assert all(name.startswith("vision.") for name in layers(model))
    assert "vision.patch_emb" not in layers(model)
    assert obstacle(model.vision) == "its weights are in int8"
    assert obstacle(model.text) is None


@pytest.mark.parametrize("family", [FAMILIES[0], *FAMILIES[2:]])
def test_what_is_written_loads_as_any_folder(family: str, tmp_path: Path) -> None:
    files, precisions = resolve(folder_of(family, tmp_path)), Precisions(text="int8", vision="fp8")
    read: list[int] = []
    write_quantised(files, precisions, tmp_path / "new" / "small", on_read=read.append)
    stored = resolve(tmp_path / "new" / "small")

    loaded, other = load(stored), load(files, precisions)

    with torch.inference_mode():
        assert torch.equal(logits(loaded.model), logits(other.model))
    assert loaded.precisions == Precisions("int8", "fp8", stored=True)
    assert loaded.prompts.skills == other.prompts.skills
    assert sum(read) == stored_bytes(files.weights)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["small"]


@pytest.mark.parametrize("family", [FAMILIES[0], FAMILIES[2]])
def test_bytes_are_known_before_anything_is_read(family: str, tmp_path: Path) -> None:
    files = resolve(folder_of(family, tmp_path))
    for number, precisions in enumerate((Precisions("int8"), Precisions("int4", "int8"))):
        write_quantised(files, precisions, tmp_path / str(number), dtype=torch.bfloat16)
        with torch.device("meta"):
            model = files.family.outline(files.config, files.weights)
        tensors = load_file(tmp_path / str(number) / "model.safetensors")
        assert outline_bytes(model, precisions, torch.bfloat16) == sum(t.nbytes for t in tensors.values())


def test_fp8_on_a_card_that_cannot_convert_it_says_what_can_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    [old] = [card for card in cards.CARDS if card.name == "A100"]
    monkeypatch.setattr(cards, "card_of", lambda device: old)
    monkeypatch.setattr(cards, "HAS_TRITON", True)
    text = nn.Sequential(QuantisedLinear.of(nn.Linear(128, 8), "fp8"))
    reason = fused_obstacle(text, text[0])
    assert reason is not None
    assert "needs compute capability 8.9, A100 has 8.0" in reason
    assert reason.endswith("weights in int8 save time too")


def test_nothing_is_overwritten_and_a_failure_leaves_nothing(tmp_path: Path) -> None:
    files = resolve(GOLDEN)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="exists already: name a new folder"):
        write_quantised(files, Precisions("int8"), tmp_path / "there")
    broken = golden_tensors()
    broken["model.text.blocks.0.attn.qkv.weight"][3, 3] = torch.nan
    bad = resolve(make_folder(tmp_path / "broken", broken))
    with pytest.raises(CheckpointError, match=r"text\.blocks\.0\.attn\.qkv\.weight: .*not finite"):
        write_quantised(bad, Precisions("int8"), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "there"]
    with pytest.raises(SettingsError, match="nothing is to be quantised"):
        write_quantised(files, Precisions(), tmp_path / "out")


def test_files_that_are_quantised_stay_as_they_are(tmp_path: Path) -> None:
    write_quantised(resolve(GOLDEN), Precisions("int8", "int8"), tmp_path / "small")
    files = resolve(tmp_path / "small")

    assert load(files, Precisions("int8")).precisions.text == "int8"
    with pytest.raises(SettingsError, match="asked for with text in int4, but the files have text in int8 and vision"):
        load(files, Precisions("int4"))
    with pytest.raises(SettingsError, match="already"):
        write_quantised(files, Precisions("int4"), tmp_path / "smaller")


@pytest.mark.parametrize("section", [{"weights": "int3"}, {"weights": ["int8"]}, {"vision_weights": 8}])
def test_precisions_that_a_config_does_not_know_are_refused(section: dict[str, Any], tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "odd")
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(raw | {"quantization_config": {"quant_method": "photonlite"} | section})
    )
    with pytest.raises(ConfigError, match="photonlite knows int8, fp8, int4"):
        resolve(folder)


def test_a_file_with_another_type_than_its_config_says_is_refused(tmp_path: Path) -> None:
    write_quantised(resolve(GOLDEN), Precisions("int8"), tmp_path / "small")
    raw = json.loads((tmp_path / "small" / "config.json").read_text())
    raw["quantization_config"]["weights"] = "fp8"
    (tmp_path / "small" / "config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match=r"has type I8, where torch\.float8_e4m3fn is expected"):
        load(resolve(tmp_path / "small"))


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    write_quantised(resolve(GOLDEN), Precisions("int4"), tmp_path / "small")
    shutil.copy(GOLDEN / "model.safetensors", tmp_path / "small")
    with pytest.raises(CheckpointError, match="missing"):
        load(resolve(tmp_path / "small"))


def test_arguments_of_load_are_checked() -> None:
    check_precisions("fit", "int8")
    for weights, vision in (("int2", "auto"), (8, "auto"), (None, "auto"), ("auto", "int4")):
        with pytest.raises(SettingsError, match="must be 'auto' or 'int8'"):
            check_precisions(weights, vision)  # type: ignore[arg-type]
