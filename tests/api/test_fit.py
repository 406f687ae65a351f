import logging
from pathlib import Path

import pytest
import torch

import photonlite
from photonlite.api import fit
from photonlite.api.fit import choose_precisions
from photonlite.config import EngineConfig
from photonlite.errors import CapacityError, SettingsError
from photonlite.models.loading import resolve
from photonlite.models.precisions import Precisions
from tests.tiny import CPU, GOLDEN

F32 = torch.float32


def need(precisions: Precisions) -> int:
    return fit._needed_bytes(resolve(GOLDEN), precisions, F32, EngineConfig())


def chosen(free: int, monkeypatch: pytest.MonkeyPatch, vision: str = "auto") -> Precisions:
    monkeypatch.setattr(fit, "_free_bytes", lambda where, fraction: free)
    return choose_precisions(resolve(GOLDEN), "fit", vision, CPU, F32, EngineConfig())  # type: ignore[arg-type]


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
