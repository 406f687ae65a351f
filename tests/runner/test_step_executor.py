from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from photonlite.batch import BatchItem, ScheduledBatch, Step
from photonlite.device.base import Array
from photonlite.errors import NumericalError
from photonlite.kernels.columns import FINITE, ID
from photonlite.observe.trace import Tracer
from photonlite.request import Allowed, Request, SamplingSettings, Token
from photonlite.runner.slots import Slot, SlotShape
from photonlite.runner.step_executor import StepExecutor
from photonlite.sequence import Sequence

SHAPE = SlotShape(max_rows=4, max_tokens=20, page_size=4, max_pages=4, mask_words=2, pending_rows=9)


class Card:
    """A device that works as CUDA does: what it is given runs on the host at once and queues kernels."""

    def __init__(self) -> None:
        self.compute = self.upload = self.download = self
        self.kernels: list[Callable[[], None]] = []

    def run(self, work: Callable[[], None]) -> None:
        work()

    def record(self, event: Any) -> None:
        event.recorded = len(self.kernels)

    def wait(self, event: Any) -> None: ...

    def event(self) -> "Mark":
        return Mark(self)

    def elapsed(self, start: Any, end: Any) -> float:
        return 0.0

    def time_of(self, event: Any) -> float:
        return 0.0

    def rebase(self) -> None: ...

    def host_array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        return np.zeros(shape, dtype)

    def close(self) -> None: ...


class Mark:
    done = True

    def __init__(self, card: Card) -> None:
        self.card = card
        self.recorded = 0

    def wait(self) -> None:
        kernels = self.card.kernels
        for index in range(self.recorded):
            kernels[index]()
            kernels[index] = lambda: None


class Work:
    """A body whose forward passes read page tables when their kernels run, and fail on demand half-way."""

    shape = SHAPE
    vocab_size = 40
    coordinates = sizes = (0.0, 0.5)

    def __init__(self, card: Card) -> None:
        self.card = card
        self.fails = False
        self.part_sizes: tuple[int, ...] = ()
        self.written: list[list[int]] = []

    def padded(self, rows: int, *, adapted: bool = False) -> tuple[int, bool]:
        return rows, False

    def decode(self, slot: Slot, count: int) -> None:
        self.card.kernels.append(lambda: self.written.append(slot.rows[:count, 2].tolist()))
        if self.fails:
            raise MemoryError("half-way")

    def finalize(self, slot: Slot, count: int, variant: str, *, sampled: bool) -> None:
        slot.results[:count] = 0
        slot.results[:count, ID] = 7
        slot.results[:count, FINITE] = 1
        slot.results[:count, 1:3] = -1
        slot.scores[:count] = slot.scored[:count] / 100

    def upload_rows(self, *args: Any) -> None: ...

    def upload_choices(self, *args: Any) -> None: ...

    def download(self, *args: Any) -> None: ...


def decode_step(number: int, *pages: int) -> Step:
    """One row for each page, at its first position."""
    rows = []
    for index, page in enumerate(pages):
        request = Request("query", (Token(1),), None, 9, SamplingSettings())  # type: ignore[arg-type]
        sequence = Sequence(index, request, None, 1, row=index, pages=[page])  # type: ignore[arg-type]
        rows.append(BatchItem(sequence, 2, 1, 0))
    return Step(number, ScheduledBatch("decode", tuple(rows)), 0)


def engine() -> tuple[StepExecutor, Work]:
    card = Card()
    work = Work(card)
    return StepExecutor(card, work, 1), work  # type: ignore[arg-type]


def test_a_launch_that_fails_half_way_has_left_its_slot_when_it_raises() -> None:
    runner, work = engine()
    work.fails = True
    with pytest.raises(MemoryError):
        runner.launch(decode_step(0, 5))

    # The slot's rows are the next step's now: whatever was queued must have read them before.
    work.fails = False
    runner.launch(decode_step(1, 9))
    assert work.written == [[5 * 4 + 2]]


class Odd(Allowed):
    def permits(self, token_id: int) -> bool:
        raise KeyError(token_id)


def broken_list() -> Any:
    yield Allowed()
    raise ValueError("more rows than there are")


def test_a_step_whose_choices_failed_has_left_its_slot_when_its_failure_is_collected() -> None:
    runner, work = engine()
    step = decode_step(0, 5)
    runner.launch(step)
    with pytest.raises(ValueError, match="more rows") as raised:  # before anything of the second half was queued
        runner.finalize(step, broken_list())
    step.failure = raised.value
    with pytest.raises(ValueError, match="more rows"):
        runner.collect(step)

    assert work.written == [[5 * 4 + 2]]


@pytest.mark.parametrize(
    "broken",
    [
        Allowed((40,)),
        Allowed((2**40,)),
        Allowed((1, 2**70)),
        Allowed(("a", "b")),  # type: ignore[arg-type]
        Allowed((1, 2), scored=(1, 40)),
        Allowed((1, 2), scored=(1,) * 999),
        object(),
        Odd((1, 2), coordinate=1),
    ],
    ids=["unknown", "large", "huge", "text", "scored", "many", "nothing", "odd"],
)
def test_a_row_that_asks_for_the_impossible_fails_alone(broken: Any) -> None:
    runner, _ = engine()
    step = decode_step(0, 5, 6, 7)
    runner.launch(step)
    runner.finalize(step, [Allowed(), broken, Allowed((1, 2))])

    assert [isinstance(outcome, Token) for outcome in runner.collect(step)] == [True, False, True]


def test_a_trace_says_which_steps_ran_in_a_part() -> None:
    runner, work = engine()
    runner._tracer = tracer = Tracer()
    work.part_sizes = (1,)
    work.padded = lambda rows, adapted: (rows, True)  # type: ignore[assignment,method-assign]
    steps = [decode_step(0, 5), decode_step(1, 5), decode_step(2, 5, 6)]
    for step, beside in zip(steps, (False, True, True), strict=True):
        step.beside = beside
        runner.launch(step)
        runner.finalize(step, [Allowed()] * len(step.rows))
        runner.collect(step)

    assert [span.args for span in tracer.spans() if span.name == "forward"] == [
        {"step": 0}, {"step": 1, "part": 1}, {"step": 2},
    ]  # fmt: skip


def test_a_token_has_the_scores_that_its_row_asked_for_and_others_have_none() -> None:
    runner, _ = engine()
    step = decode_step(0, 5, 6, 7)
    runner.launch(step)
    runner.finalize(step, [Allowed((1, 2)), Allowed((1, 2, 4), scored=(4, 2)), None])
    plain, scored, _ = runner.collect(step)

    assert isinstance(plain, Token)
    assert isinstance(scored, Token)
    assert plain.scores == ()
    assert scored.scores == pytest.approx((0.04, 0.02))


def test_scores_that_are_no_numbers_are_the_fault_of_the_weights() -> None:
    runner, work = engine()
    step = decode_step(0, 5, 6)
    runner.launch(step)
    download = work.download

    def broken(slot: Slot, *rest: Any) -> None:
        download(slot, *rest)
        slot.scores[1, 1] = np.nan

    work.download = broken  # type: ignore[method-assign]
    runner.finalize(step, [Allowed((1, 2), scored=(1, 2)), Allowed((1, 2), scored=(1, 2))])
    fine, spoiled = runner.collect(step)

    assert isinstance(fine, Token)
    assert isinstance(spoiled, NumericalError)
