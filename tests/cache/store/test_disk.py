import errno
import hashlib
import json
import logging
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from photonlite.cache.store import disk as module
from photonlite.cache.store.disk import DiskTier, NumberFormat, entries, prune, tenant_of
from photonlite.errors import SettingsError
from photonlite.image_inputs import HostTensor
from photonlite.images.crops import allocate_array

KEY = "a" * 64
SHAPE = (2, 3, 8)
FORMAT = NumberFormat(SHAPE, "bfloat16")
LIMIT = 10**6


def embeddings(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> HostTensor:
    size = 2 * int(np.prod(shape))
    return HostTensor(np.random.default_rng(seed).integers(0, 256, size, np.uint8), shape, "bfloat16")


def read(tier: DiskTier, key: str = KEY, salt: str = "", expected: NumberFormat = FORMAT) -> HostTensor | None:
    return tier.read(key, salt, expected, allocate_array)


def file_of(folder: Path, key: str = KEY, salt: str = "") -> Path:
    return folder / "images" / tenant_of(salt) / f"{key}.numbers"


def test_another_process_reads_what_one_wrote(tmp_path: Path) -> None:
    first, second = DiskTier(tmp_path / "store", LIMIT), DiskTier(tmp_path / "store", LIMIT)
    assert (first.has(KEY, ""), read(first)) == (False, None)

    first.write(KEY, "", embeddings())
    found = read(second)

    assert second.has(KEY, "")
    assert found is not None
    assert (found.shape, found.dtype) == (SHAPE, "bfloat16")
    assert np.array_equal(found.data, embeddings().data)
    assert [entry.size for entry in entries(tmp_path / "store")] == [file_of(tmp_path / "store").stat().st_size]


def test_they_are_read_into_memory_that_is_given(tmp_path: Path) -> None:
    tier, given_memory = DiskTier(tmp_path, LIMIT), np.zeros(96, np.uint8)
    tier.write(KEY, "", embeddings())

    found = tier.read(KEY, "", FORMAT, lambda shape: given_memory)

    assert found is not None
    assert found.data is given_memory


def test_tenants_have_folders_of_their_own(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, LIMIT)
    tier.write(KEY, "one", embeddings())

    assert read(tier, salt="other") is read(tier) is None
    assert read(tier, salt="one") is not None
    assert {entry.tenant for entry in entries(tmp_path)} == {tenant_of("one")}
    assert len({tenant_of(salt) for salt in ("", "one", "other", "shared", "../x", "\udc80")}) == 6


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_of_any_kind_is_a_miss_that_is_logged_and_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    tier, path = DiskTier(tmp_path, LIMIT), file_of(tmp_path)
    tier.write(KEY, "", embeddings())
    content = bytearray(path.read_bytes())
    kind = data.draw(st.sampled_from(["flip", "cut", "append", "other"]))
    if kind == "flip":
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    elif kind == "append":
        content += data.draw(st.binary(min_size=1, max_size=9))
    else:
        content = bytearray(data.draw(st.binary(max_size=300)))
    path.write_bytes(content)
    caplog.clear()

    with caplog.at_level(logging.WARNING, "photonlite"):
        assert read(tier) is None

    assert "is unusable, and removed" in caplog.text
    assert not path.exists()
    tier.write(KEY, "", embeddings())
    assert read(tier) is not None


@pytest.mark.parametrize("damage", ["zeroed", "swapped", "moved"])
def test_sectors_that_were_lost_or_misplaced_are_damage(tmp_path: Path, damage: str) -> None:
    tier, path, shape = DiskTier(tmp_path, LIMIT), file_of(tmp_path), (1, 4, 300)  # four sectors and a part of one
    tier.write(KEY, "", embeddings(shape=shape))
    content = path.read_bytes()
    start = len(content) - 2400
    head, first, second = content[:start], content[start : start + 512], content[start + 512 : start + 1024]
    rest = content[start + 1024 :]
    damaged = {
        "zeroed": (head, bytes(512), second, rest),
        "swapped": (head, second, first, rest),
        "moved": (head, first, first, rest),
    }[damage]
    expected = NumberFormat(shape, "bfloat16")
    assert read(tier, expected=expected) is not None
    path.write_bytes(b"".join(damaged))

    assert read(tier, expected=expected) is None


@pytest.mark.parametrize("other", [((2, 8, 3), "bfloat16"), (SHAPE, "float16"), ((2, 3, 80_000), "bfloat16")])
def test_numbers_of_another_format_are_a_miss_and_take_no_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, other: tuple[tuple[int, ...], str]
) -> None:
    def no_memory(shape: tuple[int, ...]) -> Any:
        raise AssertionError("nothing is read")

    tier, expected = DiskTier(tmp_path, LIMIT), NumberFormat(*other)
    tier.write(KEY, "", embeddings())
    with caplog.at_level(logging.WARNING, "photonlite"):
        assert tier.read(KEY, "", expected, no_memory) is None

    assert "it has bfloat16 [2, 3, 8], not" in caplog.text
    assert not file_of(tmp_path).exists()


