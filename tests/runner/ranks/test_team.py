"""Ranks in processes of their own, over Gloo: answers of one process, lost ranks, ends."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import photonlite
from photonlite import VisionModel
from photonlite.config import EngineConfig
from photonlite.engine.engine import Engine
from photonlite.errors import CapacityError, CheckpointError, EngineDiedError, EngineError, SettingsError
from photonlite.models.checkpoint import load_files
from photonlite.models.loading import ModelFiles, resolve
from photonlite.runner.ranks import follower
from photonlite.runner.ranks.leader import load_team
from photonlite.runner.ranks.process import RankSetup
from photonlite.runner.ranks.team import Team
from tests.equality import WAYS, check
from tests.guard import GUARD
from tests.models.qwen.tiny import reference_model, save
from tests.ranks import RankScene, divisible_config, saved
from tests.serving import make_image
from tests.tiny import CPU

ASSETS = Path(__file__).parents[3] / "assets"


def processes() -> list[int]:
    """Return the process ids of all ranks that this process has started and that have not ended."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
            found += [child.pid] * ("photonlite.runner.ranks.follower" in child.cmdline())
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + GUARD
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@contextlib.contextmanager
def served(files: ModelFiles, count: int, **engine: Any) -> Iterator[VisionModel]:
    """Serve a model in float64 on so many ranks."""
    if count == 1:
        loaded = load_files(files, device=CPU, dtype=torch.float64)
    else:
        loaded = load_team(files, count, device=CPU, dtype=torch.float64)
    config = EngineConfig(tensor_parallel=count, **engine)
    with VisionModel(loaded, CPU, torch.float64, engine=config) as model:
        yield model


@pytest.mark.long
def test_random_requests_on_four_ranks_equal_the_oracle_at_both_depths(tmp_path: Path) -> None:
    model = load_team(saved(divisible_config(), tmp_path, 3), 4, device=CPU, dtype=torch.float64).model

    # Other ways of running them are those of ranks on threads: test_model_runner.py.
    assert check(RankScene(3, 6, model), "4 ranks", WAYS[:2])["encodes"]


@pytest.mark.long
@pytest.mark.parametrize(("case", "count"), [("2.5", 2), ("3-plain", 4)])
def test_answers_of_qwen_on_ranks_are_those_of_one(tmp_path: Path, case: str, count: int) -> None:
    files = resolve(save(reference_model(case), tmp_path, case))
    settings: Any = {"max_tokens": 12}
    images = [make_image(seed, (70, 50)) for seed in (1, 2, 1)]
    answers = []
    for ranks in (1, count):
        with served(files, ranks, max_context=500, max_batch=4) as model, ThreadPoolExecutor(4) as pool:
            asked: list[Any] = [pool.submit(model.query, image, "What?", settings=settings) for image in images]
            asked.append(pool.submit(model.query, images, "Which?", settings=settings))
            places = model.detect(images[0], "mug", settings=settings)["objects"]
            answers.append(([one.result()["answer"] for one in asked], places))
            assert model.metrics()["gauges"]["tensor_parallel"] == ranks

    assert answers[0] == answers[1]


@pytest.mark.long
def test_a_killed_rank_ends_open_requests_and_a_restart_answers_again(tmp_path: Path) -> None:
    # Answers so long that none ends before the rank is killed, on a busy machine too.
    with served(saved(divisible_config(max_context=100_000), tmp_path), 2) as model:
        question: Any = {"question": "why?", "settings": {"max_tokens": 12}}
        expected = model.query(make_image(1), **question)["answer"]
        [rank] = processes()
        errors: list[BaseException] = []

        def ask() -> None:
            with contextlib.suppress(AssertionError):
                try:
                    for _ in model.query(make_image(1), "why?", True, {"max_tokens": 90_000})["answer"]:
                        begun.set()
                except BaseException as error:
                    errors.append(error)

        begun = threading.Event()
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert begun.wait(GUARD)
        os.kill(rank, signal.SIGKILL)
        for thread in threads:
            thread.join(GUARD)

        assert [type(error) for error in errors] == [EngineDiedError] * 3
        assert all("rank 1 of 2 is lost, it was ended by SIGKILL" in str(error) for error in errors)
        assert not model.alive
        model.restart()
        assert model.query(make_image(1), **question)["answer"] == expected


