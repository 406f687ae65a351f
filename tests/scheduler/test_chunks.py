from itertools import pairwise

import pytest

from photonlite.batch import BatchItem, Step
from photonlite.errors import NumericalError
from photonlite.request import Request, SamplingSettings, Token
from photonlite.scheduler.limits import Limits
from photonlite.sequence import Sequence
from tests.engine.fakes import END, PREFIX, WORD, Bench, FakeImage, FakeSink, Words, ends_at
from tests.engine.test_runs import ANSWER, FORCED, RUN, Expecting, Scripted, script


def mixed(bench: Bench, tokens: int | None = 8, *, max_batch: int = 4) -> Bench:
    limits = Limits(max_batch, 8, max_prefill_tokens=1000, max_crops=8, mixes=True, mixed_tokens=tokens)
    bench.scheduler.limits = bench.scheduler.policy.limits = limits
    return bench


def ask(bench: Bench, prompt: int, budget: int = 100) -> Sequence:
    number = len(bench.sequences)
    words = (Token(number + 1),) * (prompt - 1)  # none shares another's prefix
    request = Request("query", words, Words(budget), budget, SamplingSettings())
    sequence = Sequence(number, request, FakeSink(), 1)
    bench.sequences.append(sequence)
    bench.hand_in(sequence)
    return sequence


def parts_of(bench: Bench, sequence: Sequence) -> list[BatchItem]:
    return [row for step in bench.runner.steps for row in step.rows if row.sequence is sequence and not row.pending]


def decoding(bench: Bench, ticks: int = 3) -> Sequence:
    first = ask(bench, 4)
    for _ in range(ticks):
        bench.core.tick()
    return first


@pytest.mark.parametrize("depth", [1, 2])
def test_a_long_prompt_rides_in_parts_and_no_step_leaves_out_what_decodes(depth: int) -> None:
    bench = mixed(Bench(ends_at(40), depth=depth))
    first = decoding(bench)
    second = ask(bench, 30)
    bench.run()

    parts = parts_of(bench, second)
    assert [(row.start, row.count) for row in parts] == [(0, 7), (7, 7), (14, 7), (21, 7), (28, 2)]
    assert [row.cut for row in parts] == [True, True, True, True, False]
    assert [row.index for row in parts] == [None, None, None, None, 0]
    assert [row.begins for row in parts] == [True, False, False, False, False]
    carrying = [step for step in bench.runner.steps if any(row.sequence is second for row in step.rows)][:5]
    assert {step.kind for step in carrying} == {"mixed"}
    assert all(step.rows[0].pending and step.rows[0].sequence is first for step in carrying)
    assert all(len(sequence.tokens) == 40 and sequence.error is None for sequence in (first, second))
    assert bench.core.metrics.steps["mixed"] == 5
    assert bench.everything_is_free()


def test_prompts_begin_in_the_room_that_older_ones_leave() -> None:
    bench = mixed(Bench(ends_at(40)))
    decoding(bench)
    asked = [ask(bench, length) for length in (10, 3, 6)]
    bench.run()

    carried = [
        [(row.sequence.number, row.count) for row in step.rows if not row.pending]
        for step in bench.runner.steps
        if step.kind == "mixed"
    ]
    assert carried == [[(1, 7)], [(1, 3), (2, 3), (3, 1)], [(3, 5)]]
    assert all(len(sequence.tokens) == 40 for sequence in asked)


def test_a_prompt_goes_on_by_one_position_where_the_budget_has_no_room() -> None:
    bench = mixed(Bench(ends_at(20)), tokens=1)
    decoding(bench)
    second = ask(bench, 6)
    bench.run()

    assert [row.count for row in parts_of(bench, second)] == [1] * 6


def test_without_a_setting_prompts_take_what_the_launch_budget_has_time_for() -> None:
    bench = mixed(Bench(ends_at(30)), tokens=None)
    bench.runner.per_position = 0.001  # and the launch budget is 4 ms
    decoding(bench)
    second = ask(bench, 12)
    bench.run()

    assert bench.scheduler.policy.prompts.per_unit == pytest.approx(0.001, rel=0.3)
    assert 3 <= max(row.count for row in parts_of(bench, second)) <= 5


