"""Real-time requests beside bulk ones, launch by launch."""

from itertools import groupby

import pytest

from photonlite.batch import BatchItem, ScheduledBatch, Step
from photonlite.request import Request, SamplingSettings, Token
from photonlite.scheduler.limits import REALTIME_JOBS
from photonlite.scheduler.realtime import BULK_STEP, BULK_TURN, RealtimePolicy
from photonlite.sequence import Sequence
from tests.engine.fakes import Bench, FakeImage, FakeSink, Words, ends_at


def sequence(number: int, realtime: bool, prompt: int = 2, budget: int = 9) -> Sequence:
    request = Request("query", (Token(1),) * prompt, Words(budget), budget, SamplingSettings(), realtime=realtime)
    return Sequence(number, request, FakeSink(), 1)


def numbers(bench: Bench, kind: str) -> list[list[int]]:
    return [[row.sequence.number for row in step.rows] for step in bench.runner.steps if step.kind == kind]


def policy_of(bench: Bench) -> RealtimePolicy:
    bench.scheduler.prioritise()
    policy = bench.scheduler.policy
    assert isinstance(policy, RealtimePolicy)
    return policy


def decoding(bench: Bench, count: int = 1, ticks: int = 3) -> Bench:
    """Let long bulk requests run."""
    for _ in range(count):
        bench.ask()
    for _ in range(ticks):
        bench.core.tick()
    return bench


# ---- admission


def test_a_realtime_request_is_admitted_before_bulk_ones_that_came_earlier() -> None:
    bench = Bench(ends_at(2), max_batch=1)
    for realtime in (False, False, True, True):
        bench.ask(realtime=realtime)
    bench.run()

    assert numbers(bench, "prefill") == [[2], [3], [0], [1]]


def test_realtime_crops_and_prompts_have_separate_launches() -> None:
    bench = Bench(ends_at(2))
    bench.ask(image=FakeImage("bulk"))
    bench.ask(image=FakeImage("robot"), realtime=True)
    bench.run()

    launched = [[group.job.key for group in step.plan.groups] for step in bench.runner.steps if step.kind == "encode"]
    assert launched[0] == ["robot"]
    assert set(map(tuple, launched[1:])) == {("bulk",)}
    assert numbers(bench, "prefill") == [[1], [0]]


def test_realtime_prompts_that_never_end_leave_bulk_one_launch_in_nine() -> None:
    bench = Bench(ends_at(1), max_batch=2)
    for _ in range(3):
        bench.ask()
    for _ in range(60):
        bench.ask(realtime=True)
        bench.core.tick()
    classes = [bench.sequences[rows[0]].realtime for rows in numbers(bench, "prefill")]
    runs = [(realtime, len(list(run))) for realtime, run in groupby(classes)]

    assert runs[:4] == [(True, BULK_TURN), (False, 1), (True, BULK_TURN), (False, 1)]


def test_a_bulk_image_gets_its_turn_though_realtime_images_never_end() -> None:
    bench = Bench(ends_at(1))
    waits = bench.ask(image=FakeImage("bulk"))
    for number in range(40):
        bench.ask(image=FakeImage(str(number)), realtime=True)
        bench.core.tick()
        bench.core.tick()

    assert waits.ends


def test_a_realtime_request_about_an_image_that_bulk_waits_for_takes_the_lead() -> None:
    bench = Bench(ends_at(60), max_pause_s=0.035)
    bench.scheduler.policy.crops.per_unit = bench.runner.per_crop = 0.003
    decoding(bench)
    bench.ask(image=FakeImage("same"))
    while not bench.scheduler.encoder.jobs:
        bench.core.tick()
    bench.ask(image=FakeImage("first"), realtime=True)
    bench.ask(image=FakeImage("same"), realtime=True)
    bench.core.tick()

    assert [job.leader.number for job in bench.scheduler.encoder.jobs.values()] == [3, 2]


def test_realtime_images_have_encoder_slots_beside_those_of_bulk() -> None:
    bench = Bench(ends_at(60))
    bench.scheduler.policy.crops.per_unit = bench.runner.per_crop = 0.01  # one crop a launch
    decoding(bench)
    for number in range(12):
        bench.ask(image=FakeImage(f"bulk {number}"))
    for _ in range(6):
        bench.core.tick()
    assert len(bench.scheduler.encoder.jobs) == 8
    for number in range(REALTIME_JOBS + 1):
        bench.ask(image=FakeImage(f"robot {number}"), realtime=True)
    most = 0
    for _ in range(6):
        bench.core.tick()
        most = max(most, len(bench.scheduler.encoder.jobs))

    assert most == 8 + REALTIME_JOBS


