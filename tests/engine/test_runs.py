"""Forced runs: tokens that must follow are appended at once, and computed in one launch."""

import itertools
from collections.abc import Sequence

import pytest

from photonlite.batch import BatchItem, ScheduledBatch, Step
from photonlite.engine.handle import RequestHandle, TokenStream
from photonlite.engine.memory_gate import GateLane
from photonlite.errors import ImageError, StepError
from photonlite.request import Allowed, Request, SamplingSettings, Token
from photonlite.scheduler.limits import Limits
from photonlite.sequence import Sequence as EngineSequence
from tests.engine.fakes import END, PREFIX, WORD, Bench, FakeImage, FakeSink, Words, ends_at

FORCED = 5


class Scripted:
    """Words up to the end id, with forced ids at some places."""

    expected_run: tuple[int, ...] = ()

    def __init__(self, places: Sequence[int], budget: int = 100) -> None:
        self.places, self.budget = frozenset(places), budget
        self.seen: list[int] = []

    @property
    def allowed(self) -> Allowed:
        return Allowed((FORCED,)) if len(self.seen) in self.places else Allowed((WORD, END))

    @property
    def ahead(self) -> Allowed | None:
        return None

    @property
    def run(self) -> tuple[int, ...]:
        end = len(self.seen)
        while end in self.places:
            end += 1
        return (FORCED,) * (end - len(self.seen))

    @property
    def finish_reason(self) -> str | None:
        if self.seen and self.seen[-1] == END:
            return "stop"
        return "length" if len(self.seen) >= self.budget else None

    def accept(self, token: Token) -> None:
        if self.finish_reason is not None or not self.allowed.permits(token.id):
            raise ValueError(f"{token} may not stand at place {len(self.seen)}")
        self.seen.append(token.id)


def script(places: Sequence[int], length: int):
    """Return what the device samples: forced ids at these places, words elsewhere, the end id as the last token."""

    def choose(sequence: EngineSequence, index: int) -> Token:
        return Token(FORCED if index in places else END if index == length - 1 else WORD)

    return choose


def launched(bench: Bench) -> list[tuple[str, list[tuple[int, int, int | None]]]]:
    return [(step.kind, [(row.start, row.count, row.index) for row in step.rows]) for step in bench.runner.steps]


def rows_of(bench: Bench) -> list[tuple[BatchItem, ...]]:
    return [step.rows for step in bench.runner.steps]


def ids(sink: FakeSink) -> list[int]:
    return [token.id for token in sink.tokens]


# The prompt has three positions: BOS and two tokens.
RUN = range(2, 7)
ANSWER = [WORD, WORD, *[FORCED] * 5, WORD, END]


class Expecting(Scripted):
    """The same, and it says which run follows the next token."""

    @property
    def expected_run(self) -> tuple[int, ...]:
        begin = end = len(self.seen) + 1
        while end in self.places:
            end += 1
        return (FORCED,) * (end - begin)


def test_a_run_that_is_expected_is_computed_with_the_token_before_it_and_before_that_has_come() -> None:
    bench = Bench(script(RUN, 9))
    sink = bench.ask(Expecting(RUN))
    bench.run()

    assert ids(sink) == ANSWER
    assert launched(bench)[:3] == [("prefill", [(0, 3, 0)]), ("decode", [(3, 1, 1)]), ("run", [(4, 6, 7)])]
    calls = bench.runner.calls
    assert calls.index(("launch", 2)) < calls.index(("collect", 1)) < calls.index(("finalize", 2))
    assert [row.assumed for row in bench.runner.steps[2].rows] == [(FORCED,) * 5]
    assert bench.core.metrics.forced_tokens == 5
    assert bench.core.metrics.zombie_rows == 1  # behind the end id, which was not expected
    assert bench.everything_is_free()