def test_the_time_of_a_mixed_step_counts_for_prompts_without_what_decoding_takes() -> None:
    bench = mixed(Bench(ends_at(30)), tokens=9)
    bench.runner.per_position = 0.001
    decoding(bench)
    before = bench.scheduler.policy.prompts.observed
    ask(bench, 16)
    bench.run()

    assert bench.scheduler.policy.prompts.observed == before + 2
    assert bench.scheduler.policy.prompts.per_unit == pytest.approx(0.001)


def test_the_block_of_an_image_is_never_cut() -> None:
    bench = mixed(Bench(ends_at(30)), tokens=3)
    decoding(bench)
    bench.ask(image=FakeImage("a"))
    bench.run()

    parts = parts_of(bench, bench.sequences[1])
    assert [(row.start, row.count) for row in parts] == [(0, PREFIX), (PREFIX, 2)]
    assert [bool(row.jobs) for row in parts] == [True, True]
    assert len(bench.runner.forgotten) == 1  # after the last part
    assert bench.everything_is_free()


def test_an_image_is_ready_for_others_when_the_last_part_has_committed() -> None:
    bench = mixed(Bench(ends_at(30)), tokens=2)
    decoding(bench)
    image = FakeImage("a")
    bench.ask(image=image)
    bench.ask(image=image)
    bench.run()

    first, second = (parts_of(bench, bench.sequences[number]) for number in (1, 2))
    assert first[0].start == 0
    assert second[0].start == PREFIX
    last = next(step.number for step in bench.runner.steps if first[-1] in step.rows)
    assert next(step.number for step in bench.runner.steps if second[0] in step.rows) > last
    saves = [step.plan.saves for step in bench.runner.steps if step.plan.saves]
    assert len(saves) == 1
    assert bench.core.metrics.steps["encode"] == 3  # of the three crops that the image has


@pytest.mark.parametrize("ticks", [0, 1, 2])
def test_a_prompt_that_is_cancelled_between_its_parts_gives_all_back(ticks: int) -> None:
    bench = mixed(Bench(ends_at(60)), tokens=2)
    decoding(bench)
    bench.ask(image=FakeImage("a"))
    second = bench.sequences[1]
    while not second.cut:
        bench.core.tick()
    for _ in range(ticks):
        bench.core.tick()
    bench.core.cancel(second)
    bench.run()

    assert len(bench.runner.forgotten) >= 1
    assert not second.tokens
    assert bench.everything_is_free()


def test_a_request_that_waited_for_the_image_of_a_prompt_is_considered_again_when_that_is_given_up() -> None:
    bench = mixed(Bench(ends_at(60)), tokens=2)
    decoding(bench)
    image = FakeImage("a")
    sinks = [bench.ask(image=image), bench.ask(image=image)]
    first, second = bench.sequences[1:]
    (queue,) = bench.scheduler.policy.queues
    while not first.cut or second in queue.candidates():
        bench.core.tick()

    bench.core.cancel(first)
    while first.row is not None:
        bench.core.tick()
    assert second in queue.candidates()
    bench.run()
    assert sinks[1].ends[0].error is None


def test_a_prompt_that_gives_its_pages_back_between_its_parts_starts_again() -> None:
    bench = mixed(Bench(ends_at(30)), tokens=2)
    decoding(bench)
    second = ask(bench, 25, budget=4)
    while not second.cut:
        bench.core.tick()
    second.preempting = True
    bench.run()

    assert second.error is None
    assert len(second.tokens) == 4
    assert second.times.preemptions == 1
    assert sum(row.begins for row in parts_of(bench, second)) == 2
    assert bench.everything_is_free()


def test_a_part_whose_launch_fails_ends_its_request_and_gives_all_back() -> None:
    bench = mixed(Bench(ends_at(60)))
    decoding(bench)
    second = ask(bench, 30)
    while not second.cut:
        bench.core.tick()
    bench.runner.fails.add(("launch", bench.runner.steps[-1].number + 1))
    bench.run()

    assert second.error is not None
    assert bench.everything_is_free()