def test_released_pages_go_to_a_realtime_request_first() -> None:
    # Six usable pages of four: the running one takes four, the real-time one needs three, the bulk one would fit.
    bench = Bench(ends_at(40), pages=7, prefix_caching=False)
    for number, (prompt, realtime) in enumerate(((13, False), (1, False), (9, True))):
        if number == 1:
            assert bench.plan() is not None
        bench.sequences.append(sequence(number, realtime, prompt, budget=2))
        bench.hand_in(bench.sequences[-1])

    plan = bench.plan()
    assert plan is None or plan.kind == "decode"
    assert [one.number for one in bench.scheduler.waiting] == [2, 1]


def starved(realtime_runs: bool) -> Bench:
    """A bulk request at its turn that lacks pages held by another one, and a real-time one that would fit."""
    bench = Bench(ends_at(40), pages=11, prefix_caching=False)
    plans = [sequence(0, realtime_runs, 13, 2), sequence(1, False, 25, 2), sequence(2, True, 5, 2)]
    bench.sequences += plans
    bench.hand_in(plans[0])
    assert bench.plan() is not None
    for one in plans[1:]:
        bench.hand_in(one)
    policy_of(bench)._overtaking_launches = BULK_TURN
    return bench


def test_bulk_that_lacks_pages_at_its_turn_holds_realtime_up_only_while_some_of_it_runs() -> None:
    for realtime_runs in (True, False):
        bench = starved(realtime_runs)
        plans = [bench.plan() for _ in range(2)]  # a decode step, and what comes after it
        assert plans[0] is not None
        assert plans[0].kind == "decode"
        assert (bench.sequences[2] in bench.scheduler.waiting) == realtime_runs


# ---- running


def test_a_realtime_request_is_decoded_alone_except_at_bulk_turns() -> None:
    bench = decoding(Bench(ends_at(90), max_batch=3), count=2)
    bench.ask(realtime=True)
    bench.run()
    beside = [batch for batch in numbers(bench, "decode") if 2 in batch]

    assert beside[: BULK_STEP + 2] == [[2]] * BULK_STEP + [[2, 0, 1], [2]]


def test_at_bulks_turn_a_full_batch_takes_the_oldest_bulk_ones() -> None:
    bench = decoding(Bench(ends_at(90), max_batch=2), count=2)
    bench.ask(realtime=True)
    bench.run()
    rows = numbers(bench, "decode")

    assert [0, 1] in rows[rows.index([2]) :][: BULK_STEP + 1]
    assert max(map(len, rows)) == 2


def test_bulk_images_wait_while_a_realtime_request_is_decoded_except_at_their_turns() -> None:
    bench = measured(Bench(ends_at(90)))
    bench.ask(realtime=True)
    for _ in range(3):
        bench.core.tick()
    for number in range(3):
        bench.ask(image=FakeImage(str(number)))
    bench.run()
    kinds = [step.kind for step in bench.runner.steps if step.kind == "decode" or step.plan.groups]
    alone = [len(list(run)) for kind, run in groupby(kinds) if kind == "decode"]

    assert alone[0] >= BULK_STEP
    assert kinds.index("encode") <= BULK_STEP + 3


def test_decode_steps_leave_a_bulk_sequence_out_only_so_often_in_a_row() -> None:
    bench = decoding(Bench(ends_at(50), max_batch=1))
    first = len(bench.sequences[0].tokens)
    for _ in range(180):
        if not any(one.realtime for one in (*bench.scheduler.running, *bench.scheduler.waiting)):
            bench.ask(realtime=True)
        bench.core.tick()

    steps = numbers(bench, "decode")
    gaps = [len(list(run)) for is_bulk, run in groupby(0 in batch for batch in steps[3:]) if not is_bulk]
    assert max(gaps) == BULK_STEP
    assert len(bench.sequences[0].tokens) > first + 3


def test_runs_of_realtime_requests_go_at_every_other_turn_that_bulk_lacks_pages_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = decoding(Bench(ends_at(50)))
    policy = policy_of(bench)
    bench.ask(realtime=True)
    for _ in range(2):
        bench.core.tick()
    decoded_first: list[bool] = []
    running = policy.running
    monkeypatch.setattr(running, "plan_decode", lambda *_: decoded_first.append(running.ran_last))
    policy._steps_without_bulk = BULK_STEP - 1
    for _ in range(5):
        running.ran_last = False
        policy.plan_decode(running.decoding())

    assert decoded_first == [False, True, False, True, False]


def test_a_turn_of_bulk_runs_is_followed_by_one_of_bulk_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = decoding(Bench(ends_at(50)))
    policy, running = policy_of(bench), policy_of(bench).running
    bench.ask(realtime=True)
    for _ in range(2):
        bench.core.tick()
    bulk = next(one for one in running if not one.realtime)
    row = BatchItem(bulk, 0, 1, None)
    decoded_first: list[bool] = []

    def plan(*_: object) -> ScheduledBatch:
        decoded_first.append(running.ran_last)
        return ScheduledBatch("decode" if running.ran_last else "run", (row,))

    monkeypatch.setattr(running, "plan_decode", plan)
    bulk.cut = True  # it always has a run
    for _ in range(4):
        policy._steps_without_bulk, running.ran_last = BULK_STEP, False
        policy.plan_decode(running.decoding())

    assert decoded_first == [False, True, False, True]


