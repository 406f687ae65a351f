import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants, errors

from photonlite.errors import CheckpointError, ConfigError, ModelNotFoundError
from photonlite.models import loading, tokenizer
from photonlite.models.checkpoint import load_checkpoint
from photonlite.models.hub import fetch
from photonlite.models.loading import resolve, shipped_checkpoint
from photonlite.models.moondream.checkpoint import STARMIE_REPO
from photonlite.models.shards import JSON_BYTES
from tests.models.checkpoints import GOLDEN, golden_tensors, in_hub_cache, make_folder, shard

REPO = "someone/tiny"
RESPONSE: Any = SimpleNamespace(headers={}, request=None, status_code=404)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hub cache, offline."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def test_a_folder_as_text_and_as_path(folder: Path) -> None:
    for model in (str(folder), folder):
        files = resolve(model)
        assert files.name == str(folder)
        assert files.config.text.dim == 128
        assert files.tokenizer == folder / "tokenizer.json"
        assert files.weights == (folder / "model.safetensors",)


def test_a_home_folder_is_expanded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve("~/model").tokenizer == folder / "tokenizer.json"


def test_a_file_uses_the_config_and_tokenizer_beside_it(folder: Path) -> None:
    other = shutil.copy(folder / "model.safetensors", folder / "step-100.safetensors")
    files = resolve(other)
    assert files.weights == (folder / "step-100.safetensors",)
    assert files.tokenizer == folder / "tokenizer.json"


def test_a_sharded_folder(folder: Path) -> None:
    shard(folder, golden_tensors())
    assert len(resolve(folder).weights) == 3


def test_no_name_is_the_shipped_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "shipped_checkpoint", lambda: folder)
    files = resolve()
    assert files.name == "nano"
    assert files.tokenizer == folder / "tokenizer.json"


def test_the_name_of_the_shipped_checkpoint_finds_it_unless_a_folder_has_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "shipped_checkpoint", lambda: folder)
    monkeypatch.chdir(tmp_path)
    files = resolve("nano")
    assert (files.name, files.tokenizer) == ("nano", folder / "tokenizer.json")
    own = make_folder(tmp_path / "nano")
    assert resolve("nano").tokenizer.resolve() == own / "tokenizer.json"


@pytest.mark.parametrize("inside", [True, False])
def test_the_shipped_checkpoint_is_in_the_wheel_or_beside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    package = tmp_path / "photonlite"
    monkeypatch.setattr(loading, "__file__", str(package / "models" / "loading.py"))
    with pytest.raises(ModelNotFoundError, match="install photonlite again"):
        shipped_checkpoint()
    place = make_folder((package if inside else tmp_path) / "assets" / "nano")
    assert shipped_checkpoint() == place


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("moondream2", "no folder or file moondream2.*did you mean vikhyatk/moondream2"),
        ("no-such-model", "no folder or file no-such-model.*photonlite models"),
        ("./a/b", r"no folder or file a/b.*not a Hub id \(owner/name\)"),
        ("a/b/c", "no folder or file a/b/c"),
        ("", "names no model: give a folder"),
        ("x" * 5000, "x…"),
    ],
)
def test_an_unknown_name_says_what_was_looked_for(name: str, message: str) -> None:
    with pytest.raises(ModelNotFoundError, match=message) as caught:
        resolve(name)
    assert len(str(caught.value)) < 1000


def test_a_misspelt_folder_suggests_the_closest_name(folder: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=f"did you mean {folder}"):
        resolve(str(folder)[:-1])


def test_a_path_object_is_never_looked_up_on_the_hub(cache: Path, tmp_path: Path) -> None:
    in_hub_cache(cache, REPO, make_folder(tmp_path / "model"))
    with pytest.raises(ModelNotFoundError, match="no folder or file someone/tiny"):
        resolve(Path(REPO))


def test_a_local_folder_has_no_revision(folder: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"'v2' .* only Hub ids"):
        resolve(folder, revision="v2")


@pytest.mark.parametrize(
    ("missing", "error"),
    [("config.json", ConfigError), ("tokenizer.json", CheckpointError), ("model.safetensors", CheckpointError)],
)
def test_a_folder_with_a_missing_part_is_refused(folder: Path, missing: str, error: type[Exception]) -> None:
    (folder / missing).unlink()
    with pytest.raises(error, match=f"{folder} .*{missing}"):
        resolve(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "cannot be read as JSON"), ("3", "JSON int"), ("\xff", "cannot be read"), ('{"text": 3}', "text in config")],
)
def test_a_bad_config_is_named(folder: Path, content: str, message: str) -> None:
    (folder / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=message):
        resolve(folder)


