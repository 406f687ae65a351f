"""One test for each moment at which a pipelined engine may go wrong."""

import errno
import time
import traceback

import numpy as np
import pytest
import torch

from photonlite.batch import Step
from photonlite.errors import EngineDiedError, NumericalError, OutOfMemoryError, RequestCancelledError, StepError
from photonlite.grammar.decoding.grammars import DetectGrammar, Vocabulary
from photonlite.image_inputs import HostTensor, StoredImage
from photonlite.request import Request, SamplingSettings, Token
from photonlite.runner.slots import Pipeline
from photonlite.sequence import Sequence
from tests.cache.sequences import state_of
from tests.engine.fakes import END, GARBAGE, PAGE, PREFIX, WORD, Bench, FakeImage, FakeSink, Words, ends_at

VOCABULARY = Vocabulary(end=END, answer=3, coordinate=5, size=6, ground_start=7, ground_end=9, any_id_continues=False)


def order(bench: Bench, *calls: str) -> list[tuple[str, int]]:
    return [call for call in bench.runner.calls if call[0] in calls]


def test_the_next_forward_is_launched_before_the_last_step_is_read() -> None:
    bench = Bench(ends_at(3))
    bench.ask(Words(constrained=True))
    bench.run()

    assert order(bench, "launch", "finalize", "collect")[:6] == [
        ("launch", 0),  # the prompt: nothing before it is open, so it is sampled at once
        ("finalize", 0),
        ("launch", 1),
        ("collect", 0),
        ("finalize", 1),  # its mask needed the token of step 0
        ("launch", 2),
    ]


def test_a_batch_that_knows_its_masks_is_sampled_before_the_commit() -> None:
    bench = Bench(ends_at(3))
    bench.ask()
    bench.run()

    assert order(bench, "launch", "finalize", "collect")[2:5] == [("launch", 1), ("finalize", 1), ("collect", 0)]


def test_one_constrained_row_makes_the_batch_wait_for_the_commit() -> None:
    bench = Bench(ends_at(4))
    bench.ask()
    bench.ask(Words(constrained=True))
    bench.run()

    calls = order(bench, "finalize", "collect")
    assert calls.index(("collect", 0)) < calls.index(("finalize", 1))
    assert [len(sink.tokens) for sink in (sequence.sink for sequence in bench.sequences)] == [4, 4]


def test_depth_1_runs_one_step_at_a_time() -> None:
    bench = Bench(ends_at(3), depth=1)
    bench.ask()
    bench.run()

    assert order(bench, "launch", "collect") == [(name, step) for step in range(3) for name in ("launch", "collect")]


@pytest.mark.parametrize("constrained", [True, False])
def test_eos_while_the_next_step_carries_the_sequence_makes_a_zombie(constrained: bool) -> None:
    bench = Bench(ends_at(2))
    sink = bench.ask(Words(constrained=constrained))
    sequence = bench.sequences[0]
    seen: list[tuple[int, int, bool, int]] = []
    bench.runner.before_collect = lambda step: seen.append(
        (step.number, sequence.inflight_refs, sequence.finalized, len(sequence.pages))
    )
    bench.run()

    assert [token.id for token in sink.tokens] == [WORD, END]
    assert len(sink.ends) == 1
    # Step 2 was launched before step 1 brought the end: it is read when the result has long gone out.
    assert seen == [(0, 2, False, 1), (1, 2, False, 2), (2, 1, True, 2)]
    assert bench.core.metrics.zombie_rows == 1
    assert bench.everything_is_free()


def test_a_next_turn_shares_the_answer_of_a_zombie() -> None:
    bench = Bench(ends_at(3 * PAGE))
    sink = bench.ask(kept=True)
    while not sink.ends:
        bench.core.tick()
    first = bench.sequences[0]
    assert first in bench.scheduler.running.zombies
    turn = Request("query", (*first.prompt, *sink.tokens, Token(3)), Words(2), 2, SamplingSettings())
    second = Sequence(1, turn, FakeSink(), 1)
    bench.hand_in(second)
    batch = bench.plan()
    assert batch is not None
    assert [row.start for row in batch.rows if row.sequence is second] == [3 * PAGE]