def test_bulk_is_pre_empted_before_a_younger_realtime_sequence() -> None:
    bench = Bench(ends_at(27), pages=11, prefix_caching=False)
    bench.ask(budget=30)
    for _ in range(20):
        bench.core.tick()
    bench.ask(budget=30, realtime=True)
    bench.run()

    assert [one.times.preemptions for one in bench.sequences] == [1, 0]
    assert [len(one.tokens) for one in bench.sequences] == [27, 27]


# ---- pauses


def pauses(bench: Bench) -> list[list[Step]]:
    """Launches of other kinds in front of each decode step."""
    found: list[list[Step]] = [[]]
    for step in bench.runner.steps:
        if step.kind == "decode":
            found.append([])
        else:
            found[-1].append(step)
    return found


def measured(bench: Bench) -> Bench:
    bench.scheduler.policy.crops.per_unit = bench.runner.per_crop = 0.002
    bench.scheduler.policy.prompts.per_unit = bench.runner.per_position = 0.0005
    return bench


def test_a_realtime_image_is_encoded_and_prefilled_in_one_pause_however_short_bulk_pauses_are() -> None:
    bench = decoding(measured(Bench(ends_at(60), max_pause_s=0.035)))
    bench.ask(image=FakeImage("bulk"))
    bench.ask(image=FakeImage("robot"), realtime=True)
    bench.run()

    urgent = next(steps for steps in pauses(bench) if any(row.sequence.number > 1 for s in steps for row in s.rows))
    assert [step.kind for step in urgent] == ["encode", "prefill"]
    assert sum(step.device_s for step in urgent) > 0.004


def test_a_realtime_request_does_not_wait_until_the_pause_of_bulk_is_over() -> None:
    bench = decoding(measured(Bench(ends_at(60), max_pause_s=0.035)))
    bench.ask(image=FakeImage("bulk"))
    bench.runner.steps.clear()
    while not bench.runner.steps or bench.runner.steps[-1].kind != "encode":
        bench.core.tick()  # bulk has had its pause: a decode step would come now
    bench.ask(realtime=True)
    bench.core.tick()

    assert [(step.kind, len(step.rows)) for step in bench.runner.steps[-1:]] == [("prefill", 1)]
    assert bench.runner.steps[-1].rows[0].sequence.realtime


@pytest.mark.parametrize("near", [False, True])
def test_pauses_of_bulk_do_not_grow_while_realtime_requests_are_near(near: bool) -> None:
    bench = decoding(measured(Bench(ends_at(60), max_pause_s=0.035)))
    policy_of(bench).is_near = lambda now: near  # type: ignore[method-assign]
    for number in range(20):
        bench.ask(image=FakeImage(str(number)))
    bench.run()

    longest = max(sum(step.device_s for step in steps) for steps in pauses(bench)[1:])
    # A prompt of twelve positions cannot be split: it takes 6 ms.
    assert longest <= 0.006 + 1e-9 if near else longest > 0.02


def test_bulk_launches_are_short_while_realtime_requests_are_near_though_nothing_is_decoded() -> None:
    bench = measured(Bench(ends_at(2)))
    policy_of(bench).is_near = lambda now: True  # type: ignore[method-assign]
    for number in range(4):
        bench.ask(image=FakeImage(str(number)))
    bench.core.tick()

    assert bench.runner.steps[0].plan.crops == 2  # of 2 ms each, and 4 ms are allowed


def test_realtime_work_keeps_to_the_launch_budget_while_realtime_sequences_are_decoded() -> None:
    bench = measured(Bench(ends_at(60), max_pause_s=0.035))
    bench.ask(realtime=True)
    for _ in range(3):
        bench.core.tick()
    bench.ask(image=FakeImage("robot"), realtime=True)
    bench.run()

    lengths = [sum(step.device_s for step in steps) for steps in pauses(bench)[1:]]
    assert max(lengths) <= 0.006 + 1e-9  # the prompt alone


def test_keeping_the_device_idle_counts_as_one_launch_that_overtakes_bulk() -> None:
    now = 100.0
    bench = Bench(ends_at(3), clock=lambda: now)
    bench.ask(image=FakeImage("bulk"))
    bench.ask(image=FakeImage("robot", cut=False), realtime=True)
    for _ in range(3):
        bench.core.tick()
        now += 0.0009

    assert not bench.runner.steps
    assert policy_of(bench)._overtaking_launches == 1
    now = 100.004
    bench.core.tick()
    assert [step.kind for step in bench.runner.steps] == ["encode"]
    assert policy_of(bench)._overtaking_launches == 0