def test_a_part_whose_launch_fails_leaves_the_pages_that_an_earlier_part_writes() -> None:
    bench = mixed(Bench(ends_at(60)))
    decoding(bench)
    second = ask(bench, 30)
    while not second.cut:
        bench.core.tick()
    held: list[bool] = []

    def note(step: Step) -> None:
        if any(row.sequence is second for row in step.rows):
            held.append(bool(second.pages))

    bench.runner.before_collect = note
    bench.runner.fails.add(("launch", bench.runner.steps[-1].number + 1))
    bench.run()

    assert held == [True]
    assert bench.everything_is_free()


def test_no_prefix_is_kept_whose_first_part_failed_while_the_last_one_was_in_flight() -> None:
    bench = mixed(Bench(ends_at(60)), tokens=9)
    decoding(bench)
    bench.ask(image=FakeImage("a"))
    second = bench.sequences[1]
    while not second.cut:
        bench.core.tick()
    first = next(step for step in bench.runner.steps if any(row.sequence is second for row in step.rows))
    bench.runner.fails.add(("collect", first.number))
    bench.run()

    assert second.error is not None
    assert [row.cut for row in parts_of(bench, second)] == [True, False]
    assert bench.cache.image_state(second.images[0]) == "missing"
    assert bench.everything_is_free()


def test_a_part_with_numbers_that_are_not_finite_ends_its_request_alone() -> None:
    bench = mixed(Bench(ends_at(30)))
    first = decoding(bench)
    second = ask(bench, 30)
    while not second.cut:
        bench.core.tick()
    bench.core.end(second, NumericalError("not finite"))
    bench.run()

    assert first.error is None
    assert len(first.tokens) == 30
    assert bench.everything_is_free()


def test_runs_ride_with_decode_steps() -> None:
    words = (5, 6, 7, 8, 9)
    bench = mixed(Bench(script(words, 12)), tokens=3)
    bench.ask(Scripted(words))
    ask(bench, 4, budget=12)
    bench.run()

    assert bench.core.metrics.steps["run"] == 0
    assert bench.everything_is_free()


def test_prompts_go_alone_where_memory_was_short_for_riding() -> None:
    bench = mixed(Bench(ends_at(40)))
    decoding(bench)
    bench.scheduler.policy.prompts.shrink(1)
    ask(bench, 30)
    bench.run()

    assert bench.core.metrics.steps["mixed"] == 0
    kinds = [step.kind for step in bench.runner.steps]
    assert all(kind != "prefill" or after != "prefill" for kind, after in pairwise(kinds))


def test_runs_that_go_alone_say_nothing_about_prompts() -> None:
    words = tuple(range(3, 30))
    bench = mixed(Bench(script(words, 40)), tokens=6)
    bench.ask(Scripted(words))
    for _ in range(4):
        bench.core.tick()
    before = bench.scheduler.policy.prompts.observed
    bench.run()

    assert bench.core.metrics.steps["run"] > 0
    assert bench.scheduler.policy.prompts.observed == before


def test_what_a_run_and_a_prompt_cost_together_is_not_learned() -> None:
    words = tuple(range(3, 60))
    bench = mixed(Bench(script(words, 70)), tokens=6)
    decoding(bench)
    bench.ask(Scripted(words))
    before = bench.scheduler.policy.prompts.observed
    bench.run()

    carried = [step for step in bench.runner.steps if step.kind == "mixed"]
    whole = [step for step in carried if all(row.is_prompt or row.pending for row in step.rows)]
    assert len(whole) < len(carried)
    assert bench.scheduler.policy.prompts.observed == before + len(whole)