def test_eos_on_the_prompts_own_token_while_a_decode_step_is_in_flight() -> None:
    bench = Bench(ends_at(1))
    sink = bench.ask()
    assert bench.core.tick()
    assert [step.kind for step in bench.core.pipeline.in_flight] == ["prefill"]
    assert bench.core.tick()  # launches the decode step, then reads the prompt's

    assert [token.id for token in sink.tokens] == [END]
    assert [step.kind for step in bench.core.pipeline.in_flight] == ["decode"]
    assert bench.sequences[0] in bench.scheduler.running.zombies
    bench.run()
    assert bench.everything_is_free()


def test_pages_and_row_are_released_once_and_not_before_the_last_commit() -> None:
    bench = Bench(ends_at(2))
    bench.ask()
    sequence = bench.sequences[0]
    released: list[int] = []
    release = bench.cache.release

    def watched(one: Sequence) -> None:
        released.append(one.inflight_refs)
        release(one)

    bench.cache.release = watched  # type: ignore[method-assign]
    bench.run()

    assert released == [0]
    assert sequence.row is None
    with pytest.raises(AssertionError, match="is in no step"):
        sequence.release()


def test_a_row_is_reused_only_after_its_last_commit() -> None:
    bench = Bench(ends_at(2), max_batch=1)
    for _ in range(6):
        bench.ask()
    held: dict[int, Sequence] = {}

    def watch(step: Step) -> None:
        for other in bench.core.pipeline.in_flight:
            for row in other.rows:
                assert row.sequence.row is not None
                assert held.setdefault(row.sequence.row, row.sequence) is row.sequence
        held.clear()

    bench.runner.before_collect = watch
    bench.run()

    assert all(sequence.sink.ends for sequence in bench.sequences)
    assert bench.core.metrics.zombie_rows > 0
    assert bench.everything_is_free()


@pytest.mark.parametrize("image", [None, FakeImage("a")], ids=["text", "image"])
@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_a_launch_that_raises_restores_references_rows_and_pages(step: int, image: FakeImage | None) -> None:
    bench = Bench(ends_at(5))
    first = bench.ask(image=image)
    bench.runner.fails.add(("launch", step))
    bench.run()
    assert isinstance(first.ends[0].error, StepError)
    assert f"launch {step} fails" in repr(first.ends[0].error.__cause__)
    assert bench.sequences[0].inflight_refs == 0
    assert bench.everything_is_free()

    second = bench.ask()
    bench.run()
    assert len(second.tokens) == 5
    assert bench.everything_is_free()


@pytest.mark.parametrize("call", ["finalize", "collect"])
def test_a_step_that_fails_later_ends_its_own_requests_alone(call: str) -> None:
    bench = Bench(ends_at(5), max_batch=1)
    first, second = bench.ask(), bench.ask()
    bench.runner.fails.add((call, 1))
    bench.run()

    assert isinstance(first.ends[0].error, StepError)
    assert second.ends[0].error is None
    assert bench.everything_is_free()


def test_three_failures_in_a_row_kill_the_engine() -> None:
    bench = Bench(ends_at(5), max_batch=1)
    for _ in range(3):
        bench.ask()
    bench.runner.fails |= {("launch", step) for step in range(3)}
    with pytest.raises(EngineDiedError, match="3 steps in a row") as death:
        bench.run()
    assert "launch 2 fails" in repr(death.value.__cause__)


def test_a_failed_step_is_logged_with_its_traceback_and_callers_get_no_internal_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(ends_at(5))
    sink = bench.ask()
    bench.runner.fails.add(("launch", 0))
    bench.run()

    error = sink.ends[0].error
    assert isinstance(error, StepError)
    assert "launch 0 fails" not in str(error)
    assert "in _note" in "".join(traceback.format_exception(error))  # in the notes of its cause
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.name == "photonlite"
    assert record.exc_info is not None
    assert "launch 0 fails" in caplog.text