@pytest.mark.long
def test_a_rank_that_is_killed_while_the_engine_idles_ends_it(tmp_path: Path) -> None:
    with served(saved(divisible_config(), tmp_path), 4) as model:
        os.kill(processes()[1], signal.SIGKILL)
        wait_until(lambda: not model.alive)

        with pytest.raises(EngineDiedError, match=r"rank \d of 4 is lost"):
            model.query(None, "why?")
        wait_until(lambda: not processes())


@pytest.mark.long
def test_rank_0_that_fails_in_the_middle_of_a_step_ends_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(saved(divisible_config(), tmp_path), 2) as model:
        runner: Any = model._session.engine._core.runner._model_runner  # type: ignore[attr-defined]

        def fail(rows: Any) -> Any:
            raise ZeroDivisionError

        monkeypatch.setattr(runner, "_step", fail)
        with pytest.raises(EngineDiedError, match="rank 0 of 2 failed in the middle of a step, ZeroDivisionError"):
            model.query(None, "why?")
        wait_until(lambda: not processes())


@pytest.mark.long
def test_closing_leaves_no_process_thread_or_file(tmp_path: Path) -> None:
    files = saved(divisible_config(), tmp_path)

    def answer(ranks: int) -> None:
        with served(files, ranks) as model:
            model.query(make_image(1), "why?", settings={"max_tokens": 3})
            assert len(processes()) == ranks - 1

    answer(2)  # what is made once stays
    before = _held()
    answer(4)

    # What earlier tests have left may be freed meanwhile.
    assert all(now <= then for now, then in zip(_held(), before, strict=True))


def _held() -> tuple[set[str], int, int]:
    gc.collect()
    process = psutil.Process()
    names = {thread.name for thread in threading.enumerate()}
    return names, process.num_fds(), len(process.children())


