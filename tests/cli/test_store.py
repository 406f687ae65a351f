import argparse
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import photonlite
from photonlite.cache.store.disk import DiskTier, entries, tenant_of
from photonlite.cli import main
from photonlite.cli.store import default_store, store_settings
from photonlite.errors import SettingsError
from photonlite.image_inputs import HostTensor
from tests.cli.conftest import FakeModel


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    tier = DiskTier(folder, 10**6)
    for salt, count in (("", 3), ("alice", 2)):
        for number in range(count):
            tier.write(f"image {number}", salt, HostTensor(np.zeros(600, np.uint8), (1, 1, 300), "float16"))
            path = folder / "images" / tenant_of(salt) / f"image {number}.numbers"
            os.utime(path, (time.time() - 86_400 * number,) * 2)
    return folder


def options(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(**({"store": None, "no_store": False} | given))


def test_the_default_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_store({}) == Path("/home/somebody/.cache/photonlite/store")
    assert default_store({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/photonlite/store")
    assert default_store({"XDG_CACHE_HOME": "cache"}) == Path("/home/somebody/.cache/photonlite/store")


def test_flags_go_before_the_environment_and_that_before_the_default(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert store_settings(options(store="x"), {"PHOTONLITE_STORE": "y"}) == {"store": "x"}
    assert store_settings(options(no_store=True), {"PHOTONLITE_STORE": "y"}) == {"store": None}
    assert store_settings(options(), {"PHOTONLITE_STORE": "y"} | environ) == {}
    assert store_settings(options(), environ) == {"store": str(tmp_path / "photonlite" / "store")}


def test_without_a_usable_cache_commands_work_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING, "photonlite"):
        assert store_settings(options(), {"XDG_CACHE_HOME": str(tmp_path / "file")}) == {"store": None}
    assert "nothing is kept for later questions" in caplog.text


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without HOME and without an entry in passwd."""
    for name in ("HOME", "XDG_CACHE_HOME", "PHOTONLITE_STORE"):
        monkeypatch.delenv(name, raising=False)
    pwd = pytest.importorskip("pwd")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)


@pytest.mark.usefixtures("homeless")
def test_without_a_home_commands_work_all_the_same(
    fake: FakeModel, image: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING, "photonlite"):
        assert main(["detect", image, "mug"]) == 0
    assert "is not known: set HOME" in caplog.text
    assert fake.loaded[0]["engine"] == {"store": None}
    assert main(["store"]) == main(["store", "--store", "~/store"]) == 2
    assert capsys.readouterr().err.count("set HOME, or name a folder") == 2


@pytest.mark.usefixtures("homeless")
def test_a_store_in_a_home_that_is_not_known_is_an_error() -> None:
    with pytest.raises(SettingsError, match="the home folder in '~/store' is not known"):
        photonlite.load(engine={"store": "~/store"})


def test_a_cache_that_others_can_write_to_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "photonlite" / "store"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with caplog.at_level(logging.WARNING, "photonlite"):
        assert store_settings(options(), {"XDG_CACHE_HOME": str(tmp_path)}) == {"store": None}
    assert "can be written by other users (mode 777)" in caplog.text


def test_a_store_that_others_can_write_to_is_neither_shown_nor_pruned(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.chmod(0o707)
    for more in ([], ["--prune"]):
        assert main(["store", "--store", str(store), *more]) == 2
        assert "can be written by other users (mode 707)" in capsys.readouterr().err
    assert len(list(entries(store))) == 5


def test_skills_and_exports_keep_and_streams_of_frames_do_not(
    fake: FakeModel, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PHOTONLITE_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    main(["detect", image, "mug"])
    main(["detect", image, "mug", "--no-store"])
    main(["detect", image, "mug", "--store", "mine"])

    stores = [loaded["engine"] for loaded in fake.loaded]
    assert stores == [{"store": str(tmp_path / "photonlite" / "store")}, {"store": None}, {"store": "mine"}]


def test_it_is_shown_by_tenant(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = next(entries(store)).size

    assert main(["store", "--store", str(store), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert main(["store", "--store", str(store)]) == 0
    text = capsys.readouterr().out

    found = {row["tenant"]: (row["files"], row["bytes"]) for row in rows}
    assert found == {"shared": (3, 3 * size), tenant_of("alice"): (2, 2 * size)}
    assert all(row["oldest"] < row["newest"] for row in rows)
    assert f"{store}: 5 files" in text
    assert len(text.splitlines()) == 3


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        ([], 0),
        (["--tenant", "alice"], 3),
        (["--tenant", tenant_of("alice")], 3),
        (["--unused-days", "0.5"], 2),
        (["--unused-days", "1.5", "--tenant", "shared"], 4),
        (["--left-mb", "0.001"], 1),
    ],
)
def test_it_is_pruned_by_tenant_age_and_size(
    store: Path, capsys: pytest.CaptureFixture[str], flags: list[str], left: int
) -> None:
    assert main(["store", "--store", str(store), "--prune", *flags]) == 0

    assert f"removed {5 - left} files" in capsys.readouterr().out
    assert len(list(entries(store))) == left


@pytest.mark.parametrize(
    "flags", [["--unused-days", "3"], ["--prune", "--left-mb", "-1"], ["--prune", "--left-mb", "nan"]]
)
def test_flags_that_say_nothing_or_nonsense_remove_nothing(
    store: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    assert main(["store", "--store", str(store), *flags]) == 2
    assert flags[-2] in capsys.readouterr().err
    assert len(list(entries(store))) == 5


def test_nothing_is_kept_before_anything_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["store"]) == 0
    assert "0 files" in capsys.readouterr().out
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_was_named_and_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "--store", str(tmp_path / "nowhere")]) == 2
    assert f"there is no folder {tmp_path / 'nowhere'}" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()
