from collections.abc import Iterator

import pytest

from photonlite.errors import SettingsError
from photonlite.realtime import RealtimeLoop
from photonlite.realtime.sources import Feed, Frames, open_source, paced
from tests.realtime.fake import GUARD, FakeModel


class Time:
    """A clock that waiting moves on, and slow sources."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False

    def source(self, *costs: float) -> Iterator[int]:
        for number, cost in enumerate(costs):
            self.now += cost
            yield number


def times(time: Time, frames: Iterator[int], rate: float | None) -> list[float]:
    return [time.now for _ in paced(frames, rate, time.clock, time.wait)]


def test_frames_come_at_the_rate_however_long_each_takes() -> None:
    time = Time()

    assert times(time, time.source(0, 0.05, 0.09, 0, 0.02), 10) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_a_source_that_falls_behind_does_not_catch_up_in_a_burst() -> None:
    time = Time()

    assert times(time, time.source(0, 0.5, 0, 0), 10) == pytest.approx([0, 0.5, 0.6, 0.7])


def test_without_a_rate_frames_are_not_delayed() -> None:
    time = Time()

    assert times(time, time.source(0, 0.5, 0.01), None) == pytest.approx([0, 0.5, 0.51])


@pytest.mark.parametrize("rate", [None, 10.0])
def test_a_stopped_feed_submits_no_more_frames(rate: float | None) -> None:
    time = Time()

    assert len(list(paced(time.source(0, 0, 0), rate, time.clock, lambda seconds: True))) == (0 if rate is None else 1)


@pytest.fixture
def loop() -> Iterator[RealtimeLoop]:
    with RealtimeLoop(FakeModel(lambda image: {"objects": []}), object="mug") as loop:  # type: ignore[arg-type]
        yield loop


def test_a_source_is_played_once(loop: RealtimeLoop) -> None:
    with Feed(loop, open_source(["a", "b", "c"]), rate=1000) as feed:
        feed.join(GUARD)

    assert feed.ended
    assert loop.stats.submitted == 3


def test_a_source_is_repeated_until_it_is_stopped(loop: RealtimeLoop) -> None:
    results = iter(loop)
    with Feed(loop, open_source(["a", "b"]), rate=1000, repeat=True):
        while next(results).number < 5:
            pass

    assert loop.stats.submitted > 5


def test_an_empty_source_is_not_repeated(loop: RealtimeLoop) -> None:
    with Feed(loop, open_source([]), repeat=True) as feed:
        feed.join(GUARD)

    assert feed.ended


def test_a_feed_ends_after_its_duration(loop: RealtimeLoop) -> None:
    with Feed(loop, open_source(["a"]), rate=1000, duration_s=0.01, repeat=True) as feed:
        feed.join(GUARD)

    assert feed.ended


def test_errors_of_a_source_are_raised_by_join(loop: RealtimeLoop) -> None:
    def broken() -> Iterator[str]:
        yield "a"
        raise OSError("unplugged")

    with Feed(loop, Frames(broken, None, repeatable=False)) as feed, pytest.raises(OSError, match="unplugged"):
        feed.join(GUARD)


def test_a_feed_ends_when_its_loop_is_closed(loop: RealtimeLoop) -> None:
    with Feed(loop, open_source(["a"]), rate=1000, repeat=True) as feed:
        next(iter(loop))
        loop.close()
        feed.join(GUARD)

    assert feed.ended


@pytest.mark.parametrize("limits", [{"rate": 0}, {"rate": float("inf")}, {"duration_s": -1}])
def test_impossible_limits_are_refused(loop: RealtimeLoop, limits: dict[str, float]) -> None:
    with pytest.raises(SettingsError):
        Feed(loop, open_source(["a"]), **limits)
