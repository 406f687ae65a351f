import pytest

from photonlite.batch import ScheduledBatch
from photonlite.runner.slots import Pipeline

DECODE, ENCODE, PREFILL = ScheduledBatch("decode"), ScheduledBatch("encode"), ScheduledBatch("prefill")


def committed(pipeline: Pipeline) -> int:
    step = pipeline.oldest
    assert step is not None
    pipeline.begin_commit(step)
    pipeline.end_commit(step)
    return step.number


def test_two_steps_are_in_flight_at_depth_2_and_one_at_depth_1() -> None:
    for depth in (1, 2):
        pipeline = Pipeline(depth)
        for _ in range(depth):
            assert not pipeline.full
            pipeline.finalize(pipeline.launch(DECODE))
        assert pipeline.full
        with pytest.raises(AssertionError, match="needs a free slot"):
            pipeline.launch(DECODE)


def test_commits_keep_the_order_of_launches_whatever_the_kind() -> None:
    pipeline = Pipeline(2)
    steps = [pipeline.launch(ENCODE)]
    pipeline.finalize(steps[0])
    for plan in (PREFILL, DECODE, ENCODE, DECODE):
        steps.append(pipeline.launch(plan))
        pipeline.finalize(steps[-1])
        with pytest.raises(AssertionError, match="keep the order of launches"):
            pipeline.begin_commit(steps[-1])
        assert committed(pipeline) == steps[-2].number
    assert committed(pipeline) == 4
    assert pipeline.in_flight == ()


def test_a_slot_is_free_only_when_its_commit_has_ended() -> None:
    pipeline = Pipeline(1)
    step = pipeline.launch(DECODE)
    pipeline.finalize(step)
    pipeline.begin_commit(step)
    assert pipeline.full
    pipeline.end_commit(step)
    assert not pipeline.full
    assert pipeline.launch(DECODE).slot == step.slot


def test_slots_take_turns() -> None:
    pipeline = Pipeline(2)
    slots = []
    for _ in range(5):
        step = pipeline.launch(DECODE)
        pipeline.finalize(step)
        slots.append(step.slot)
        if pipeline.full:
            committed(pipeline)

    assert slots == [0, 1, 0, 1, 0]


def test_a_step_is_not_committed_before_it_is_finalized_and_finalized_once() -> None:
    pipeline = Pipeline(2)
    step = pipeline.launch(DECODE)
    with pytest.raises(AssertionError, match="only a finalized step is committed"):
        pipeline.begin_commit(step)
    with pytest.raises(AssertionError, match="its commit has not begun"):
        pipeline.end_commit(step)
    pipeline.finalize(step)
    with pytest.raises(AssertionError, match="only a launched step is finalized"):
        pipeline.finalize(step)


def test_no_launch_before_the_last_one_is_finalized() -> None:
    # Its forward pass would read what the last step has not sampled yet.
    pipeline = Pipeline(2)
    pipeline.launch(DECODE)
    with pytest.raises(AssertionError, match="must be finalized before the next launch"):
        pipeline.launch(DECODE)


def test_only_the_newest_launch_can_be_taken_back() -> None:
    pipeline = Pipeline(2)
    first = pipeline.launch(DECODE)
    pipeline.finalize(first)
    second = pipeline.launch(DECODE)
    with pytest.raises(AssertionError, match="cannot be taken back"):
        pipeline.abandon(first)
    pipeline.abandon(second)
    assert pipeline.in_flight == (first,)
    assert pipeline.launch(DECODE).slot == second.slot


def test_other_depths_are_refused() -> None:
    with pytest.raises(ValueError, match="depth of 1 or 2, not 3"):
        Pipeline(3)
