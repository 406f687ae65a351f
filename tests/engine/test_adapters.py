"""Adapters in host memory and on disk, and the thread that brings them to the device."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from photonlite.engine.adapters import AdapterLoader, AdapterReader, AdapterStore, HostAdapter
from photonlite.errors import AdapterError, OutOfMemoryError
from photonlite.models.adapters.files import find_adapter
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.moondream import checkpoint
from photonlite.scheduler.adapters import AdapterLoad
from tests.adapters import random_matrices, save_peft
from tests.cache.sequences import adapter_of
from tests.guard import GUARD
from tests.tiny import CPU, tiny_config, tiny_model

MODEL = tiny_model(tiny_config())
SIZES = {"text.blocks.0.attn.qkv": (24, 40)}
BYTES = 4 * 2 * (24 + 40)


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [save_peft(tmp_path / name, random_matrices(SIZES, 2, seed)) for seed, name in enumerate("abc")]


def store(limit: int = 10**6) -> AdapterStore:
    return AdapterStore(AdapterReader(MODEL, checkpoint, torch.float32, 4), limit)


def load(kept: AdapterStore, folders: list[Path]) -> list[HostAdapter]:
    return [kept.load(folder.name, find_adapter(folder)) for folder in folders]


def test_what_was_not_used_for_longest_leaves_memory(folders: list[Path]) -> None:
    kept = store(2 * BYTES)
    first, second, third = load(kept, folders[:2]) + load(kept, folders[2:])
    assert [one.weights is None for one in (first, second, third)] == [True, False, False]
    assert kept.nbytes == 2 * BYTES
    kept.weights_of(second)
    assert kept.weights_of(first).key == first.key  # read again
    assert [one.weights is None for one in (first, second, third)] == [False, False, True]
    assert [*kept.named] == ["a", "b", "c"]


def test_one_adapter_always_stays(folders: list[Path]) -> None:
    kept = store(0)
    first, second = load(kept, folders[:2])
    assert (first.weights is None, second.weights is None) == (True, False)


def test_an_adapter_that_was_unloaded_is_read_for_those_that_hold_it(folders: list[Path]) -> None:
    kept = store(0)
    first, _ = load(kept, folders[:2])
    assert kept.unload("a") is first
    assert kept.unload("a") is None
    assert kept.weights_of(first).key == first.key
    assert first.weights is None  # it is not kept again
    assert kept.nbytes == BYTES


def test_another_name_of_the_same_content_stands_in_for_files_that_are_gone(
    folders: list[Path], tmp_path: Path
) -> None:
    kept = store(0)
    copied = shutil.copytree(folders[0], tmp_path / "copy")
    first, copy, _ = load(kept, [folders[0], copied, folders[1]])
    shutil.rmtree(folders[0])
    assert kept.weights_of(first).key == first.key == copy.key
    assert [*kept.named] == ["a", "copy", "b"]


class Told:
    """Keeps what the loader tells."""

    def __init__(self) -> None:
        self.ends: list[tuple[AdapterLoad, BaseException | None]] = []
        self.came = threading.Semaphore(0)

    def __call__(self, load: AdapterLoad, error: BaseException | None) -> None:
        self.ends.append((load, error))
        self.came.release()

    def next(self) -> BaseException | None:
        assert self.came.acquire(timeout=GUARD)
        return self.ends[-1][1]


def test_the_loader_writes_slots_and_tells(folders: list[Path]) -> None:
    kept, told = store(), Told()
    (adapter,) = load(kept, folders[:1])
    bank = AdapterBank(MODEL, slots=2, rank=4)
    loader = AdapterLoader(bank, kept, CPU, told)
    loader.begin(AdapterLoad(2, adapter))
    assert told.next() is None
    (layer,) = bank._layers.values()
    (stack,) = layer.stacks.values()
    assert stack.ranks == [0, 0, 2]
    assert adapter.weights is not None
    torch.testing.assert_close(stack.a[2, :2], adapter.weights.terms[0].a)
    loader.close()


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (MemoryError(), OutOfMemoryError, "no memory left for adapter 'a'"),
        (ValueError("odd"), AdapterError, "'a' could not be brought to the device: odd"),
        (AdapterError("the files are gone"), AdapterError, "the files are gone"),
    ],
)
def test_what_goes_wrong_is_told_by_type(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch, fault: Exception, kind: type[Exception], message: str
) -> None:
    kept, told = store(), Told()
    (adapter,) = load(kept, folders[:1])
    bank = AdapterBank(MODEL, slots=1, rank=4)

    def fail(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(bank, "write", fail)
    loader = AdapterLoader(bank, kept, CPU, told)
    loader.begin(AdapterLoad(1, adapter))
    error = told.next()
    assert isinstance(error, kind)
    assert message in str(error)
    stranger = adapter_of("x")
    assert stranger is not None
    loader.begin(AdapterLoad(1, stranger))
    assert "does not come from this engine's store" in str(told.next())
    loader.close()


def test_an_adapter_fails_alone_where_no_thread_can_be_started(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    kept, told = store(), Told()
    (adapter,) = load(kept, folders[:1])
    loader = AdapterLoader(AdapterBank(MODEL, slots=1, rank=4), kept, CPU, told)
    monkeypatch.setattr(threading.Thread, "start", fail)
    loader.begin(AdapterLoad(1, adapter))
    assert "'a' could not be brought to the device: can't start new thread" in str(told.next())
    loader.close()


def test_at_interpreter_exit_loading_ends_with_a_typed_error(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, told = store(), Told()
    (adapter,) = load(kept, folders[:1])
    loader = AdapterLoader(AdapterBank(MODEL, slots=1, rank=4), kept, CPU, told)
    monkeypatch.setattr("concurrent.futures.thread._shutdown", True)

    loader.begin(AdapterLoad(1, adapter))
    error = told.next()
    assert isinstance(error, AdapterError)
    assert "'a' cannot be loaded: cannot schedule new futures after" in str(error)
    with pytest.raises(AdapterError, match="adapters cannot be loaded: cannot schedule new futures after"):
        AdapterLoader(AdapterBank(MODEL, slots=1, rank=4), kept, CPU, told)
    loader.close()
