import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from photonlite.cli import main
from photonlite.errors import ModelNotFoundError

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "moondream-tiny"
Captured = pytest.CaptureFixture[str]


def cache_entry(cache: Path, name: str, config: dict[str, Any] | None) -> Path:
    """Lay out one repository as the Hub's client does."""
    repository = cache / f"models--{name.replace('/', '--')}"
    revision = "0123456789abcdef0123456789abcdef01234567"
    snapshot = repository / "snapshots" / revision
    for path in (snapshot, repository / "blobs", repository / "refs"):
        path.mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    if config is not None:
        (snapshot / "config.json").write_text(json.dumps(config))
    return snapshot


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "hub"
    scan = huggingface_hub.scan_cache_dir
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan(folder))
    return folder


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "nano"
    folder.mkdir()
    config = json.loads((GOLDEN / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "photonlite_nano"}))
    (folder / "model.safetensors").write_bytes(bytes(2_000_000))
    monkeypatch.setattr("photonlite.cli.checkpoints.shipped_checkpoint", lambda: folder)
    return folder


def listed(capsys: Captured) -> list[dict[str, Any]]:
    assert main(["models", "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_shipped_checkpoint_comes_first_with_its_size_and_skills(
    shipped: Path, cache: Path, capsys: Captured
) -> None:
    first = listed(capsys)[0]

    assert first["where"] == "shipped"
    assert first["model"] is None
    assert first["path"] == str(shipped)
    assert 2_000_000 < first["size_bytes"] < 2_010_000
    assert first["skills"] == ["caption", "query", "detect", "point"]


def test_known_models_that_are_not_cached_are_listed_as_on_the_hub(
    shipped: Path, cache: Path, capsys: Captured
) -> None:
    assert listed(capsys)[1:] == [
        {"model": "vikhyatk/moondream2", "where": "hub", "size_bytes": None, "skills": [], "path": None}
    ]


def test_cached_moondreams_are_listed_and_other_models_are_not(shipped: Path, cache: Path, capsys: Captured) -> None:
    snapshot = cache_entry(cache, "vikhyatk/moondream2", {"model_type": "moondream1"})
    cache_entry(cache, "someone/bert", {"model_type": "bert"})
    cache_entry(cache, "someone/unet", {"sample_size": 64})
    cache_entry(cache, "someone/empty", None)

    [local] = listed(capsys)[1:]

    assert (local["model"], local["where"], local["path"]) == ("vikhyatk/moondream2", "local", str(snapshot))
    assert local["size_bytes"] > 0
    assert "detect" in local["skills"]


def test_the_table_is_aligned(shipped: Path, cache: Path, capsys: Captured) -> None:
    assert main(["models"]) == 0

    header, first, second, _, families, moondream, *_ = capsys.readouterr().out.splitlines()
    assert families.index("MODEL_TYPE") == moondream.index("moondream2, ")
    where = header.index("WHERE")
    assert first[where:].startswith("shipped")
    assert second[where:].startswith("hub")
    assert first.startswith("(default)")
    assert "2.0 MB" in first


def test_without_a_shipped_checkpoint_the_rest_is_listed(
    cache: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Path:
        raise ModelNotFoundError("no checkpoint")

    monkeypatch.setattr("photonlite.cli.checkpoints.shipped_checkpoint", missing)

    assert [line["where"] for line in listed(capsys)] == ["hub"]
