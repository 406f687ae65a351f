"""The sdist builds a wheel, which works outside the repository."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

import photonlite

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ("model.safetensors", "config.json", "tokenizer.json", "objects.json", "README.md")

DETECT = """
import json
import photonlite
from photonlite.models.loading import shipped_checkpoint
from PIL import Image
result = photonlite.load(device="cpu").detect(Image.new("RGB", (64, 48), "navy"), "banana")
print(json.dumps({"module": photonlite.__file__, "checkpoint": str(shipped_checkpoint()), "result": result}))
"""


def build(source: Path, kind: str, out: Path) -> Path:
    """Build with the installed backend, without a network."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(out)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    [built] = out.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    return build(unpacked / sdist.name.removesuffix(".tar.gz"), "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True, capture_output=True)
    return target


def run_elsewhere(command: list[str], installed: Path, tmp_path: Path) -> str:
    """Run outside the repository, with the installed copy before anything else on the path."""
    process = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.long
def test_the_sdist_holds_what_a_developer_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert names >= {f"assets/nano/{name}" for name in CHECKPOINT}
    assert names >= {"pyproject.toml", "README.md", "LICENSE", "Makefile", "constraints.txt"}
    assert names >= {"photonlite/py.typed", "tests/test_packaging.py", "tests/golden/moondream-tiny/expected.json"}
    assert any(name.startswith("bench/nano/") for name in names)


@pytest.mark.long
def test_the_wheel_holds_only_the_package_and_its_checkpoint(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = HeaderParser().parsestr(
            archive.read(f"photonlite-{photonlite.__version__}.dist-info/METADATA").decode()
        )

    assert names >= {f"photonlite/assets/nano/{name}" for name in CHECKPOINT}
    assert names >= {"photonlite/py.typed", "photonlite/cli/__init__.py"}
    assert {name.split("/")[0] for name in names} == {"photonlite", f"photonlite-{photonlite.__version__}.dist-info"}
    assert metadata["Version"] == photonlite.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"


@pytest.mark.long
def test_the_checkpoint_is_at_most_18_mb(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.getinfo("photonlite/assets/nano/model.safetensors").file_size <= 18_100_000


@pytest.mark.long
def test_the_installed_wheel_detects_with_its_own_checkpoint(installed: Path, tmp_path: Path) -> None:
    report = json.loads(run_elsewhere([sys.executable, "-c", DETECT], installed, tmp_path))

    assert Path(report["module"]).is_relative_to(installed)
    assert Path(report["checkpoint"]).is_relative_to(installed)
    assert list(report["result"]) == ["objects"]


@pytest.mark.long
def test_the_installed_command_runs(installed: Path, tmp_path: Path) -> None:
    out = run_elsewhere([sys.executable, str(installed / "bin" / "photonlite"), "--version"], installed, tmp_path)

    assert out == f"photonlite {photonlite.__version__}\n"