@pytest.mark.parametrize(
    "header",
    [
        {"key": KEY, "dtype": "bfloat16", "shape": [2, 3]},
        {"key": KEY, "dtype": "bfloat16", "shape": [0, 3, 8]},
        {"key": KEY, "dtype": "bfloat16", "shape": [True, 6, 8]},
        {"key": KEY, "dtype": "bfloat16", "shape": 48},
        {"key": KEY, "dtype": "bfloat16", "shape": [10**30, 1, 1]},
        {"key": KEY, "dtype": "int8", "shape": [2, 3, 8]},
        {"key": KEY, "dtype": ["bfloat16"], "shape": [2, 3, 8]},
        {"key": "b" * 64, "dtype": "bfloat16", "shape": [2, 3, 8]},
        {"dtype": "bfloat16", "shape": [2, 3, 8]},
        [],
        "[" * 3000,
    ],
)
def test_a_header_that_does_not_fit_is_a_miss_though_its_checksum_is_right(tmp_path: Path, header: Any) -> None:
    tier, path = DiskTier(tmp_path, LIMIT), file_of(tmp_path)
    line = (header if isinstance(header, str) else json.dumps(header)).encode() + b"\n"
    payload = embeddings().data.tobytes()  # less than a sector
    path.parent.mkdir(parents=True)
    digest = hashlib.sha256(line + payload).hexdigest().encode() + b"\n"
    path.write_bytes(b"photonlite numbers 2\n" + digest + line + payload)

    assert read(tier) is None
    assert not path.exists()


def test_the_folder_keeps_to_its_limit_and_what_was_read_last_stays(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 20_000)
    for number in range(10):
        tier.write(f"old {number}", "", embeddings(number, (1, 100, 5)))
        os.utime(file_of(tmp_path, f"old {number}"), (number, number))
    assert read(tier, "old 3", expected=NumberFormat((1, 100, 5), "bfloat16")) is not None

    for number in range(12):
        tier.write(f"new {number}", "", embeddings(number, (1, 100, 5)))

    found = {entry.path.stem for entry in entries(tmp_path)}
    assert sum(entry.size for entry in entries(tmp_path)) <= 20_000 + 2_000
    assert {"old 3", *(f"new {number}" for number in range(12))} <= found
    assert not found & {"old 0", "old 1", "old 2", "old 4"}


def test_what_is_larger_than_the_folder_is_not_written(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 50)
    tier.write(KEY, "", embeddings())
    assert list(entries(tmp_path)) == []


def test_a_writer_that_died_leaves_nothing_for_long(tmp_path: Path) -> None:
    tier, folder = DiskTier(tmp_path, LIMIT), tmp_path / "images" / "shared"
    folder.mkdir()
    old, measured, new = folder / "x.writing", folder.parent / "start-x.writing", folder / "y.writing"
    for file in (old, measured, new):
        file.write_bytes(b"half")
        os.utime(file, (time.time() - 7200,) * 2)
    new.touch()

    tier.write(KEY, "", embeddings())

    assert sorted(path.name for path in folder.iterdir()) == [f"{KEY}.numbers", "y.writing"]
    assert list(folder.parent.iterdir()) == [folder]
    assert len(list(entries(tmp_path))) == 1


def test_pruning_by_age_size_and_tenant(tmp_path: Path) -> None:
    tier, now = DiskTier(tmp_path, LIMIT), time.time()
    for salt in ("one", "other"):
        for day in range(4):
            tier.write(f"day {day}", salt, embeddings())
            os.utime(file_of(tmp_path, f"day {day}", salt), (now - day * 86_400,) * 2)
    size = next(entries(tmp_path)).size

    assert prune(tmp_path) == (0, 0)
    assert prune(tmp_path, tenant=tenant_of("one"), unused_s=2.5 * 86_400) == (1, size)
    assert prune(tmp_path, tenant=tenant_of("other"), most_bytes=2 * size) == (2, 2 * size)
    assert sorted((entry.tenant == tenant_of("one"), entry.path.stem) for entry in entries(tmp_path)) == [
        (False, "day 0"), (False, "day 1"), (True, "day 0"), (True, "day 1"), (True, "day 2"),
    ]  # fmt: skip
    assert prune(tmp_path, unused_s=0.0)[0] == 5
    assert prune(tmp_path / "nowhere", unused_s=0.0) == (0, 0)


def test_files_that_cannot_be_removed_do_not_count_as_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EPERM, "another user's")

    DiskTier(tmp_path, LIMIT).write(KEY, "", embeddings())
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        assert prune(tmp_path, unused_s=0.0) == prune(tmp_path, most_bytes=0) == (0, 0)

    assert prune(tmp_path, unused_s=0.0)[0] == 1