@pytest.mark.parametrize("places", [(), (2,), (2, 3)])
def test_what_was_assumed_and_does_not_follow_is_dropped_and_computed_again(places: Sequence[int]) -> None:
    grammar = Scripted(places)
    grammar.expected_run = (FORCED, FORCED, FORCED)
    bench = Bench(script(places, 6), max_batch=2)
    sink, other = bench.ask(grammar), bench.ask(Words(9))
    bench.run()

    assert ids(sink) == [*(FORCED if place in places else WORD for place in range(5)), END]
    assert len(other.tokens) == 6
    first, again = [step for step in bench.runner.steps if step.kind == "run"][:2]
    assert [(row.start, row.assumed, row.pending) for row in first.rows] == [(4, (FORCED,) * 3, True)]
    assert first.dropped == {bench.sequences[0]}
    assert [(row.start, row.assumed, row.pending) for row in again.rows] == [(4, (), False)]
    assert [row.count for row in again.rows] == [1 + len(places)]  # with what must follow
    assert bench.runner.allowed[first.number] == [None]
    assert bench.core.metrics.zombie_rows >= 1
    assert bench.everything_is_free()


def test_an_error_of_a_row_that_was_dropped_ends_nothing() -> None:
    grammar = Scripted(())
    grammar.expected_run = (FORCED,)
    bench = Bench(script((), 6))
    collect = bench.runner.collect

    def spoil(step: Step) -> list[Token | Exception | None]:
        rows = zip(step.rows, collect(step), strict=True)
        return [ArithmeticError("not a number") if row.assumed else one for row, one in rows]

    bench.runner.collect = spoil  # type: ignore[method-assign]
    sink = bench.ask(grammar)
    bench.run()

    assert ids(sink) == [*[WORD] * 5, END]
    assert [one.error for one in sink.ends] == [None]


def test_a_step_that_fails_as_a_whole_ends_a_request_whose_row_was_dropped() -> None:
    grammar = Scripted(())
    grammar.expected_run = (FORCED,)
    bench = Bench(script((), 6))
    bench.runner.fails.add(("collect", 2))
    sink = bench.ask(grammar)
    bench.run()

    assert bench.runner.steps[2].dropped
    assert [type(one.error) for one in sink.ends] == [StepError]
    assert bench.everything_is_free()


def test_a_token_that_ends_the_answer_ends_what_was_assumed_behind_it() -> None:
    bench = Bench(script((), 2))
    grammar = Scripted(())
    grammar.expected_run = (FORCED, FORCED)
    sink = bench.ask(grammar)
    bench.run()

    assert ids(sink) == [WORD, END]
    assert bench.everything_is_free()


def test_a_launch_that_assumed_and_raised_is_made_again_in_smaller_ones_where_memory_was_short() -> None:
    bench = Bench(script(RUN, 9))
    sinks = [bench.ask(Expecting(RUN)) for _ in range(4)]
    failed: list[Step] = []
    assumed: list[tuple[int, ...]] = []  # once it is undone
    launch, abandon = bench.runner.launch, bench.scheduler.abandon

    def undo(batch: ScheduledBatch) -> None:
        abandon(batch)
        assumed.extend(row.sequence.assumed for row in batch.rows)

    def fail_once(step: Step) -> None:
        if step.kind == "run" and not failed:
            failed.append(step)
            raise MemoryError
        launch(step)

    bench.runner.launch, bench.scheduler.abandon = fail_once, undo  # type: ignore[method-assign]
    bench.run()

    assert [len(step.rows) for step in failed] == [4]
    assert assumed == [()] * 4  # else what comes would be confirmed for a step that was never launched
    assert all(ids(sink) == ANSWER for sink in sinks)
    assert bench.everything_is_free()


def test_no_more_is_assumed_than_the_budget_and_a_launch_have_room_for() -> None:
    places = range(2, 40)
    for budget, first in ((100, 15), (12, 9)):
        bench = Bench(script(places, 50))
        bench.ask(Expecting(places, budget), budget=budget)
        bench.run()

        row = next(row for step in bench.runner.steps for row in step.rows if row.assumed)
        assert len(row.assumed) == first
        assert bench.sequences[0].num_computed_tokens <= bench.sequences[0].longest
        assert bench.everything_is_free()


def test_rows_that_assume_come_before_runs_in_their_launch_and_take_turns_with_decode_steps() -> None:
    bench = Bench(lambda one, index: script(RUN if one.number else (), 30)(one, index), max_batch=4)
    for grammar in (Words(30, constrained=True), Scripted(RUN), Expecting(RUN)):
        bench.ask(grammar)
    bench.run()

    kinds = [kind for kind, _ in launched(bench)]
    assert ("run", "run") not in set(itertools.pairwise(kinds))
    assert all(sorted(rows, key=lambda row: not row.pending) == list(rows) for rows in rows_of(bench))