def test_pickles_are_refused_as_files_and_folders(folder: Path) -> None:
    pickle = (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    for model in (pickle, folder):
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a pickle.*any code"):
            resolve(model)


def test_a_file_of_another_kind_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is not a \.safetensors file"):
        resolve(folder / "config.json")


def test_a_hub_id_comes_from_the_cache(cache: Path, folder: Path) -> None:
    snapshot = in_hub_cache(cache, REPO, folder)
    files = resolve(REPO)
    assert files.name == REPO
    assert files.tokenizer == snapshot / "tokenizer.json"
    assert files.weights == (snapshot / "model.safetensors",)


def test_the_decoder_of_outlines_beside_weights_on_the_hub_is_fetched(
    cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = in_hub_cache(cache, REPO, folder)
    patterns: list[str] = []
    monkeypatch.setattr(loading, "fetch", lambda repo, names, *revision: patterns.extend(names) or snapshot)
    resolve(REPO)
    assert any(fnmatch("vae-oid.npz", pattern) for pattern in patterns)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json"])
def test_files_of_strangers_are_bounded(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "TOKENIZER_BYTES", JSON_BYTES)
    (folder / name).write_bytes(b" " * (JSON_BYTES + 1))
    with pytest.raises((ConfigError, CheckpointError), match=f"more than {JSON_BYTES} bytes, the limit"):
        load_checkpoint(folder, device=torch.device("cpu"), dtype=torch.float32)


def test_a_hub_id_at_a_revision(cache: Path, folder: Path) -> None:
    in_hub_cache(cache, REPO, folder)
    snapshot = in_hub_cache(cache, REPO, folder, commit="d" * 40, ref="v2")
    assert resolve(REPO, revision="v2").tokenizer == snapshot / "tokenizer.json"


def test_a_local_folder_wins_over_a_hub_id(
    cache: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_hub_cache(cache, REPO, folder)
    local = make_folder(tmp_path / REPO)
    monkeypatch.chdir(tmp_path)
    assert resolve(REPO).tokenizer.resolve() == local / "tokenizer.json"


def test_a_hub_id_that_is_not_cached(cache: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no folder someone/tiny here.*not in the Hub cache"):
        resolve(REPO)


@pytest.mark.parametrize("names", [("config.json", "model.safetensors"), ("model.safetensors",)])
def test_an_adapter_is_told_from_a_model(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (folder / name).unlink()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises((ConfigError, CheckpointError), match=r"an adapter alone: load the model .* load_adapter"):
        resolve(folder)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_an_incomplete_cache_says_how_to_complete_it(cache: Path, folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    in_hub_cache(cache, REPO, folder)
    with pytest.raises((ConfigError, CheckpointError), match=r"someone/tiny from the Hub.*`hf download someone/tiny`"):
        resolve(REPO)


def test_weights_are_not_fetched_for_a_model_that_cannot_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "config.json").write_text('{"model_type": "llama"}')
    asked: list[str] = []

    def fetch(repo: str, names: list[str], revision: str | None = None) -> Path:
        asked.extend(names)
        return folder

    monkeypatch.setattr(loading, "fetch", fetch)
    with pytest.raises(ConfigError, match="llama"):
        resolve(REPO)
    assert asked == ["*.json", "*.jinja", "*.npz", "*.py"]


def test_weights_are_fetched_at_the_commit_of_the_config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def fetch(repo: str, names: list[str], revision: str | None = None) -> Path:
        asked.append(revision)
        return folder

    monkeypatch.setattr(loading, "fetch", fetch)
    resolve(REPO, revision="v2")
    assert asked == ["v2", folder.name]


def stale_release(folder: Path, end_of_text: int | None) -> None:
    """Make a folder look like a public release, with a tokenizer whose end of text has another id, or with none."""
    (folder / "config.json").write_text('{"model_type": "moondream1", "config": {}}')
    path = folder / "tokenizer.json"
    if end_of_text is None:
        path.unlink()
        return
    raw: dict[str, Any] = json.loads(path.read_text())
    raw["added_tokens"][0]["id"] = end_of_text
    path.write_text(json.dumps(raw))


@pytest.mark.parametrize("end_of_text", [50256, None])
def test_a_public_release_takes_the_tokenizer_of_its_weights(
    cache: Path, folder: Path, tmp_path: Path, end_of_text: int | None
) -> None:
    stale_release(folder, end_of_text)
    right = tmp_path / "starmie"
    right.mkdir()
    shutil.copy(GOLDEN / "tokenizer.json", right)
    starmie = in_hub_cache(cache, STARMIE_REPO, right)
    in_hub_cache(cache, REPO, folder)
    for model in (REPO, folder):
        assert resolve(model).tokenizer == starmie / "tokenizer.json"


def test_a_public_release_keeps_a_tokenizer_that_fits(cache: Path, folder: Path) -> None:
    stale_release(folder, 0)
    assert resolve(folder).tokenizer == folder / "tokenizer.json"


OLD_CODE = """
        self.tokenizer = Tokenizer.from_pretrained(
            "vikhyatk/moondream2", revision="2025-01-09"
        )
"""


@pytest.mark.parametrize("code", [OLD_CODE, None])
def test_a_release_of_another_tokenizer_and_other_prompts_is_refused(folder: Path, code: str | None) -> None:
    stale_release(folder, 0)
    if code is None:
        raw = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(raw | {"text_config": {"model_type": "phi"}}))
    else:
        (folder / "moondream.py").write_text(code)
    with pytest.raises(ConfigError, match=r"before 2025-06-21.*use a newer one"):
        resolve(folder)


def test_a_release_whose_code_reads_the_tokenizer_of_its_weights_is_taken(folder: Path) -> None:
    stale_release(folder, 0)
    for code in (f'Tokenizer.from_pretrained("{STARMIE_REPO}")', "import torch"):
        (folder / "moondream.py").write_text(code)
        assert resolve(folder).tokenizer == folder / "tokenizer.json"


def test_a_tokenizer_that_cannot_be_replaced_says_where_to_get_it(cache: Path, folder: Path) -> None:
    stale_release(folder, 50256)
    with pytest.raises(ModelNotFoundError, match=f"older than the weights.*{STARMIE_REPO} beside the weights"):
        resolve(folder)


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
    code = f"from photonlite.models.hub import fetch; print(fetch({REPO!r}, ['*']))"
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
