import threading
from collections.abc import Iterator

import pytest

from photonlite.video.answers import answer_frames
from tests.guard import GUARD


def counted(count: int, read: list[int]) -> Iterator[int]:
    for number in range(count):
        read.append(number)
        yield number


def test_every_frame_has_its_own_answer_in_order_however_long_each_takes() -> None:
    second = threading.Event()

    def ask(number: int) -> int:
        if number == 0:
            assert second.wait(GUARD)
        if number == 1:
            second.set()
        return -number

    answers = list(answer_frames(counted(50, []), ask, window=4))

    assert answers == [(number, -number) for number in range(50)]


def test_frames_between_have_no_answer() -> None:
    asked: list[int] = []
    answers = list(answer_frames(counted(8, []), lambda number: asked.append(number) or number, every=3, window=2))

    assert [answer for _, answer in answers] == [0, None, None, 3, None, None, 6, None]
    assert sorted(asked) == [0, 3, 6]


def test_reading_runs_ahead_of_the_caller_by_a_bounded_number_of_frames() -> None:
    read: list[int] = []
    running = threading.Semaphore(0)

    def ask(number: int) -> int:
        running.release()
        return number

    answers = answer_frames(counted(100, read), ask, window=5)
    next(answers)
    for _ in range(5):
        assert running.acquire(timeout=GUARD)  # asked about while the caller has the first frame
    assert len(read) == 5
    for _ in range(10):
        next(answers)
        assert running.acquire(timeout=GUARD)
        assert len(read) <= 16
    answers.close()


def test_errors_of_the_source_come_after_the_frames_before_it() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("cut off")

    answers = answer_frames(broken(), lambda number: number)

    assert next(answers)[1] == 1
    with pytest.raises(OSError, match="cut off"):
        next(answers)


def test_errors_of_the_question_are_raised_and_end_it() -> None:
    read: list[int] = []

    with pytest.raises(ZeroDivisionError):
        list(answer_frames(counted(100, read), lambda number: 1 // (number - 3), window=2))
    assert len(read) < 100
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("photonlite-video")]


def test_a_caller_that_leaves_ends_reading() -> None:
    read: list[int] = []
    answers = answer_frames(counted(1000, read), lambda number: number, window=3)
    next(answers)
    answers.close()

    assert len(read) < 10
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("photonlite-video")]
