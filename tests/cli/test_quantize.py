"""`photonlite quantize`: a folder that loads, and what is refused."""

from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

import photonlite
from photonlite.cli import main
from photonlite.errors import SettingsError
from photonlite.models.loading import resolve
from tests.tiny import GOLDEN


def test_a_folder_is_written_that_the_other_commands_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "small"
    assert main(["quantize", str(GOLDEN), str(out), "--vision-weights", "int8"]) == 0
    printed = capsys.readouterr()

    assert printed.out.strip() == str(out)
    assert "MB; to use it" in printed.err
    assert str(resolve(out).stored) == "text in int4 and vision in int8"
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (out, GOLDEN)]
    assert sizes[0] < 0.75 * sizes[1]  # most of this one is heads of numbers, which stay
    assert main(["quantize", str(GOLDEN), str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weights", "fit"], "invalid choice: 'fit'"),
        (["--weights", "auto"], "nothing is to be quantised"),
        (["--dtype", "int8"], "invalid choice"),
        (["--device", "cuda"], "unrecognized arguments: --device"),
    ],
)
def test_what_cannot_be_written_is_an_error(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(GOLDEN), str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("photonlite.models.writing.save_file", full)

    assert main(["quantize", str(GOLDEN), str(tmp_path / "out")]) == 2
    assert "out cannot be written (No space left on device): make room" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_images_tell_what_goes_into_the_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, fitted = tmp_path / "plain", tmp_path / "fitted"
    assert main(["quantize", "assets/nano", str(plain)]) == 0
    assert main(["quantize", "assets/nano", str(fitted), "--images", "assets/desk.png"]) == 0
    tensors = [load_file(folder / "model.safetensors") for folder in (plain, fitted)]
    name = "text.blocks.1.attn.qkv"
    for part in ("scale", "values"):  # both know the inputs: the range of a group, and what is rounded up
        first, second = (one[f"{name}.{part}"] for one in tensors)
        assert first.shape == second.shape
        assert not torch.equal(first, second)
    arguments = ["quantize", "assets/nano", str(tmp_path / "out"), "--weights", "int8", "--images", "assets/desk.png"]
    assert main(arguments) == 2
    assert "only int4 makes use of them" in capsys.readouterr().err


def test_precisions_that_depend_on_the_machine_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="depends on the machine"):
        photonlite.quantize(GOLDEN, tmp_path / "out", weights="fit")


def test_skills_take_precisions(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "detect",
        "assets/desk.png",
        "banana",
        "--weights",
        "int8",
        "--vision-weights",
        "int8",
        "--device",
        "cpu",
    ]
    assert main(arguments) == 0
    assert capsys.readouterr().out.count('"label": "banana"') == 2
