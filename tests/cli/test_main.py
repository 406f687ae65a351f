"""Exit codes, one-line errors, and modules that must not be imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from photonlite.cli import main
from photonlite.errors import PhotonliteError

from .conftest import FakeModel

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "moondream-tiny"

REPORT_IMPORTS = """
import sys
from photonlite.cli import main
code = main(sys.argv[1:])
slow = ("torch", "transformers", "huggingface_hub")
print("exit", code, "imported", *[name for name in slow if name in sys.modules], file=sys.stderr)
"""

CAPTION_WITHOUT_A_MODEL = """
import sys, photonlite
from photonlite.cli import main
from photonlite.results import Caption
class Model:
    def caption(self, *arguments, **options):
        return Caption("a desk")
photonlite.load = lambda *arguments, **options: Model()
sys.exit(main(["caption", sys.argv[1], sys.argv[1]]))
"""


REPORT_STDERR = """
import os, subprocess, sys
from photonlite.cli import main
code = main(["detect", "missing.png", "mug"])
subprocess.run([sys.executable, "-c", "import sys; print('told', file=sys.stderr)"], check=True)
print("exit", code, *map(os.path.realpath, ["/proc/self/fd/2"]), flush=True)
"""


INTERRUPT_IMPORTS = """
import runpy, sys
class Interrupted:
    def find_spec(self, name, *more):
        if name == "photonlite.cli.parser":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
runpy.run_module("photonlite", run_name="__main__")
"""


def run_and_report_imports(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", REPORT_IMPORTS, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="tells open files by Linux' /proc")
def test_a_closed_stderr_is_nothing_for_the_command_and_for_what_it_starts() -> None:
    closed = ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, REPORT_STDERR]
    ended = subprocess.run(closed, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)

    assert (ended.returncode, ended.stdout) == (0, "exit 2 /dev/null\n")


@pytest.mark.long
def test_a_closed_stdin_holds_no_image() -> None:
    closed = ["sh", "-c", 'exec "$0" -c "$1" detect - mug <&-', sys.executable, REPORT_IMPORTS]
    ended = subprocess.run(closed, cwd=ROOT, capture_output=True, text=True, check=False)

    assert "is empty (0 bytes)" in ended.stderr
    assert ended.stderr.splitlines()[-1] == "exit 2 imported"


def test_success_exits_with_0(fake: object, image: str) -> None:
    assert main(["detect", image, "mug"]) == 0


def test_bad_input_exits_with_2_and_prints_one_line(
    fake: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["detect", str(tmp_path / "missing.png"), "mug"])

    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("photonlite: error: ")
    assert "missing.png" in err
    assert err.count("\n") == 1


def test_a_multi_line_message_is_printed_as_one_line(
    fake: FakeModel, image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.error = PhotonliteError("tensor a\nis missing")

    assert main(["detect", image, "mug"]) == 2
    assert capsys.readouterr().err == "photonlite: error: tensor a is missing\n"


def test_debug_shows_the_traceback(fake: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", "missing.png", "mug", "--debug"]) == 2

    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("photonlite: error: ")


@pytest.mark.parametrize(
    "arguments",
    [
        "detect {image} mug --plot {image}/boxes.png",
        "export {image} --object mug --format coco --output {image}/set",
        "realtime --source {image} --object mug --output {image}/found.gif",
        "quantize nano {image}/smaller",
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_a_model_is_loaded(
    arguments: str, fake: FakeModel, image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if arguments.startswith("export"):
        pytest.importorskip("supervision")

    assert main(arguments.format(image=image).split()) == 2
    assert f"{image} is not a folder: name another place" in capsys.readouterr().err
    assert fake.loaded == []


def test_a_folder_without_permission_is_named(
    fake: FakeModel, image: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere

    assert main(["detect", image, "mug", "--plot", f"{image}.plot.png"]) == 2
    assert f"{Path(image).parent} cannot be written to: name another place" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("detect {image} mug --min-score 7", "min_score is 7.0"),
        ("point {image} mug --tile 0x0", "tile is '0x0'"),
        ("segment {image} --object mug --object mug", "holds 'mug' twice"),
        ("query {image} why --temperature -1", "'temperature' is -1.0"),
        ("caption {image} --max-tokens 0", "'max_tokens' is 0"),
        ("detect {image} mug --every 2 --max-objects 0", "'max_objects' is 0"),
    ],
)
def test_what_no_model_takes_is_refused_before_one_is_loaded(
    arguments: str, words: str, fake: FakeModel, image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.format(image=image).split()) == 2
    assert words in capsys.readouterr().err
    assert fake.loaded == []


def test_an_error_of_the_system_names_the_file_and_no_number(
    fake: FakeModel, image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.error = OSError(28, "No space left on device", "boxes.png")

    assert main(["detect", image, "mug"]) == 2
    assert capsys.readouterr().err == "photonlite: error: boxes.png: No space left on device\n"


def test_a_bug_is_not_reported_as_bad_input(fake: FakeModel, image: str) -> None:
    fake.error = RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        main(["detect", image, "mug"])


def test_an_interrupt_exits_with_130_without_a_traceback(
    fake: FakeModel, image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.error = KeyboardInterrupt()

    assert main(["detect", image, "mug"]) == 130
    assert capsys.readouterr().err == ""


def test_an_interrupt_while_modules_are_imported_exits_with_130_without_a_traceback() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPT_IMPORTS], cwd=ROOT, capture_output=True, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_exits_with_141_without_a_message(image: str, unbuffered: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as pipe:
        process = subprocess.run(
            [sys.executable, "-c", CAPTION_WITHOUT_A_MODEL, image],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert process.returncode == 141
    assert process.stderr == ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["detect", "--help"], 0),
        (["detect"], 2),
        (["detect", "missing.png", "mug"], 2),
        (["detect", "README.md", "mug"], 2),
    ],
)
def test_torch_is_not_imported_before_it_is_needed(arguments: list[str], code: int) -> None:
    process = run_and_report_imports(*arguments)

    assert process.stderr.splitlines()[-1] == f"exit {code} imported"


@pytest.mark.long
def test_a_real_checkpoint_answers_without_transformers() -> None:
    image = str(GOLDEN / "images" / "378x378.png")
    process = run_and_report_imports(
        "detect", image, "mug", "--model", str(GOLDEN), "--device", "cpu", "--dtype", "float32", "--max-objects", "2"
    )

    assert process.stderr.splitlines()[-1].startswith("exit 0 imported torch")
    assert "transformers" not in process.stderr
    for found in json.loads(process.stdout)["objects"]:
        assert found["label"] == "mug"
        assert 0 <= found["x_min"] <= found["x_max"] <= 1
