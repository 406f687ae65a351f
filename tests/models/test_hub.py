import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from photonlite.errors import ModelNotFoundError
from photonlite.models.loading import fetch
from tests.models.checkpoints import in_hub_cache, make_folder

REPO = "someone/tiny"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hub cache, offline."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def download(*args: object, **kwargs: object) -> str:
        raise error

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)


def test_the_main_branch_comes_from_the_cache(cache: Path, tmp_path: Path) -> None:
    snapshot = in_hub_cache(cache, REPO, make_folder(tmp_path / "model"))
    assert fetch(REPO, ["config.json"]) == snapshot


@pytest.mark.parametrize("revision", ["v2", "d" * 40])
def test_a_revision_is_a_tag_or_a_commit(cache: Path, tmp_path: Path, revision: str) -> None:
    files = make_folder(tmp_path / "model")
    in_hub_cache(cache, REPO, files)
    snapshot = in_hub_cache(cache, REPO, files, commit="d" * 40, ref="v2")
    assert fetch(REPO, ["config.json"], revision) == snapshot


@pytest.mark.parametrize(
    ("revision", "message"),
    [
        (None, r"someone/tiny is not in the Hub cache.*HF_HUB_OFFLINE.*`hf download someone/tiny`"),
        ("v9", r"someone/tiny at revision v9 is not in the Hub cache.*`hf download someone/tiny --revision v9`"),
    ],
)
def test_offline_without_a_cache_entry_explains_how_to_fetch(
    cache: Path, tmp_path: Path, revision: str | None, message: str
) -> None:
    if revision:
        in_hub_cache(cache, REPO, make_folder(tmp_path / "model"))
    with pytest.raises(ModelNotFoundError, match=message) as caught:
        fetch(REPO, ["config.json"], revision)
    assert str(cache) in str(caught.value)


def test_the_environment_names_the_cache_and_forbids_the_network(tmp_path: Path) -> None:
    snapshot = in_hub_cache(tmp_path / "hub", REPO, make_folder(tmp_path / "model"))
    code = f"from photonlite.models.loading import fetch; print(fetch({REPO!r}, ['*']))"
    variables = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | variables
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(snapshot)


def test_only_named_files_of_the_top_folder_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def download(repo: str, **kwargs: object) -> str:
        asked.update(kwargs, repo=repo)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert fetch(REPO, ("*.safetensors",), "v2") == tmp_path
    assert asked == {
        "repo": REPO,
        "revision": "v2",
        "allow_patterns": ["*.safetensors"],
        "ignore_patterns": ["*/*"],
    }


RESPONSE: Any = SimpleNamespace(headers={}, request=None, status_code=404)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: errors.GatedRepoError("403", response=RESPONSE), r"someone/tiny is gated: .*HF_TOKEN"),
        (lambda: errors.RepositoryNotFoundError("401", response=RESPONSE), r"no repository of that name.*HF_TOKEN"),
        (lambda: errors.RevisionNotFoundError("404", response=RESPONSE), "someone/tiny has no revision 'v2'"),
        (lambda: errors.HFValidationError("two dots"), "nor a valid Hub id: two dots"),
        (lambda: errors.LocalEntryNotFoundError("no net"), "Hub cannot be reached.*check the network"),
        (
            lambda: errors.HfHubHTTPError("500 Server Error", response=RESPONSE),
            "could not be fetched.*500 Server Error",
        ),
        (lambda: OSError(28, "No space left on device"), "could not be fetched.*No space left on device"),
    ],
)
def test_every_failure_of_a_download_is_explained(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Exception], message: str
) -> None:
    error = make()
    failing(monkeypatch, error)
    with pytest.raises(ModelNotFoundError, match=message) as caught:
        fetch(REPO, ["config.json"], "v2")
    assert caught.value.__cause__ is error


def test_an_unreachable_hub_names_the_network_error_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    error = errors.LocalEntryNotFoundError("long text of the library")
    error.__cause__ = ConnectionError("name not resolved")
    failing(monkeypatch, error)
    with pytest.raises(ModelNotFoundError, match=r"cannot be reached \(ConnectionError: name not resolved\)"):
        fetch(REPO, ["config.json"])