def test_an_unexpected_error_of_one_request_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(ends_at(5))

    class Broken(Words):
        def accept(self, token: Token) -> None:
            raise KeyError("a mistake")

    sink = bench.ask(Broken())
    bench.run()

    assert isinstance(sink.ends[0].error, KeyError)
    assert sink.ends[0].error.__traceback__ is None  # its frames hold the engine
    assert "request 0 failed" in caplog.text
    assert "a mistake" in caplog.text


SHORTAGES = [
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
]


@pytest.mark.parametrize("shortage", SHORTAGES, ids=["host", "allocator", "card", "system"])
@pytest.mark.parametrize("call", ["launch", "collect"])
def test_running_out_of_memory_fails_its_request_alone_and_is_no_strike(shortage: Exception, call: str) -> None:
    bench = Bench(ends_at(5), max_batch=1)
    poor = [bench.ask() for _ in range(5)]
    healthy = getattr(bench.runner, call)

    def short(step: Step) -> object:
        if step.number < 5:
            raise shortage
        return healthy(step)

    setattr(bench.runner, call, short)
    if call == "collect":  # at depth 2 a later step would be on its way
        bench.core.pipeline = Pipeline(1)
    bench.run()
    good = bench.ask()
    bench.run()

    errors = [sink.ends[0].error for sink in poor]
    assert all(isinstance(error, OutOfMemoryError) and error.__cause__ is shortage for error in errors)
    assert "alloc" not in str(errors[0])
    assert bench.runner.calls.count(("free_memory", -1)) == 5
    assert len(good.tokens) == 5
    assert bench.everything_is_free()


@pytest.mark.parametrize("call", ["launch", "collect"])
def test_launches_that_ran_out_of_memory_are_retried_in_smaller_batches(call: str) -> None:
    bench = Bench(ends_at(3))
    sinks = [bench.ask(image=FakeImage(f"image {number}")) for number in range(4)]
    texts = [bench.ask() for _ in range(4)]
    healthy = getattr(bench.runner, call)

    def narrow(step: Step) -> object:
        crops = step.plan.crops
        if crops > 2 or (step.kind == "prefill" and len(step.rows) > 1 and call == "launch"):
            raise MemoryError
        return healthy(step)

    setattr(bench.runner, call, narrow)
    bench.run()

    assert [sink.ends[0].error for sink in sinks + texts] == [None] * 8
    assert bench.core.metrics.crops_encoded >= 12
    assert bench.everything_is_free()


def test_a_stored_image_is_counted_as_restored_and_says_nothing_about_the_cost_of_crops() -> None:
    bench = Bench(ends_at(3))
    bench.runner.per_crop = 0.5
    stored = FakeImage("stored", stored=StoredImage(HostTensor(np.zeros(4, np.uint8), (1, 1, 1), "float32")))
    sinks = [bench.ask(image=stored), bench.ask(image=FakeImage("fresh"))]

    bench.run()

    metrics, cost = bench.core.metrics, bench.scheduler.policy.crops
    assert [sink.ends[0].error for sink in sinks] == [None, None]
    assert (metrics.crops_encoded, metrics.images_restored, metrics.prefix_misses) == (3, 1, 2)
    assert cost.observed == metrics.steps["encode"] - 1
    assert bench.everything_is_free()