def test_only_a_run_that_is_worth_a_launch_is_assumed() -> None:
    bench = Bench(script(RUN, 9), max_batch=7)
    others = [bench.ask(Words(9)) for _ in range(6)]  # seven decode, and the launch would have six positions
    sink = bench.ask(Expecting(RUN))
    bench.run()

    assert ids(sink) == ANSWER
    assert all(len(other.tokens) == 9 for other in others)
    assert [kind for kind, _ in launched(bench)] == ["prefill", *["decode"] * 9]


@pytest.mark.parametrize("expected", ["five", None, 3, (1.5,), (-1,), (2**31,)])
def test_what_is_expected_and_no_run_ends_its_request_alone(expected: object) -> None:
    grammar = Scripted(())
    grammar.expected_run = expected  # type: ignore[assignment]
    bench = Bench(script((), 6), max_batch=2)
    sink, other = bench.ask(grammar), bench.ask(Words(9))
    bench.run()

    assert isinstance(sink.ends[0].error, TypeError | ValueError)
    assert other.ends[0].error is None
    assert bench.everything_is_free()


def test_a_run_is_computed_in_one_launch_behind_the_step_in_flight() -> None:
    bench = Bench(script(RUN, 9))
    sink = bench.ask(Scripted(RUN))
    bench.run()

    assert ids(sink) == ANSWER
    # The step in flight computes the token before the run; what it samples, the first of the run, was known by then.
    assert launched(bench) == [
        ("prefill", [(0, 3, 0)]),
        ("decode", [(3, 1, 1)]),
        ("decode", [(4, 1, 2)]),
        ("run", [(5, 5, 7)]),
        ("decode", [(10, 1, 8)]),
        ("decode", [(11, 1, 9)]),
    ]
    assert bench.core.metrics.tokens == 9
    assert bench.core.metrics.forced_tokens == 5
    assert bench.everything_is_free()


def test_without_a_step_in_flight_a_run_is_computed_with_the_token_before_it() -> None:
    bench = Bench(script(RUN, 9), depth=1)
    sink = bench.ask(Scripted(RUN))
    bench.run()

    assert ids(sink) == ANSWER
    assert ("run", [(4, 6, 7)]) in launched(bench)
    assert [kind for kind, _ in launched(bench)] == ["prefill", "decode", "run", "decode"]


def test_what_an_answer_must_begin_with_is_computed_with_the_prompt() -> None:
    bench = Bench(script(range(3), 5))
    sink = bench.ask(Scripted(range(3)))
    assert ids(sink) == []
    assert bench.sequences[0].times.first_token == 0
    bench.run()

    assert ids(sink) == [*[FORCED] * 3, WORD, END]
    assert launched(bench)[0] == ("prefill", [(0, 6, 3)])
    assert bench.sequences[0].times.first_token > 0


def test_an_answer_without_any_choice_needs_no_launch() -> None:
    bench = Bench(ends_at(1))
    sink = bench.ask(Scripted(range(4), budget=4), budget=4)
    bench.run()

    assert ids(sink) == [FORCED] * 4
    assert [one.error for one in sink.ends] == [None]
    assert bench.runner.steps == []
    times = bench.sequences[0].times
    assert times.finished == times.first_token > 0


@pytest.mark.parametrize("failure", [None, ImageError("it cannot be cut")])
def test_an_answer_without_any_choice_still_has_its_image_encoded_or_fails_with_it(failure: Exception | None) -> None:
    bench, image = Bench(ends_at(1)), FakeImage("late", cut=False)
    sink = bench.ask(Scripted(range(4), budget=4), image, budget=4)
    bench.run()
    assert (ids(sink), sink.ends, image.asked) == ([], [], 1)

    image.cut, image.failure = failure is None, failure
    bench.run()

    assert ids(sink) == ([FORCED] * 4 if failure is None else [])
    assert [one.error for one in sink.ends] == [failure]
    assert [kind for kind, _ in launched(bench)] == (["encode"] if failure is None else [])
    assert [job.key for job in bench.runner.forgotten] == (["late"] if failure is None else [])
    assert bench.everything_is_free()


