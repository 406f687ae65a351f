import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import photonlite
from photonlite.api import fit
from photonlite.api.fit import choose_precisions
from photonlite.config import EngineConfig
from photonlite.device.collectives import RankGroup
from photonlite.errors import CapacityError, SettingsError
from photonlite.models.families import LoadOptions
from photonlite.models.loading import ModelFiles, resolve
from photonlite.models.moondream.weights import load_model
from photonlite.models.precisions import Precisions
from photonlite.runner.memory import WORKSPACE_BYTES
from tests.models.checkpoints import make_folder
from tests.models.moondream.test_int4 import published
from tests.tiny import CPU, EXPERTS, GOLDEN, tiny_config, tiny_model

F32 = torch.float32


def need(precisions: Precisions, files: ModelFiles | None = None, ranks: int = 1) -> int:
    return fit._needed_bytes(files or resolve(GOLDEN), precisions, F32, EngineConfig(tensor_parallel=ranks))


def chosen(
    free: int,
    monkeypatch: pytest.MonkeyPatch,
    vision: str = "auto",
    files: ModelFiles | None = None,
    ranks: int = 1,
    where: torch.device = CPU,
) -> Precisions:
    monkeypatch.setattr(fit, "_free_bytes", lambda where, fraction: free)
    config = EngineConfig(tensor_parallel=ranks)
    return choose_precisions(files or resolve(GOLDEN), "fit", vision, where, F32, config)  # type: ignore[arg-type]


@pytest.mark.long
def test_the_best_that_fits_is_taken(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="photonlite")
    ladder = [
        Precisions(),
        Precisions("int8"),
        Precisions("int8", "int8"),
        Precisions("int4"),
        Precisions("int4", "int8"),
    ]
    for precisions in ladder:
        if precisions != Precisions("int4"):  # here the encoder is larger than half of the decoder
            assert chosen(need(precisions), monkeypatch) == precisions
    assert chosen(need(Precisions()) - 1, monkeypatch) == Precisions("int8")
    assert chosen(need(Precisions("int4", "int8")), monkeypatch, "int8") == Precisions("int4", "int8")
    assert "Weights that fit: text in int4 and vision in int8" in caplog.text


def test_where_nothing_fits_the_error_has_all_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        CapacityError, match=r"GiB of memory are free.*GiB in torch.float32, .* with text in int4 and v"
    ):
        chosen(need(Precisions("int4", "int8")) - 1, monkeypatch)


def test_what_is_asked_for_is_taken_without_a_look_at_the_memory() -> None:
    files, config = resolve(GOLDEN), EngineConfig()
    assert choose_precisions(files, "auto", "auto", CPU, F32, config) == Precisions()
    assert choose_precisions(files, "int8", "fp8", CPU, F32, config) == Precisions("int8", "fp8")
    assert fit._free_bytes(CPU, 0.9) > 2**20


def test_a_model_says_what_its_weights_are(tmp_path: Path) -> None:
    with photonlite.load(GOLDEN, device="cpu", weights="int8") as model:
        assert (model.weights, model.vision_weights, model.dtype) == ("int8", "auto", F32)
        assert model.query(None, "ab", settings={"max_tokens": 3})["answer"] is not None
    with pytest.raises(SettingsError, match="weights is 'int2': it must be 'auto' or 'int8'"):
        photonlite.load(GOLDEN, weights="int2")  # type: ignore[arg-type]


def test_what_quantised_weights_exclude_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'fp8_linears' is on, but .* its weights are in int8: leave it off"):
        photonlite.load(GOLDEN, device="cpu", weights="int8", engine={"fp8_linears": True})
    with pytest.raises(SettingsError, match="'tensor_parallel' is 2, but weights with text in int8 cannot be divided"):
        photonlite.load(GOLDEN, device="cpu", weights="int8", engine={"tensor_parallel": 2})
    small = photonlite.quantize(GOLDEN, tmp_path / "small", weights="int8")
    with pytest.raises(SettingsError, match="'tensor_parallel' is 2"):
        photonlite.load(small, device="cpu", engine={"tensor_parallel": 2})
    with pytest.raises(SettingsError, match="'fit', but the files have text in int8 already"):
        photonlite.load(small, device="cpu", weights="fit")


def files_with_experts(folder: Path) -> ModelFiles:
    config = tiny_config("moondream3", text=EXPERTS)
    save_file(tiny_model(config).state_dict(), folder / "experts.safetensors")
    return replace(resolve(GOLDEN), config=config, weights=(folder / "experts.safetensors",))


def test_experts_are_not_quantised_to_make_them_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = files_with_experts(tmp_path)
    whole = need(Precisions(), files)
    assert chosen(whole, monkeypatch, files=files) == Precisions()
    with pytest.raises(CapacityError, match=r"take \d+\.\d\d GiB in torch\.float32: free some"):
        chosen(whole - 1, monkeypatch, files=files)


def test_published_int4_is_counted_and_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = resolve(make_folder(tmp_path / "int4", published()[0]))
    stored = need(Precisions(), files)
    assert stored < need(Precisions("int8"))
    assert chosen(stored, monkeypatch, files=files) == Precisions()
    assert chosen(stored - 1, monkeypatch, files=files) == Precisions("int4")
    with pytest.raises(CapacityError) as caught:
        chosen(need(Precisions("int4", "int8"), files) - 1, monkeypatch, files=files)
    assert "text in int8" not in str(caught.value)


def weight_bytes(ranks: RankGroup | None) -> int:
    files = resolve(GOLDEN)
    model = load_model(files.weights, files.config, LoadOptions("cpu", F32, ranks=ranks))
    return sum(value.nbytes for value in model.state_dict().values())


def test_ranks_need_a_share_each_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    card, share = torch.device("cuda"), need(Precisions(), ranks=2)
    pages = need(Precisions()) - weight_bytes(None) - WORKSPACE_BYTES
    assert share == weight_bytes(RankGroup(0, 2)) + pages // 2 + WORKSPACE_BYTES
    assert chosen(share, monkeypatch, ranks=2, where=card) == Precisions()
    assert chosen(2 * share, monkeypatch, ranks=2) == Precisions()
    for free, where in ((share - 1, card), (2 * share - 1, CPU)):
        with pytest.raises(CapacityError, match=r"take \d+\.\d\d GiB in torch\.float32: free some"):
            chosen(free, monkeypatch, ranks=2, where=where)


def test_what_ranks_cannot_divide_is_left_to_loading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert chosen(0, monkeypatch, ranks=2, files=files_with_experts(tmp_path)) == Precisions()
    assert chosen(0, monkeypatch, vision="int8", ranks=2) == Precisions(None, "int8")
    assert chosen(0, monkeypatch, ranks=5) == Precisions()
