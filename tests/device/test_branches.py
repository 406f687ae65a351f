"""A branch on fake streams: what waits for what. On a card steps of `MixtureDecode` replay one."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from photonlite.device import branches, parts
from photonlite.device.branches import Branch

CUDA = torch.device("cuda", 0)


class FakeStream:
    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.priority = priority
        self.work: list[str] = []

    def wait_stream(self, other: "FakeStream") -> None:
        self.work += [one for one in other.work if one not in self.work]


class FakeCuda:
    """Streams on which work is a name; what a stream has waited for is in its list."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, capturing: bool = True, priority: int = 0) -> None:
        self.main = self.current = FakeStream(priority=priority)
        self.made: list[FakeStream] = []
        for name, fake in {
            "current_stream": lambda device: self.current,
            "is_current_stream_capturing": lambda: capturing,
            "Stream": self.make,
            "stream": self.enter,
        }.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    def make(self, device: object, priority: int) -> FakeStream:
        self.made.append(FakeStream(device, priority))
        return self.made[-1]

    @contextlib.contextmanager
    def enter(self, stream: FakeStream) -> Iterator[None]:
        self.current = stream
        yield
        self.current = self.main

    def run(self, name: str) -> list[str]:
        """Launch work; return what it comes after."""
        before = [*self.current.work]
        self.current.work.append(name)
        return before

    def step(self, branch: Branch, names: str = "abcd") -> list[str]:
        """Run a, b beside c, and d behind both; return what each comes after."""
        a, b, c, d = names
        found = [self.run(a)]
        with branch.beside():
            found.append(self.run(b))
        found.append(self.run(c))
        branch.join()
        found.append(self.run(d))
        return ["".join(sorted(one)) for one in found]


def test_in_a_capture_work_runs_beside_what_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeCuda(monkeypatch, priority=-1)
    assert card.step(Branch(CUDA)) == ["", "a", "a", "abc"]
    assert [one.priority for one in card.made] == [-1]


def test_the_next_block_comes_after_all_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    card, branch = FakeCuda(monkeypatch), Branch(CUDA)
    card.step(branch)
    assert card.step(branch, "efgh") == ["abcd", "abcde", "abcde", "abcdefg"]
    assert len(card.made) == 1


@pytest.mark.parametrize("where", ["no capture", "a part", "the CPU"])
def test_elsewhere_work_runs_in_its_place(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    card = FakeCuda(monkeypatch, capturing=where != "no capture")
    if where == "a part":
        monkeypatch.setattr(parts._here, "part", object(), raising=False)
    branch = Branch(torch.device("cpu") if where == "the CPU" else CUDA)
    assert card.step(branch) == ["", "a", "ab", "abc"]
    assert not card.made


def test_a_parts_thread_knows_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Part(parts.Part):
        def enter(self, device: torch.device) -> Any:
            return FakeStream()

    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
    thread = parts.PartThread(Part(64, None, 0, None), CUDA)
    assert thread.run(branches.in_part)
    assert not branches.in_part()