@pytest.mark.parametrize(("decode_s", "rooms"), [(0.25, [80, 94, 100, 100]), (1.0, [320, 320, 320, 320])])
def test_prompts_get_a_share_of_a_decode_step_and_more_while_many_wait(decode_s: float, rooms: list[int]) -> None:
    bench = mixed(Bench(ends_at(5), pages=200), tokens=None)
    policy = bench.scheduler.policy
    policy.prompts.observe(100, 0.125)
    assert policy.room_beside(1) == 3  # the budget of 4 ms
    policy.run_cost.observe_decode(decode_s)
    found = []
    for count in (200, 1300, 500, 500):
        for _ in range(count // 100):
            ask(bench, 100, 20)
        policy.count_prompts()
        found.append(policy.room_beside(1))
    assert found == rooms


def test_room_is_no_matter_of_noise() -> None:
    """A line through sizes that hardly differ says that positions cost nothing; a step that was held up, too."""
    policy = mixed(Bench(ends_at(5)), tokens=None).scheduler.policy
    for _ in range(30):
        policy.run_cost.observe_decode(2.5e-3)
        policy.prompts.observe(260, 1e-3)
    assert policy.room_beside(1) == 260
    for count, seconds in ((90, 0.98e-3), (260, 1e-3), (90, 0.99e-3)):
        policy.prompts.observe(count, seconds)
    assert policy.room_beside(1) < 300
    policy.run_cost.observe_decode(12e-3)
    policy.prompts.observe(260, policy.run_cost.beyond_decode(3.5e-3))
    assert policy.room_beside(1) < 300


def test_a_prompt_is_spread_over_steps() -> None:
    bench = mixed(Bench(ends_at(60), pages=800), tokens=None)
    decoding(bench)
    long, policy = ask(bench, 2000, 20), bench.scheduler.policy
    policy.prompts.observe(1000, 1e-3)  # the budget has time for more
    bench.core.tick()
    assert [row.count for row in parts_of(bench, long)] == [125]
    policy.count_prompts()
    assert policy.room_beside(1) == -(-1875 // 16)


def test_prompts_take_turns_while_a_realtime_request_is_open() -> None:
    bench = mixed(Bench(ends_at(60)), tokens=4)
    decoding(bench)
    long = ask(bench, 40)
    while not long.cut:
        bench.core.tick()
    bench.ask(realtime=True, budget=6)
    begun = len(bench.runner.steps)
    urgent = bench.sequences[-1]
    while not urgent.finalized:
        bench.core.tick()

    assert "mixed" not in [step.kind for step in bench.runner.steps[begun:]]
    bench.run()
    assert all(sequence.error is None for sequence in bench.sequences)
    assert bench.everything_is_free()


def test_runs_and_a_prompt_that_cannot_be_cut_take_turns() -> None:
    length = 200
    forced = {
        number: {place for place in range(3 + 4 * number, length) if (place - 4 * number) % 12 < 10}
        for number in range(3)
    }

    def choose(sequence: Sequence, index: int) -> Token:
        return Token(FORCED if index in forced.get(sequence.number, ()) else END if index == length - 1 else WORD)

    bench = mixed(Bench(choose, pages=1000, max_batch=8), tokens=PREFIX - 1, max_batch=8)
    for places in forced.values():
        bench.ask(Scripted(tuple(places), length), budget=length)
    for _ in range(6):
        bench.core.tick()
    bench.ask(image=FakeImage("a"))
    waits = bench.sequences[-1]
    ticks = 0
    while waits.row is None:
        bench.core.tick()
        ticks += 1

    assert ticks < 15
    assert not any(sequence.finalized for sequence in bench.sequences)


@pytest.mark.parametrize("mixes", [False, True])
def test_a_sequence_without_pages_for_what_it_may_assume_takes_its_own_step(
    mixes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(script(RUN, len(ANSWER)))
    bench = mixed(bench) if mixes else bench
    bench.ask(Expecting(RUN))
    (one,) = bench.sequences
    while not one.assumable:
        bench.core.tick()

    own = one.num_computed_tokens + 1
    make_room = bench.scheduler.running._make_room
    with monkeypatch.context() as patch:
        patch.setattr(bench.scheduler.running, "_make_room", lambda one, end: end <= own and make_room(one, end))
        bench.runner.steps.clear()
        bench.core.tick()
    assert [[(row.sequence, row.count, row.assumed) for row in step.rows] for step in bench.runner.steps] == [
        [(one, 1, ())]
    ]
    bench.run()
    assert [token.id for token in one.tokens] == ANSWER