@pytest.mark.parametrize("kind", ["file", "below a file", "forbidden"])
def test_a_folder_that_cannot_be_written_is_an_error_at_start(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("mine")
    folder = {"file": tmp_path / "file", "below a file": tmp_path / "file" / "store", "forbidden": Path("/proc/store")}

    with pytest.raises(SettingsError, match=r"cannot be written .*: name a folder"):
        DiskTier(folder[kind], LIMIT)

    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("place", [".", "images", "checkpoints"])
def test_a_folder_that_other_users_can_write_to_is_refused(tmp_path: Path, place: str) -> None:
    DiskTier(tmp_path, LIMIT)
    (tmp_path / place).chmod(0o707)

    with pytest.raises(SettingsError, match=rf"{tmp_path / place} can be written by other users \(mode 707\)"):
        DiskTier(tmp_path, LIMIT)


def test_a_store_that_a_umask_left_open_to_the_group_is_closed(tmp_path: Path) -> None:
    DiskTier(tmp_path, LIMIT)
    places = [tmp_path, tmp_path / "images", tmp_path / "checkpoints"]
    for place in places:
        place.chmod(0o775)

    DiskTier(tmp_path, LIMIT)

    assert [stat.S_IMODE(place.stat().st_mode) for place in places] == [0o700] * 3


def test_a_folder_of_other_files_stays_open_to_the_group_and_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    tmp_path.chmod(0o775)

    with pytest.raises(SettingsError, match=r"can be written by other users \(mode 775\)"):
        DiskTier(tmp_path, LIMIT)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o775


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)

    with pytest.raises(SettingsError, match=f"{tmp_path} belongs to another user"):
        DiskTier(tmp_path, LIMIT)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("place", ["images", "checkpoints"])
def test_a_link_in_the_place_of_a_folder_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "store").mkdir(mode=0o700)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store" / place).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(SettingsError, match="is a symbolic link"):
        DiskTier(tmp_path / "store", LIMIT)


def test_folders_and_files_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        tier = DiskTier(tmp_path / "store", LIMIT)
        tier.write(KEY, "", embeddings())
    finally:
        os.umask(before)

    store = tmp_path / "store"
    modes = {path.stat().st_mode & 0o777 for path in (store, *store.rglob("*")) if path.is_dir()}
    assert (modes, file_of(store).stat().st_mode & 0o777) == ({0o700}, 0o600)


def test_a_file_that_other_users_can_change_is_a_miss_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = DiskTier(tmp_path, LIMIT)
    tier.write(KEY, "", embeddings())
    file_of(tmp_path).chmod(0o666)
    assert read(tier) is None
    assert not file_of(tmp_path).exists()

    tier.write(KEY, "", embeddings())
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert read(tier) is None
    assert not file_of(tmp_path).exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    tier, other = DiskTier(tmp_path / "store", LIMIT), DiskTier(tmp_path / "other", LIMIT)
    other.write(KEY, "", embeddings())
    file_of(tmp_path / "store").parent.mkdir()
    file_of(tmp_path / "store").symlink_to(file_of(tmp_path / "other"))
    (tmp_path / "store" / "images" / "linked").symlink_to(file_of(tmp_path / "other").parent)

    assert read(tier) is None
    assert prune(tmp_path / "store", unused_s=0.0) == (0, 0)
    assert read(other) is not None


def test_a_full_disk_at_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_write", fail_with(errno.ENOSPC))
    with pytest.raises(SettingsError, match="No space left on device"):
        DiskTier(tmp_path, LIMIT)


def fail_with(code: int) -> Any:
    def fail(*_: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_disk_that_fills_later_is_logged_once_and_leaves_no_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tier = DiskTier(tmp_path, LIMIT)
    write = module._write

    def half(path: Path, parts: list[Any]) -> Path:
        write(path, [parts[0]])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full, caplog.at_level(logging.WARNING, "photonlite"):
        full.setattr(module, "_write", half)
        for number in range(3):
            tier.write(f"{number}", "", embeddings())

    assert caplog.text.count("is not stored") == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    tier.write(KEY, "", embeddings())
    assert read(tier) is not None


def test_a_store_that_is_deleted_while_in_use_is_a_miss_and_comes_back(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "store", LIMIT)
    tier.write(KEY, "", embeddings())
    (tmp_path / "store").rename(tmp_path / "gone")

    assert (tier.has(KEY, ""), read(tier)) == (False, None)
    tier.write(KEY, "", embeddings())
    assert read(tier) is not None


def test_a_disk_that_cannot_be_read_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tier = DiskTier(tmp_path, LIMIT)
    tier.write(KEY, "", embeddings())
    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING, "photonlite"):
        broken.setattr(module, "_read", fail_with(errno.EIO))
        assert read(tier) is read(tier) is None

    assert caplog.text.count("cannot be read") == 1
    assert read(tier) is not None  # what could not be read is not taken for damaged


def test_writers_readers_and_pruners_share_a_folder(tmp_path: Path) -> None:
    wrong: list[Any] = []

    def use(seed: int) -> None:
        tier = DiskTier(tmp_path, 3_000)
        for number in range(40):
            key = (seed * number) % 7
            tier.write(f"{key}", "", embeddings(key))
            found = read(tier, f"{number % 7}")
            if found is not None and not np.array_equal(found.data, embeddings(number % 7).data):
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert [path.name for path in tmp_path.rglob("*.writing")] == []