@pytest.mark.parametrize("budget", [100, 3])
def test_an_image_keeps_its_room_until_the_engine_has_read_it_whatever_its_answer_begins_with(budget: int) -> None:
    bench, lane, image = Bench(script(range(3), 5)), GateLane(100), FakeImage("late", cut=False)
    request = Request("query", (Token(1), Token(2)), Scripted(range(3), budget), budget, SamplingSettings())
    handle, permit, beside = RequestHandle(request), lane.request(90), RequestHandle(request)
    handle.when_computed(permit.release)
    handle.when_computed(beside.cancel)
    sequence = EngineSequence(0, request, handle, PREFIX, image)
    bench.hand_in(sequence)
    bench.run()
    assert (len(sequence.tokens), handle.tokens.empty(), lane.held, beside.ended()) == (3, True, 90, False)

    image.cut = True
    bench.run()

    assert (lane.held, beside.ended()) == (0, True)
    assert [token.id for token in handle.result().tokens] == [FORCED, FORCED, FORCED, WORD, END][:budget]
    assert [token.id for token in TokenStream(handle)] == [FORCED, FORCED, FORCED, WORD, END][:budget]


def test_a_request_that_fails_before_its_prompt_ran_hands_out_nothing_of_what_it_begins_with() -> None:
    bench = Bench(script(range(3), 5))
    bench.runner.fails.add(("collect", 0))
    sink = bench.ask(Scripted(range(3)))
    bench.run()

    assert ids(sink) == []
    assert [type(one.error) for one in sink.ends] == [StepError]
    assert bench.everything_is_free()


def test_a_sink_that_raises_at_an_answer_without_any_choice_ends_it_with_that() -> None:
    class Deaf(FakeSink):
        def on_token(self, token: Token) -> None:
            raise RuntimeError("no token, please")

    bench, sink = Bench(ends_at(1)), Deaf()
    request = Request("query", (Token(1),), Scripted(range(4), 4), 4, SamplingSettings())
    bench.hand_in(EngineSequence(0, request, sink, 1))
    bench.run()

    assert [str(one.error) for one in sink.ends] == ["no token, please"]
    assert bench.core.metrics.requests_failed == 1


@pytest.mark.parametrize("depth", [1, 2])
def test_a_run_may_end_the_answer(depth: int) -> None:
    bench = Bench(script(RUN, 9), depth=depth)
    sink = bench.ask(Scripted(RUN, budget=7), budget=7)
    bench.run()

    assert ids(sink) == ANSWER[:7]
    assert [one.error for one in sink.ends] == [None]
    assert "run" not in {kind for kind, _ in launched(bench)}
    assert bench.everything_is_free()


def test_without_the_setting_tokens_come_one_by_one_and_are_the_same() -> None:
    bench = Bench(script(RUN, 9))
    bench.scheduler.limits = Limits(4, 8, max_prefill_tokens=1000, max_crops=8, forced_runs=False)
    sink = bench.ask(Scripted(RUN))
    bench.run()

    assert ids(sink) == ANSWER
    assert {kind for kind, _ in launched(bench)} == {"prefill", "decode"}
    assert bench.core.metrics.forced_tokens == 0


def test_launches_of_runs_and_decode_steps_take_turns() -> None:
    bench = Bench(lambda one, index: script(RUN if one.number else (), 40)(one, index))
    bench.ask(Words(40, constrained=True))
    bench.ask(Scripted(RUN))
    bench.run()

    kinds = [(kind, len(rows)) for kind, rows in launched(bench)]
    assert kinds[:6] == [("prefill", 2), ("decode", 2), ("decode", 2), ("run", 1), ("decode", 2), ("decode", 2)]


def test_a_run_that_saves_less_than_it_costs_the_others_comes_token_by_token() -> None:
    bench = Bench(lambda one, index: Token(FORCED if one.number == 0 and index in RUN else WORD), max_batch=8)
    bench.ask(Scripted(RUN, budget=20))
    for _ in range(5):
        bench.ask(Words(20, constrained=True))
    bench.run()
    assert "run" not in {kind for kind, _ in launched(bench)}

    # Runs of several sequences, which share a launch, are worth it together.
    bench = Bench(lambda one, index: Token(FORCED if index in RUN else WORD), max_batch=8)
    for _ in range(5):
        bench.ask(Scripted(RUN, budget=20))
    bench.run()
    assert ("run", [(5, 5, 7)] * 5) in launched(bench)


