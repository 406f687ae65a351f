import asyncio
import logging
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from photonlite.errors import DeadlineError, ImageError, InputError, UnknownAdapterError, UnsupportedSkillError
from photonlite.realtime import FrameFailure, FrameResult, RealtimeLoop
from tests.realtime.fake import GUARD, FakeModel


class Heard:
    """Takes results and failures, and lets a test wait for them."""

    def __init__(self) -> None:
        self.results: list[FrameResult] = []
        self.failures: list[FrameFailure] = []
        self._new = threading.Semaphore(0)

    def on_result(self, result: FrameResult) -> None:
        self.results.append(result)
        self._new.release()

    def on_error(self, failure: FrameFailure) -> None:
        self.failures.append(failure)
        self._new.release()

    def wait(self) -> None:
        assert self._new.acquire(timeout=GUARD)


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def loop(model: FakeModel, heard: Heard) -> Iterator[RealtimeLoop]:
    loop = RealtimeLoop(model, object="mug", on_result=heard.on_result, on_error=heard.on_error)  # type: ignore[arg-type]
    yield loop
    loop.close(drain=False)


def test_the_newest_waiting_frame_is_asked_about_next(loop: RealtimeLoop, model: FakeModel, heard: Heard) -> None:
    loop.submit("a", stamp="first")
    first = model.next()
    for image in ("b", "c", "d"):
        loop.submit(image)
    first.answer()
    model.next().answer()
    heard.wait()
    heard.wait()

    assert [(result.number, result.image) for result in heard.results] == [(0, "a"), (3, "d")]
    assert heard.results[0].stamp == "first"
    assert loop.stats.dropped["superseded"] == 2


def test_requests_carry_the_remaining_deadline_and_realtime_priority(model: FakeModel) -> None:
    with RealtimeLoop(model, object="mug", deadline_ms=1_000_000, settings={"max_objects": 2}) as loop:  # type: ignore[arg-type]
        loop.submit("a")
        ask = model.next()
        ask.answer()

    assert 0 < ask.arguments.pop("deadline_s") <= 1000
    assert ask.arguments == {"object": "mug", "settings": {"max_objects": 2}, "realtime": True}


def test_an_adapter_answers_until_another_task_is_named_and_an_unknown_one_is_refused(model: FakeModel) -> None:
    with RealtimeLoop(model, object="mug", adapter="shelf") as loop:  # type: ignore[arg-type]
        loop.submit("a")
        ask = model.next()
        ask.answer()
        assert ask.arguments["adapter"] == "shelf"
        with pytest.raises(UnknownAdapterError, match="no adapter is called 'shelv': loaded are shelf"):
            loop.change(adapter="shelv")
        loop.change(object="key")
        assert loop.question.arguments["adapter"] == "shelf"
        loop.change(task="point", object="key")
        assert "adapter" not in loop.question.arguments


def test_latest_gives_the_newest_result_and_its_age(model: FakeModel) -> None:
    now = [10.0]
    with RealtimeLoop(model, object="mug", deadline_ms=1000, clock=lambda: now[0]) as loop:  # type: ignore[arg-type]
        assert loop.latest() is None
        results = iter(loop)
        loop.submit("a")
        ask = model.next()
        now[0] = 10.5
        ask.answer({"objects": []})
        next(results)
        now[0] = 12.0
        latest = loop.latest()

        assert latest is not None
        assert (latest.result, latest.stamp, latest.met_deadline) == ({"objects": []}, 10.0, True)
        assert (latest.latency_s, latest.age_s) == (0.5, 2.0)


def test_a_failing_frame_is_reported_and_the_next_one_is_answered(
    loop: RealtimeLoop, model: FakeModel, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "photonlite")
    for image in ("a", "b"):
        loop.submit(image)
        model.next().fail(ImageError("no image at all"))
        heard.wait()
    loop.submit("c")
    model.next().answer()
    heard.wait()

    assert [failure.number for failure in heard.failures] == [0, 1]
    assert [result.number for result in heard.results] == [2]
    assert loop.stats.failures == {"ImageError": 2}
    assert caplog.text.count("no image at all") == 1


def test_a_missed_deadline_is_not_a_failure(model: FakeModel, heard: Heard) -> None:
    with RealtimeLoop(model, object="mug", deadline_ms=1_000_000, on_error=heard.on_error) as loop:  # type: ignore[arg-type]
        loop.submit("a")
        model.next().fail(DeadlineError("too late"))

    assert (loop.stats.missed, loop.stats.failed, heard.failures) == (1, 0, [])


def test_a_changed_prompt_takes_effect_with_the_next_frame(loop: RealtimeLoop, model: FakeModel, heard: Heard) -> None:
    loop.submit("a")
    first = model.next()
    loop.submit("b")
    loop.change(task="point", object="key")
    first.answer()
    second = model.next()
    second.answer()
    heard.wait()
    heard.wait()

    assert (second.task, second.arguments["object"]) == ("point", "key")
    assert [(result.task, result.arguments["object"]) for result in heard.results] == [
        ("detect", "mug"),
        ("point", "key"),
    ]


