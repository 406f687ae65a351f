"""The engine thread, on scripted runners; gates in place of sleeps."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from photonlite.batch import Step
from photonlite.engine.loop import _LONGEST_SLEEP, EngineLoop
from photonlite.errors import CapacityError, DeadlineError, EngineDiedError, ModelError, RequestCancelledError
from photonlite.request import Request, SamplingSettings, Token
from photonlite.scheduler.scheduler import Decision
from photonlite.sequence import Sequence
from tests.engine.fakes import PREFIX, Bench, FakeImage, FakeSink, Words, ends_at
from tests.guard import GUARD


class Ended(FakeSink):
    def __init__(self) -> None:
        super().__init__()
        self.first = threading.Event()
        self.done = threading.Event()

    def on_token(self, token: Token) -> None:
        super().on_token(token)
        self.first.set()

    def on_finish(self, sequence: Sequence) -> None:
        super().on_finish(sequence)
        self.done.set()


class Gate:
    """Holds the engine thread in front of a commit."""

    def __init__(self, bench: Bench, number: int) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        bench.runner.before_collect = lambda step: self.pause() if step.number == number else None

    def pause(self) -> None:
        self.reached.set()
        assert self.opened.wait(GUARD)


def sequence(number: int, budget: int = 100, deadline: float | None = None, image: FakeImage | None = None) -> Sequence:
    request = Request("query", (Token(1),), Words(budget), budget, SamplingSettings())
    return Sequence(number, request, Ended(), PREFIX if image else 1, image, deadline=deadline)


def ended(one: Sequence) -> Ended:
    assert isinstance(one.sink, Ended)
    assert one.sink.done.wait(GUARD)
    assert len(one.sink.ends) == 1
    return one.sink


def test_threads_of_python_take_short_turns_while_an_engine_runs() -> None:
    bench, seen = Bench(ends_at(3)), []
    bench.runner.before_collect = lambda step: seen.append(sys.getswitchinterval())
    loop, one = EngineLoop(bench.core), sequence(0)
    loop.submit(one)
    ended(one)
    loop.close(drain=True)

    assert 0 < max(seen) < 1e-3


def test_requests_from_many_threads_are_answered() -> None:
    loop = EngineLoop(Bench(ends_at(5)).core)
    sequences = [sequence(number) for number in range(40)]
    threads = [
        threading.Thread(target=lambda part=part: [loop.submit(one) for one in part])
        for part in (sequences[:20], sequences[20:])
    ]
    for thread in threads:
        thread.start()

    assert all(len(ended(one).tokens) == 5 for one in sequences)
    loop.close(drain=True)


def test_closing_drains_what_is_in_flight() -> None:
    bench = Bench(ends_at(9))
    gate = Gate(bench, 2)
    loop = EngineLoop(bench.core)
    one, waiting = sequence(0), sequence(1)
    loop.submit(one)
    assert gate.reached.wait(GUARD)
    loop.submit(waiting)
    loop.stop(drain=True)
    assert not loop.alive
    with pytest.raises(ModelError, match="closed: load it again"):
        loop.submit(sequence(2))
    gate.opened.set()
    loop.close(drain=True)

    assert [len(ended(one).tokens), len(ended(waiting).tokens)] == [9, 9]
    assert bench.runner.calls[-1] == ("close", -1)
    assert bench.everything_is_free()


def test_closing_drains_what_waits_for_its_image() -> None:
    bench = Bench(ends_at(4))
    slow = FakeImage("slow", cut=False)
    asked = threading.Event()
    slow.request_crops = lambda pages: asked.set()  # type: ignore[method-assign]
    loop = EngineLoop(bench.core)
    one = sequence(0, image=slow)
    loop.submit(one)
    assert asked.wait(GUARD)
    asked.clear()
    loop.stop(drain=True)
    assert asked.wait(GUARD)  # it has looked again since, and there was nothing to do
    slow.cut = True
    loop.wake()
    loop.close(drain=True)

    assert len(ended(one).tokens) == 4
    assert bench.everything_is_free()


def test_closing_without_draining_fails_what_is_open_and_commits_what_is_in_flight() -> None:
    bench = Bench(ends_at(50))
    gate = Gate(bench, 2)
    loop = EngineLoop(bench.core)
    one = sequence(0)
    loop.submit(one)
    assert gate.reached.wait(GUARD)
    loop.stop(drain=False)
    gate.opened.set()
    loop.close(drain=False)

    assert isinstance(ended(one).ends[0].error, ModelError)
    launched = [call for call in bench.runner.calls if call[0] == "launch"]
    collected = [call for call in bench.runner.calls if call[0] == "collect"]
    assert len(launched) == len(collected)
    assert bench.everything_is_free()


def test_a_dying_thread_fails_every_open_and_later_request() -> None:
    bench = Bench(ends_at(50))

    def explode(step: Step) -> None:
        if step.number == 3:
            raise SystemError("the card has fallen off the bus")

    loop = EngineLoop(bench.core)
    plan = bench.scheduler.plan
    bench.scheduler.plan = lambda now, **more: (  # type: ignore[method-assign]
        explode(bench.runner.steps[-1]) or plan(now, **more) if bench.runner.steps else plan(now, **more)  # type: ignore[func-returns-value]
    )
    sequences, go_on = [sequence(number) for number in range(6)], threading.Event()
    loop.post(lambda: go_on.wait(GUARD) and None)  # it lives until all are submitted
    for one in sequences:
        loop.submit(one)
    go_on.set()

    for one in sequences:
        error = ended(one).ends[0].error
        assert isinstance(error, EngineDiedError)
        assert "fallen off the bus" in repr(error.__cause__)
        assert "fallen off the bus" not in str(error)
    loop.close(drain=True)
    assert not loop.alive
    with pytest.raises(EngineDiedError, match="the engine has stopped"):
        loop.submit(sequence(9))


def test_the_death_of_an_engine_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(ends_at(3))

    def explode(now: float, **_: object) -> None:
        raise SystemError("a mistake of ours")

    bench.scheduler.plan = explode  # type: ignore[method-assign]
    EngineLoop(bench.core).close(drain=True)

    [record] = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert record.name == "photonlite"
    assert "in explode" in caplog.text
    assert "a mistake of ours" in caplog.text


def test_cancelling_from_another_thread_ends_a_request_at_once() -> None:
    bench = Bench(ends_at(10**6), pages=2000)
    loop = EngineLoop(bench.core)
    one, after = sequence(0, budget=5000), sequence(1, budget=3)
    loop.submit(one)
    assert isinstance(one.sink, Ended)
    assert one.sink.first.wait(GUARD)
    loop.cancel(one)

    assert isinstance(ended(one).ends[0].error, RequestCancelledError)
    loop.submit(after)
    assert len(ended(after).tokens) == 3
    loop.close(drain=True)


def test_running_requests_are_decoded_while_thousands_of_notes_wait() -> None:
    bench = Bench(ends_at(10**6), pages=2000)
    gate = Gate(bench, 2)
    loop = EngineLoop(bench.core)
    one = sequence(0, budget=5000)
    loop.submit(one)
    assert gate.reached.wait(GUARD)
    read_after: list[int] = []  # of each note: steps that had been launched
    for _ in range(2_000):
        loop.post(lambda: read_after.append(len(bench.runner.steps)))
    all_read = threading.Event()
    loop.post(all_read.set)
    gate.opened.set()
    assert all_read.wait(GUARD)
    loop.close(drain=False)

    assert read_after == sorted(read_after)
    assert max(Counter(read_after).values()) <= 32
    ended(one)


def test_an_idle_engine_reads_all_notes_before_it_sleeps() -> None:
    loop = EngineLoop(Bench(ends_at(3)).core)
    held, go_on, read = threading.Event(), threading.Event(), threading.Event()
    loop.post(lambda: held.set() or (go_on.wait(GUARD) and None))  # type: ignore[func-returns-value]
    assert held.wait(GUARD)
    unread: list[int] = []
    sleep = loop._sleep
    loop._sleep = lambda: unread.append(len(loop._inbox)) or sleep()  # type: ignore[method-assign, func-returns-value]
    for _ in range(200):
        loop.post(lambda: None)
    loop.post(read.set)
    go_on.set()
    assert read.wait(GUARD)
    loop.close(drain=True)

    assert not any(unread)


def test_a_deadline_wakes_a_sleeping_engine() -> None:
    bench = Bench(ends_at(3))
    loop = EngineLoop(bench.core)
    one = sequence(0, deadline=0.0)  # long past: perf_counter counts from some time before
    bench.scheduler.policy.plan = lambda now, admit: None  # type: ignore[method-assign, assignment, misc]
    loop.submit(one)

    assert isinstance(ended(one).ends[0].error, DeadlineError)
    loop.close(drain=True)


def test_a_request_that_can_never_fit_is_refused_on_the_calling_thread() -> None:
    loop = EngineLoop(Bench(ends_at(3), pages=5).core)
    with pytest.raises(CapacityError, match="101 positions, which takes 26 pages of 4, but the KV cache has 4"):
        loop.submit(sequence(0, budget=100))
    loop.close(drain=True)


def test_waking_may_happen_in_the_middle_of_waking() -> None:
    """Garbage collection may drop, and so cancel, a request on any line."""
    loop = EngineLoop(Bench(ends_at(3)).core)
    done, inside = threading.Event(), False

    def collect(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal inside
        if not inside:
            inside = True
            loop.cancel(sequence(1))
            inside = False
        return collect

    def cancel() -> None:
        sys.settrace(collect)
        loop.cancel(sequence(0))
        sys.settrace(None)
        done.set()

    threading.Thread(target=cancel, daemon=True).start()

    assert done.wait(GUARD)
    loop.close(drain=True)


def test_a_sink_that_raises_when_its_request_is_refused_affects_no_other_request() -> None:
    core = Bench(ends_at(3)).core
    prepare = core.scheduler.prepare
    core.scheduler.prepare = lambda one: prepare(one) if one is good else None  # type: ignore[method-assign]
    loop = EngineLoop(core)
    refused, good = sequence(0, budget=100), sequence(1, budget=3)

    def broken(one: Sequence) -> None:
        raise KeyError("sink")

    refused.sink.on_finish = broken  # type: ignore[method-assign]
    loop.submit(refused)
    loop.submit(good)

    assert len(ended(good).tokens) == 3
    assert isinstance(refused.error, AssertionError)  # it was not prepared
    assert loop.alive
    loop.close(drain=True)


def test_closing_twice_is_fine_and_ends_the_thread() -> None:
    before = set(threading.enumerate())
    loop = EngineLoop(Bench(ends_at(3)).core)
    closers: list[Callable[[], None]] = [lambda: loop.close(drain=True), lambda: loop.close(drain=False)]
    for close in closers:
        close()

    assert set(threading.enumerate()) <= before


def test_a_deadline_beyond_the_longest_lock_timeout_is_allowed() -> None:
    bench = Bench(ends_at(3))
    slow = FakeImage("slow", cut=False)
    asked = threading.Event()
    slow.request_crops = lambda pages: asked.set()  # type: ignore[method-assign]
    loop = EngineLoop(bench.core)
    one = sequence(0, deadline=time.perf_counter() + 1e12, image=slow)
    loop.submit(one)
    assert asked.wait(GUARD)
    asked.clear()
    loop.wake()
    assert asked.wait(GUARD) or not loop.alive  # it has slept, and looks again
    slow.cut = True
    loop.wake()

    assert len(ended(one).tokens) == 3
    loop.close(drain=True)


def test_a_dying_engine_fails_all_requests_without_trusting_scheduler_state() -> None:
    bench = Bench(ends_at(50))
    loop = EngineLoop(bench.core)

    def lost(sequence: Sequence) -> None:
        raise AssertionError("a page is missing")

    bench.scheduler.finish = lost  # type: ignore[method-assign]
    sequences = [sequence(number, budget=budget) for number, budget in enumerate((3, 40, 50))]
    for one in sequences:
        loop.submit(one)
    loop.close(drain=True)

    assert isinstance(loop._refusal, EngineDiedError)
    assert [isinstance(ended(one).ends[0].error, EngineDiedError) for one in sequences] == [True, True, True]


def test_the_error_of_a_closed_engine_collects_no_frames_of_its_callers() -> None:
    loop = EngineLoop(Bench(ends_at(3)).core)
    loop.close(drain=True)
    for number in range(20):
        with pytest.raises(ModelError) as raised:
            loop.submit(sequence(number))

    assert len(raised.traceback) < 5


def test_the_error_of_a_dead_engine_keeps_no_frames_but_notes_its_traceback() -> None:
    bench = Bench(ends_at(3))

    def fail(now: float, **_: object) -> Decision:
        if bench.scheduler.waiting:
            raise RuntimeError("fallen off")
        return Decision(None)

    bench.scheduler.plan = fail  # type: ignore[method-assign]
    loop = EngineLoop(bench.core)
    one = sequence(0)
    loop.submit(one)
    error = ended(one).ends[0].error
    loop.close(drain=True)

    assert isinstance(error, EngineDiedError)
    assert error.__cause__ is not None
    assert (error.__traceback__, error.__cause__.__traceback__) == (None, None)
    assert "in fail" in "".join(traceback.format_exception(error))


@pytest.mark.long
def test_an_idle_engine_ticks_regularly() -> None:
    bench = Bench(ends_at(3))
    ticks = threading.Semaphore(0)
    tick = bench.core.tick
    bench.core.tick = lambda: ticks.release() or tick()  # type: ignore[method-assign, func-returns-value]
    loop = EngineLoop(bench.core)
    assert ticks.acquire(timeout=GUARD)
    loop._last_tick = -math.inf
    for _ in range(2):
        assert ticks.acquire(timeout=GUARD)

    assert loop.last_tick_s < math.inf
    assert _LONGEST_SLEEP < 1
    loop.close(drain=True)


def test_a_step_that_hangs_on_the_device_shows_in_the_last_tick() -> None:
    bench = Bench(ends_at(3))
    gate = Gate(bench, 1)
    loop = EngineLoop(bench.core)
    one = sequence(0)
    loop.submit(one)
    assert gate.reached.wait(GUARD)
    loop._last_tick -= 77
    silent = loop.last_tick_s
    gate.opened.set()
    ended(one)
    loop.close(drain=True)

    assert silent >= 77


@pytest.mark.long
def test_a_program_exits_after_the_thread_has_freed_the_models_memory() -> None:
    script = """
