"""What counts as a hang, by a watchdog that is asked to look as often as a test wants."""

import dataclasses
import os
import subprocess
import sys

import pytest

from photonlite.server.watchdog import HUNG, PERIOD_S, Watchdog
from tests.server.fake import FakeModel
from tests.server.live import GUARD, ROOT, live


@dataclasses.dataclass
class Watched:
    alive: bool = True
    last_tick_s: float = 0.1
    waits_for_device: bool = False


class Bench:
    def __init__(self, model: Watched, hang_s: float = 5.0) -> None:
        self.ends: list[tuple[str, float]] = []
        self.beats = 0
        self.model = model
        self.watchdog = Watchdog(model, hang_s, self._beat, lambda *what: self.ends.append(what))

    def _beat(self) -> None:
        self.beats += 1

    def look(self, seconds: float, *, loop: bool = True) -> list[tuple[str, float]]:
        """Look until so many seconds have passed, or something hangs."""
        for _ in range(int(seconds / PERIOD_S)):
            if loop:
                self.watchdog.loop_turned()
            self.watchdog.observe()
            if self.ends:
                break
        return self.ends


def test_an_idle_server_does_not_hang() -> None:
    bench = Bench(Watched())

    assert bench.look(1000) == []
    assert bench.beats == 1000


def test_a_step_that_does_not_end_hangs_after_the_limit() -> None:
    bench = Bench(Watched(last_tick_s=9.0, waits_for_device=True))

    assert bench.look(1000) == [("step on the device", 5.0)]


def test_work_on_the_host_may_take_ten_times_as_long() -> None:
    bench = Bench(Watched(last_tick_s=9.0))

    assert bench.look(1000) == [("engine thread", 50.0)]


def test_time_on_the_host_does_not_count_as_time_of_the_device() -> None:
    bench = Bench(Watched(last_tick_s=9.0))
    assert bench.look(20) == []
    bench.model.waits_for_device = True
    assert bench.look(4) == []
    bench.model.waits_for_device = False
    assert bench.look(4) == []
    bench.model.waits_for_device = True

    assert bench.look(1000) == [("step on the device", 5.0)]


def test_steps_that_end_within_the_limit_are_no_hang_however_many_there_are() -> None:
    bench = Bench(Watched(waits_for_device=True))
    for _ in range(100):
        bench.model.last_tick_s = 4.9
        assert bench.look(4) == []
        bench.model.last_tick_s = 0.0
        assert bench.look(1) == []


def test_time_in_which_the_watchdog_did_not_run_does_not_count() -> None:
    bench = Bench(Watched(last_tick_s=1e6, waits_for_device=True))

    assert bench.look(4) == []
    bench.model.last_tick_s = 0.0
    assert bench.look(1000) == []


def test_an_event_loop_that_does_not_turn_hangs() -> None:
    assert Bench(Watched()).look(1000, loop=False) == [("event loop", 5.0)]


def test_a_dead_engine_and_a_server_that_stops_are_not_watched_but_beat() -> None:
    dead, stopping = (Bench(Watched(alive=alive, last_tick_s=1e6, waits_for_device=True)) for alive in (False, True))
    stopping.watchdog.rest()

    assert dead.look(1000) == stopping.look(1000, loop=False) == []
    assert dead.beats == stopping.beats == 1000


def test_the_end_of_a_frozen_process_is_put_off_until_the_server_stops() -> None:
    put_off: list[int] = []
    watchdog = Watchdog(Watched(), 5.0, put_off=lambda: put_off.append(1))
    for _ in range(3):
        watchdog.loop_turned()
        watchdog.observe()
    watchdog.rest()
    watchdog.observe()  # from here on the guard counts, whose time must not be replaced

    assert len(put_off) == 3


def test_a_server_starts_its_watchdog_turns_it_and_lets_it_rest_when_it_stops() -> None:
    calls: list[str] = []

    class Recorded(Watchdog):
        def start(self) -> None:
            calls.append("start")

        def loop_turned(self) -> None:
            calls.append("turned")

        def rest(self) -> None:
            calls.append("rest")

    fake = FakeModel()
    with live(fake, watchdog=Recorded(fake, 1.0)) as server:
        server.get("/ready")
        server.call(lambda: None)
    assert calls[0] == "start"
    assert {"turned", "rest"} <= set(calls)


HANGING = """
import sys, threading
from photonlite.server.transport.logs import json_lines
from photonlite.server.watchdog import Watchdog

class Model:
    alive, last_tick_s, waits_for_device = True, 1e6, True

def stuck_in_a_step():
    threading.Event().wait()

threading.Thread(target=stuck_in_a_step, daemon=True).start()
with json_lines(sys.stdout):
    watchdog = Watchdog(Model(), 1.0)
    watchdog.start()
    while not threading.Event().wait(0.01):
        watchdog.loop_turned()
"""


@pytest.mark.long
def test_a_process_that_hangs_ends_with_every_stack_and_a_log_line() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANGING],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=GUARD,
    )

    assert ended.returncode == HUNG
    assert "stuck_in_a_step" in ended.stderr
    assert '"event": "hung"' in ended.stdout
    assert '"what": "step on the device"' in ended.stdout


FROZEN = """
import ctypes, functools
from photonlite.server.run import end_process_in
from photonlite.server.watchdog import Watchdog

class Model:
    alive, last_tick_s, waits_for_device = True, 0.0, False

def keep_the_lock_of_the_interpreter():
    ctypes.PyDLL(None).pause()

watchdog = Watchdog(Model(), 1000.0, put_off=functools.partial(end_process_in, 0.1))
watchdog.observe()
keep_the_lock_of_the_interpreter()
"""


@pytest.mark.long
def test_a_process_whose_interpreter_is_frozen_ends_without_a_supervisor() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FROZEN],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=GUARD,
    )

    assert ended.returncode == 1
    assert "keep_the_lock_of_the_interpreter" in ended.stderr