def test_unsupported_tasks_are_refused_at_once(loop: RealtimeLoop, model: FakeModel) -> None:
    with pytest.raises(UnsupportedSkillError, match="not trained for segment"):
        loop.change(task="segment", object="mug")
    with pytest.raises(UnsupportedSkillError):
        RealtimeLoop(model, task="segment", object="mug")  # type: ignore[arg-type]
    assert loop.question.task == "detect"


def test_a_raising_callback_is_counted_and_the_loop_goes_on(model: FakeModel, caplog: pytest.LogCaptureFixture) -> None:
    def broken(result: FrameResult) -> None:
        raise ZeroDivisionError

    with RealtimeLoop(model, object="mug", on_result=broken) as loop:  # type: ignore[arg-type]
        for image in ("a", "b"):
            loop.submit(image)
            model.next().answer()

    assert (loop.stats.answered, loop.stats.callback_errors) == (2, 2)
    assert "ZeroDivisionError" in caplog.text


def test_the_next_frame_is_asked_about_while_a_callback_runs(model: FakeModel) -> None:
    def look(result: FrameResult) -> None:
        if result.number == 0:
            model.next().answer()

    with RealtimeLoop(model, object="mug", on_result=look) as loop:  # type: ignore[arg-type]
        loop.submit("a")
        first = model.next()
        loop.submit("b")
        first.answer()

    assert (loop.stats.answered, loop.stats.callback_errors) == (2, 0)


def test_arrays_are_copied_so_that_the_camera_can_reuse_its_buffer(loop: RealtimeLoop, model: FakeModel) -> None:
    frame = np.zeros((4, 4, 3), np.uint8)
    loop.submit(frame)
    frame[:] = 255

    assert model.next().image.max() == 0


def test_an_overtaken_frame_has_no_result(model: FakeModel, heard: Heard) -> None:
    with RealtimeLoop(model, object="mug", in_flight=2, on_result=heard.on_result) as loop:  # type: ignore[arg-type]
        loop.submit("a")
        old = model.next()
        loop.submit("b")
        model.next().answer()
        heard.wait()
        old.answer()

    assert [result.number for result in heard.results] == [1]
    assert loop.stats.dropped["overtaken"] == 1


def test_an_iterator_gives_the_newest_counts_what_it_skips_and_ends_with_the_loop(
    loop: RealtimeLoop, model: FakeModel, heard: Heard
) -> None:
    results = iter(loop)
    for image in ("a", "b", "c"):
        loop.submit(image)
        model.next().answer()
        heard.wait()
    newest = next(results)
    loop.close()

    assert (newest.number, results.skipped) == (2, 2)
    assert list(results) == []


def test_coroutines_iterate_too(loop: RealtimeLoop, model: FakeModel) -> None:
    async def main() -> list[int]:
        numbers = []
        loop.submit("a")
        waiting = asyncio.to_thread(lambda: model.next().answer())
        asking = asyncio.ensure_future(waiting)
        async for result in loop:
            await asking
            numbers.append(result.number)
            await asyncio.to_thread(loop.close)
        return numbers

    assert asyncio.run(asyncio.wait_for(main(), GUARD)) == [0]


def test_a_coroutine_that_waits_can_be_cancelled(loop: RealtimeLoop) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(aiter(loop)), 0.01)

    asyncio.run(main())
    loop.close()


def test_closing_answers_the_frames_already_submitted(model: FakeModel, heard: Heard) -> None:
    loop = RealtimeLoop(model, object="mug", on_result=heard.on_result)  # type: ignore[arg-type]
    loop.submit("a")
    first = model.next()
    loop.submit("b")
    closing = threading.Thread(target=loop.close)
    closing.start()
    first.answer()
    model.next().answer()
    closing.join(GUARD)

    assert [result.number for result in heard.results] == [0, 1]
    with pytest.raises(InputError, match="closed"):
        loop.submit("c")
    loop.close()


def test_closing_without_draining_cancels_what_is_in_flight(model: FakeModel) -> None:
    loop = RealtimeLoop(model, object="mug")  # type: ignore[arg-type]
    loop.submit("a")
    ask = model.next()
    loop.submit("b")
    loop.close(drain=False)

    assert ask.cancelled
    assert loop.stats.dropped["closed"] == 2


def test_a_drain_that_takes_too_long_can_be_cut_short(model: FakeModel) -> None:
    loop = RealtimeLoop(model, object="mug")  # type: ignore[arg-type]
    loop.submit("a")
    model.next()
    closing = threading.Thread(target=loop.close)
    closing.start()
    loop.close(drain=False)
    closing.join(GUARD)

    assert not closing.is_alive()


def test_a_callback_may_close_the_loop(model: FakeModel) -> None:
    loop = RealtimeLoop(model, object="mug", on_result=lambda result: loop.close())  # type: ignore[arg-type]
    loop.submit("a")
    model.next().answer()

    assert [result.number for result in loop] == [0] or loop.closed
    loop.close()