@pytest.mark.long
def test_ranks_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = """
import sys, time, psutil, torch
from pathlib import Path
from tests.ranks import RankScene, divisible_config, saved
from tests.runner.ranks.test_team import processes, served
with served(saved(divisible_config(), Path(sys.argv[1])), 2) as model:
    print(*processes(), flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        [rank] = [psutil.Process(int(pid)) for pid in program.stdout.readline().split()]
        program.kill()

    assert not psutil.wait_procs([rank], timeout=GUARD)[1]


@pytest.mark.long
def test_ranks_go_on_when_a_forked_process_ends(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from tests.ranks import divisible_config, saved
from tests.runner.ranks.test_team import served
with served(saved(divisible_config(), Path(sys.argv[1])), 2) as model:
    child = os.fork()
    if child == 0:
        sys.exit(7)  # which ends what the model has left, if it may
    status = os.waitpid(child, 0)[1]
    answer = model.query(None, "why?", settings={"max_tokens": 3})
    print(os.waitstatus_to_exitcode(status), answer.finish_reason)
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as program:
        try:
            assert program.communicate(timeout=GUARD)[0] == "7 length\n"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)  # the forked process too


@pytest.mark.long
def test_what_keeps_ranks_from_starting_is_told_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = saved(divisible_config(), tmp_path)
    with pytest.raises(CapacityError, match="not even one request"), served(files, 2, kv_cache_bytes=1000):
        pass
    with pytest.raises(SettingsError, match="'tensor_parallel' is 1, but this model was loaded for 2 ranks"):
        Engine(load_team(files, 2, device=CPU, dtype=torch.float64).model, CPU, torch.float64, EngineConfig())
    monkeypatch.setattr("photonlite.runner.ranks.process._MODULE", "photonlite.missing")
    ended = "rank 1 of the model could not load its share: it ended with exit code 1"
    with pytest.raises(EngineError, match=ended), served(files, 2):
        pass
    files.weights[0].write_bytes(b"")
    with pytest.raises(CheckpointError), served(files, 2):
        pass

    assert not processes()


class FakeProcess:
    """A rank without a process."""

    def __init__(self, setup: RankSetup) -> None:
        self.rank = setup.rank
        self.ended = threading.Event()

    def wait_loaded(self) -> None:
        pass

    def wait(self) -> int:
        assert self.ended.wait(GUARD)
        return 0

    def end(self) -> None:
        self.ended.set()


def test_without_a_thread_to_watch_a_rank_all_ranks_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread, begin: Callable[[threading.Thread], None] = threading.Thread.start) -> None:
        if thread.name == "photonlite-rank-2":
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr("photonlite.runner.ranks.team.RankProcess", FakeProcess)
    monkeypatch.setattr(threading.Thread, "start", start)
    team = Team(saved(divisible_config(), tmp_path), 4, CPU, torch.float64, None)
    team.start()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        team.connect()
    ranks: list[Any] = [*team._processes]

    team.stop()

    assert [rank.ended.is_set() for rank in ranks] == [True] * 3
    assert not any(thread.name.startswith("photonlite-rank-") for thread in threading.enumerate())
    assert not team._open


def on_cards(count: int, dtype: str, *, fused: bool) -> VisionModel:
    engine: Any = {"tensor_parallel": count, "fused": fused, "max_batch": 4, "graph_sizes": (1, 4)}
    engine["kv_cache_bytes"] = 1 << 28  # and not most of a card on which other tests run
    return photonlite.load(device="cuda", dtype=dtype, engine=engine)


def boxes(model: VisionModel, name: str) -> list[list[float]]:
    found = model.detect(ASSETS / "desk.png", name)["objects"]
    return sorted([box[side] for side in ("x_min", "y_min", "x_max", "y_max")] for box in found)


def ask_for_ever(model: VisionModel) -> None:
    while True:
        boxes(model, "apple")


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="takes two cards")
@pytest.mark.parametrize(("dtype", "fused"), [("bfloat16", True), ("bfloat16", False), ("float32", False)])
def test_two_cards_answer_as_one_does(dtype: str, fused: bool) -> None:
    answers = []
    for count in (1, 2):
        with on_cards(count, dtype, fused=fused) as model:
            answers.append([boxes(model, name) for name in ("apple", "cup", "laptop")])
            metrics = model.metrics()
            assert metrics["counters"]["graph_replays"] > 0
            assert ("decode steps" in metrics["plain"]) is not fused

    assert all(answers[0])
    assert [len(found) for found in answers[0]] == [len(found) for found in answers[1]]
    for one, other in zip(*answers, strict=True):
        torch.testing.assert_close(torch.tensor(other), torch.tensor(one), rtol=0, atol=0.02)


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="takes two cards")
def test_a_card_that_waits_for_a_killed_rank_is_freed_and_a_restart_answers_again() -> None:
    with on_cards(2, "bfloat16", fused=True) as model:
        expected = boxes(model, "apple")
        for _ in range(2):
            [rank] = processes()
            killing = threading.Timer(0.5, os.kill, (rank, signal.SIGKILL))
            killing.start()
            with pytest.raises(EngineDiedError, match="rank 1 of 2 is lost"):
                ask_for_ever(model)
            killing.join()
            model.restart()
            assert boxes(model, "apple") == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="takes a machine without a card")
def test_more_ranks_than_cards_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    files = saved(divisible_config(), tmp_path)

    with pytest.raises(SettingsError, match="'tensor_parallel' is 4, but from cuda:1 on this machine has 2 CUDA"):
        load_team(files, 4, device=torch.device("cuda", 1), dtype=torch.float32)


def test_a_record_names_a_method_of_the_other_ranks() -> None:
    source = (
        Path(follower.__file__).with_name("leader.py").read_text()
        + Path(follower.__file__).with_name("team.py").read_text()
    )
    names = {part.split('"')[0] for part in source.split('leading("')[1:]}

    assert names
    assert all(callable(getattr(follower.Follower, name)) for name in names)