def test_a_prompt_over_crops_that_ran_out_of_memory_gives_no_token_and_starts_again() -> None:
    spoilt = 0

    def script(sequence: Sequence, index: int) -> Token | Exception:
        nonlocal spoilt
        spoilt += not encoded
        return ends_at(3)(sequence, index) if encoded else NumericalError("what it read is not there")

    encoded = False
    bench = Bench(script)
    leader, follower = (bench.ask(image=FakeImage("one")) for _ in range(2))
    collect = bench.runner.collect

    def short_once(step: Step) -> list[Token | Exception | None]:
        nonlocal encoded
        encoded = encoded or (step.kind == "encode" and step.number > 0)
        if step.number == 0:
            assert [later.kind for later in bench.runner.steps] == ["encode", "prefill"]
            raise MemoryError
        return collect(step)

    bench.runner.collect = short_once  # type: ignore[method-assign]
    bench.run()

    assert spoilt == 1
    assert [(sink.ends[0].error, len(sink.tokens)) for sink in (leader, follower)] == [(None, 3)] * 2
    assert len(bench.cache._chains) == 0
    assert bench.everything_is_free()


def test_an_image_that_always_runs_out_of_memory_fails_alone() -> None:
    bench = Bench(ends_at(3))
    good = [bench.ask(image=FakeImage("a")), bench.ask()]
    huge = bench.ask(image=FakeImage("huge"))
    good.append(bench.ask(image=FakeImage("b")))
    launch = bench.runner.launch

    def narrow(step: Step) -> None:
        if any(group.job.key == "huge" for group in step.plan.groups):
            raise MemoryError
        launch(step)

    bench.runner.launch = narrow  # type: ignore[method-assign]
    bench.run()

    assert isinstance(huge.ends[0].error, OutOfMemoryError)
    assert [sink.ends[0].error for sink in good] == [None] * 3
    assert bench.everything_is_free()


@pytest.mark.parametrize("call", ["launch", "collect"])
def test_an_image_that_cannot_be_encoded_fails_its_own_requests_alone(call: str) -> None:
    bench = Bench(ends_at(5))
    sinks = [bench.ask(image=FakeImage("poison")) for _ in range(5)]
    healthy = getattr(bench.runner, call)

    def poisoned(step: Step) -> object:
        if step.plan.groups:
            raise RuntimeError("poison")
        return healthy(step)

    setattr(bench.runner, call, poisoned)
    bench.run()
    good = bench.ask()
    bench.run()

    assert all(isinstance(sink.ends[0].error, StepError) for sink in sinks)
    assert len(good.tokens) == 5
    assert bench.everything_is_free()


def test_cancelling_a_zombie_changes_nothing() -> None:
    bench = Bench(ends_at(1))
    sink = bench.ask()
    bench.core.tick()
    bench.core.tick()
    assert bench.sequences[0] in bench.scheduler.running.zombies
    bench.core.cancel(bench.sequences[0])
    bench.run()

    assert len(sink.ends) == 1
    assert sink.ends[0].error is None
    assert bench.everything_is_free()


@pytest.mark.parametrize("ticks", range(12))
def test_a_request_may_be_cancelled_between_any_two_ticks(ticks: int) -> None:
    bench = Bench(ends_at(50), max_batch=2)
    sink = bench.ask(image=FakeImage("a"))
    other = bench.ask()
    for _ in range(ticks):
        bench.core.tick()
    bench.core.cancel(bench.sequences[0])
    assert isinstance(sink.ends[0].error, RequestCancelledError)
    before = list(sink.tokens)
    bench.run()

    assert sink.tokens == before
    assert len(sink.ends) == 1
    assert len(other.tokens) == 50
    assert bench.everything_is_free()


def test_the_length_cap_is_known_and_launches_nothing_beyond_it() -> None:
    bench = Bench(ends_at(100))
    bench.ask(budget=3)
    bench.run()

    assert bench.core.metrics.steps == {"encode": 0, "prefill": 1, "decode": 2, "run": 0, "mixed": 0}
    assert bench.core.metrics.zombie_rows == 0


def test_a_zombie_may_be_in_the_step_of_its_length_cap() -> None:
    bench = Bench(ends_at(2))
    sink = bench.ask(budget=3)
    bench.run()

    assert [token.id for token in sink.tokens] == [WORD, END]
    assert bench.sequences[0].num_computed_tokens == bench.sequences[0].longest
    assert bench.core.metrics.zombie_rows == 1
    assert bench.everything_is_free()