import time
import types
import weakref
import torch
from photonlite.engine.loop import EngineLoop

class Memory:
    def __del__(self):  # takes a while, and releases Python's lock in the middle of torch
        for _ in range(100):
            matrix @ matrix
        print("given back", flush=True)

matrix = torch.zeros(400, 400)
core = types.SimpleNamespace(
    memory=Memory(), runner=types.SimpleNamespace(close=lambda: None), tick=lambda: False, idle=True,
    wake_at=None, end_all=lambda error: None,
)
loop = EngineLoop(core)
del core
loop.stop(drain=True)
known = weakref.ref(loop)
del loop
while known() is not None:  # the thread drops it last of all
    time.sleep(0)
"""
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=GUARD)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "given back\n", "")


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_exits_although_another_thread_held_every_lock_at_the_fork() -> None:
    script = """
import gc
import os
import sys
import threading
import types
from photonlite import pauses
from photonlite.engine.handle import RequestHandle, TokenStream
from photonlite.engine.loop import EngineLoop
from photonlite.errors import ModelError

core = types.SimpleNamespace(
    runner=types.SimpleNamespace(close=lambda: None), tick=lambda: False, idle=True, wake_at=None,
    end_all=lambda error: None,
    scheduler=types.SimpleNamespace(prepare=lambda sequence: None),
)
loop, handle = EngineLoop(core), RequestHandle(None)
stream = TokenStream(handle)
held, done = threading.Event(), threading.Event()

def hold():
    with loop._gate, handle.future._condition, pauses._turns:
        held.set()
        done.wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
if os.fork() == 0:
    del stream
    gc.collect()
    loop.cancel(None)
    try:
        loop.submit(None)
    except ModelError as error:
        print(error, loop.alive, flush=True)
    loop.close(drain=True)
    EngineLoop(core).close(drain=True)  # a new one runs
    sys.exit(7)  # which closes all loops
child, status = os.wait()
print(os.waitstatus_to_exitcode(status), loop.alive, flush=True)
done.set()
"""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    with subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            told, complaints = process.communicate(timeout=GUARD)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the forked process too
            raise

    assert complaints == ""
    forked = "this process was forked, and the model's threads stayed behind: load it in this process"
    assert told.splitlines() == [f"{forked} False", "7 True"]