def test_a_run_takes_pages_of_its_own_and_pre_empts_for_them() -> None:
    places = range(2, 30)
    bench = Bench(script(places, 33), pages=13)
    first, second = bench.ask(Scripted(places), budget=40), bench.ask(Scripted(places), budget=40)
    bench.run()

    assert ids(first) == ids(second) == [WORD, WORD, *[FORCED] * 28, WORD, WORD, END]
    assert bench.core.metrics.preemptions > 0
    assert bench.everything_is_free()


def test_what_an_answer_begins_with_is_handed_out_once_however_often_its_prompt_starts_again() -> None:
    bench = Bench(script(range(6), 33), pages=13)
    sinks = [bench.ask(Scripted(range(6)), budget=40) for _ in range(2)]
    bench.run()

    assert [ids(sink) for sink in sinks] == [[*[FORCED] * 6, *[WORD] * 26, END]] * 2
    assert bench.core.metrics.preemptions > 0
    assert bench.everything_is_free()


@pytest.mark.parametrize(
    "run",
    [(1000,), (-1,), [FORCED, FORCED], ("five",), (1.5,), None, 7, (FORCED, WORD, 3)],
)
def test_a_run_that_is_rubbish_ends_its_request_alone(run: object) -> None:
    class Rubbish(Scripted):
        @property
        def run(self) -> tuple[int, ...]:
            return () if len(self.seen) < 2 else run  # type: ignore[return-value]

    bench = Bench(script(RUN, 9), max_batch=2)
    bench.scheduler.limits = Limits(4, 8, max_prefill_tokens=1000, max_crops=8, vocab_size=1000)
    broken = bench.ask(Rubbish((2, 3, 4)))
    bench.core.tick()
    bench.core.tick()
    other = bench.ask(Words(9))
    bench.run()

    assert ids(broken) in (ANSWER[:2], ANSWER[:3])
    assert isinstance(broken.ends[0].error, ValueError | TypeError)
    assert len(other.tokens) == 9
    assert other.ends[0].error is None
    assert bench.everything_is_free()


def test_a_row_whose_token_was_known_still_fails_with_its_numbers() -> None:
    def choose(sequence: EngineSequence, index: int) -> Token | Exception:
        return ArithmeticError("not a number") if index == 2 else script(RUN, 9)(sequence, index)

    bench = Bench(choose)
    sink = bench.ask(Scripted(RUN))
    bench.run()

    assert [type(one.error) for one in sink.ends] == [ArithmeticError]
    assert bench.everything_is_free()


def test_a_launch_of_runs_that_raises_is_retried_in_smaller_ones_where_memory_was_short() -> None:
    bench = Bench(script(RUN, 9))
    sinks = [bench.ask(Scripted(RUN)) for _ in range(4)]
    failed: list[int] = []
    launch = bench.runner.launch

    def fail_once(step) -> None:
        if step.kind == "run" and not failed:
            failed.append(len(step.rows))
            raise MemoryError
        launch(step)

    bench.runner.launch = fail_once  # type: ignore[method-assign]
    bench.run()

    assert failed == [4]
    assert all(ids(sink) == ANSWER for sink in sinks)
    assert [len(rows) for kind, rows in launched(bench) if kind == "run"] == [2, 2]
    assert bench.everything_is_free()


def test_runs_leave_the_statistics_of_prompts_alone() -> None:
    bench = Bench(script(RUN, 9))
    bench.runner.per_position = 0.001
    bench.ask(Scripted(RUN))
    bench.run()

    assert bench.scheduler.policy.prompts.observed == 1
    assert bench.sequences[0].times.prefill_s == pytest.approx(0.003)
    assert bench.core.metrics.steps == {"encode": 0, "prefill": 1, "decode": 4, "run": 1, "mixed": 0}
    assert (bench.core.metrics.prefix_hits, bench.core.metrics.prefix_misses) == (0, 0)