def box(sequence: Sequence, index: int) -> Token:
    return (Token(5, (0.5,)), Token(5, (0.25,)), Token(6, (0.1, 0.1)))[index % 3]


def test_max_objects_is_reached_while_the_next_box_has_begun() -> None:
    bench = Bench(box)
    sink = bench.ask(DetectGrammar(VOCABULARY, 100, max_objects=2))
    bench.run()

    assert [token.id for token in sink.tokens] == [5, 5, 6, 5, 5, 6]
    assert sink.ends[0].request.grammar.finish_reason == "max_objects"
    assert bench.core.metrics.zombie_rows == 1


def test_a_budget_that_ends_inside_a_box_ends_the_answer_there() -> None:
    bench = Bench(box)
    sink = bench.ask(DetectGrammar(VOCABULARY, 5, max_objects=9), budget=5)
    bench.run()

    assert [token.id for token in sink.tokens] == [5, 5, 6, 5, 5]
    assert sink.ends[0].request.grammar.finish_reason == "length"


def test_a_prompt_is_admitted_while_both_slots_are_busy() -> None:
    bench = Bench(ends_at(8))
    bench.ask()
    late: list[Sequence] = []

    def submit(step: Step) -> None:
        if step.number == 2:
            assert bench.core.pipeline.full
            bench.ask()
            late.append(bench.sequences[-1])

    bench.runner.before_collect = submit
    bench.run()

    assert [step.kind for step in bench.runner.steps[2:6]] == ["decode", "decode", "prefill", "decode"]
    assert len(bench.runner.steps[5].rows) == 2
    assert all(len(sequence.tokens) == 8 for sequence in bench.sequences)


def test_two_requests_for_one_image_at_once_encode_it_once() -> None:
    bench = Bench(ends_at(3))
    sinks = [bench.ask(image=FakeImage("same")) for _ in range(2)]
    bench.run()

    kinds = [step.kind for step in bench.runner.steps]
    assert kinds.count("encode") == 1
    starts = [row.start for step in bench.runner.steps if step.kind == "prefill" for row in step.rows]
    assert starts == [0, PREFIX]
    assert len(bench.runner.forgotten) == 1
    assert [len(sink.tokens) for sink in sinks] == [3, 3]


def test_other_requests_for_an_image_whose_step_failed_encode_it_again() -> None:
    bench = Bench(ends_at(3))
    leader, follower = (bench.ask(image=FakeImage("same")) for _ in range(2))
    bench.runner.fails.add(("collect", 0))
    bench.run()

    assert isinstance(leader.ends[0].error, StepError)
    assert follower.ends[0].error is None
    assert len(follower.tokens) == 3
    assert [step.kind for step in bench.runner.steps].count("encode") == 2
    assert bench.everything_is_free()


def test_a_prefix_whose_prompt_failed_is_not_reused() -> None:
    bench = Bench(lambda sequence, index: RuntimeError("NaN") if sequence.number == 0 else ends_at(3)(sequence, index))
    leader, follower = (bench.ask(image=FakeImage("same")) for _ in range(2))
    bench.run()

    assert str(leader.ends[0].error) == "NaN"
    assert len(follower.tokens) == 3
    starts = [row.start for step in bench.runner.steps if step.kind == "prefill" for row in step.rows]
    assert starts == [0, 0]
    assert bench.everything_is_free()


def test_a_tick_with_nothing_to_do_does_nothing() -> None:
    bench = Bench(ends_at(3))

    assert not bench.core.tick()
    assert bench.runner.calls == []
    assert bench.core.idle


def test_an_image_that_is_not_cut_yet_holds_up_no_other_request() -> None:
    bench = Bench(ends_at(3))
    slow = FakeImage("slow", cut=False)
    late, other = bench.ask(image=slow), bench.ask()
    bench.run()
    assert (len(late.tokens), len(other.tokens)) == (0, 3)
    assert slow.asked > 0

    slow.cut = True
    bench.run()
    assert len(late.tokens) == 3


