from pathlib import Path

import pytest

from photonlite.errors import InputError, SettingsError
from photonlite.server.config import ServerConfig, read_access

KEY = "0123456789abcdef"


@pytest.mark.parametrize("mode", [0o660, 0o606, 0o622, 0o602])
def test_a_key_file_writable_by_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys"
    path.write_text(KEY)
    path.chmod(mode)

    with pytest.raises(InputError, match=rf"can be written by other users \(mode {mode:o}\): chmod 600") as caught:
        read_access(path)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o644])
def test_a_key_file_readable_by_others_is_accepted(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# of the robots\n{KEY}\n")
    path.chmod(mode)

    assert read_access(path) == {"api_keys": (KEY,), "key_weights": {}, "metrics_keys": (), "admin_keys": ()}


def test_a_byte_order_mark_begins_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\r\n", encoding="utf-8-sig")
    path.chmod(0o600)

    assert read_access(path)["api_keys"] == (KEY,)


def test_a_key_may_have_a_weight_and_read_metrics(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{KEY} weight=2\n{KEY[::-1]}\tweight=0.5 metrics\n{KEY}x\n{KEY}y\t metrics\n")
    path.chmod(0o600)

    assert read_access(path) == {
        "api_keys": (KEY, KEY[::-1], f"{KEY}x", f"{KEY}y"),
        "key_weights": {KEY: 2, KEY[::-1]: 0.5},
        "metrics_keys": (KEY[::-1], f"{KEY}y"),
        "admin_keys": (),
    }


def test_a_key_may_load_adapters(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{KEY} admin\n{KEY[::-1]} admin weight=2 metrics\n{KEY}x\n")
    path.chmod(0o600)

    access = read_access(path)
    assert access["admin_keys"] == (KEY, KEY[::-1])
    assert ServerConfig(**access).admin_keys == (KEY, KEY[::-1])
    with pytest.raises(SettingsError, match="'admin_keys' must be some of 'api_keys'"):
        ServerConfig(admin_keys=(KEY,))


@pytest.mark.parametrize(
    "rest",
    [
        *("weight=0", "weight=-1", "weight=two", "weight=inf", "wait=2", "weight=1 weight=2"),
        *("metric", "metrics metrics"),
    ],
)
def test_an_invalid_weight_is_refused_without_quoting_the_line(tmp_path: Path, rest: str) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{KEY * 2}\n{KEY} {rest}\n")
    path.chmod(0o600)

    with pytest.raises(InputError, match=r"key 2 of .* write KEY, or KEY weight=2") as caught:
        read_access(path)
    assert KEY not in str(caught.value)