def test_an_image_that_cannot_be_cut_fails_its_request_alone() -> None:
    bench = Bench(ends_at(3))
    bad = bench.ask(image=FakeImage("bad", cut=False, failure=ValueError("broken")))
    good = bench.ask(image=FakeImage("good"))
    bench.run()

    assert str(bad.ends[0].error) == "broken"
    assert len(good.tokens) == 3


def test_a_request_for_an_image_alone_ends_without_a_token_and_leaves_its_prefix() -> None:
    bench = Bench(ends_at(3))
    for _ in range(2):
        sink = bench.ask(image=FakeImage("a"), budget=0)
        bench.run()
        assert sink.ends[0].error is None
        assert sink.tokens == []

    assert [step.kind for step in bench.runner.steps] == ["encode", "prefill"]
    assert state_of(bench.cache, "a") == "ready"


def test_a_zombie_never_gets_what_its_last_step_sampled() -> None:
    bench = Bench(ends_at(2))
    sink = bench.ask(Words(constrained=True))
    bench.run()

    assert GARBAGE not in sink.tokens
    assert bench.runner.allowed[2] == [None]


def test_a_grammar_that_raises_fails_its_request_alone() -> None:
    class Broken(Words):
        def accept(self, token: Token) -> None:
            raise KeyError("grammar")

    bench = Bench(ends_at(3))
    bad, good = bench.ask(Broken()), bench.ask()
    bench.run()

    assert isinstance(bad.ends[0].error, KeyError)
    assert len(good.tokens) == 3
    assert bench.everything_is_free()


def test_the_youngest_sequence_is_pre_empted_when_pages_run_out() -> None:
    # Ten usable pages of 4: two sequences of 30 positions need 16.
    bench = Bench(ends_at(27), pages=11, prefix_caching=False)
    first, second = bench.ask(budget=30), bench.ask(budget=30)
    bench.run()

    assert bench.sequences[0].times.preemptions == 0
    assert bench.sequences[1].times.preemptions == 1
    assert [len(sink.tokens) for sink in (first, second)] == [27, 27]
    assert bench.everything_is_free()


def test_a_grammar_that_goes_on_after_its_budget_fails_instead_of_hanging() -> None:
    bench = Bench(ends_at(100))
    sink = bench.ask(Words(50), budget=5)
    bench.run()

    assert len(sink.tokens) == 5
    assert "after 5 tokens" in str(sink.ends[0].error)
    assert bench.everything_is_free()


class Deaf(FakeSink):
    """A sink that raises on every call."""

    def on_token(self, token: Token) -> None:
        super().on_token(token)
        raise RuntimeError("no token, please")

    def on_finish(self, sequence: Sequence) -> None:
        super().on_finish(sequence)
        raise RuntimeError("no end, please")


def test_a_sink_that_raises_ends_its_request_alone() -> None:
    bench = Bench(ends_at(5))
    good = bench.ask()
    bench.ask()
    bench.sequences[1].sink = deaf = Deaf()
    bench.run()

    assert str(bench.sequences[1].error) == "no token, please"
    assert (len(deaf.tokens), len(deaf.ends)) == (1, 1)
    assert len(good.tokens) == 5
    assert bench.everything_is_free()


def test_requests_that_have_ended_are_not_kept_until_their_deadlines() -> None:
    bench = Bench(ends_at(2))
    now = time.perf_counter()
    # Nothing later comes to the top of the heap before this one has ended.
    bench.ask(image=FakeImage("slow", cut=False), deadline=now + 1000)
    for _ in range(300):
        bench.ask(deadline=now + 5000)
        bench.run()

    assert len(bench.core.open) == 1
    assert list(bench.scheduler._deadlines) == bench.sequences[:1]
