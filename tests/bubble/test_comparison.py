import dataclasses

import pytest

from bench.bubble.comparison import Agreement, DepthFigures, compare, streams_predicted, streams_share
from photonlite.observe.trace import Span
from tests.bubble.small import comparison, round_of, spans_of, tiny_subject


def test_one_stream_loses_one_step_in_as_many_as_it_has_tokens():
    found = comparison(t_block=3.0, t_pipe=2.0, steps=99)

    assert found.pipe.length == 100
    assert found.pipe.zombie_share == pytest.approx(1 / 100)
    assert found.block.zombie_share == 0
    assert streams_share(found, [found]) == pytest.approx(1 / 100)
    assert found.batch_share == pytest.approx(1 / 100)
    assert found.measured_shares == pytest.approx([1 / 100] * 2)
    assert streams_predicted(found, [found]) == pytest.approx(1.5 * 0.99)
    assert found.batch_predicted == pytest.approx(1.5 * 0.99)


def test_the_cost_of_a_row_comes_from_the_next_smaller_batch_of_the_same_workload():
    one, other, batch = (
        comparison(t_block=9.0, t_pipe=4.1),
        comparison(t_block=9.0, t_pipe=1.0, workload="detect"),
        comparison(t_block=9.0, t_pipe=4.8, streams=8),
    )
    assert streams_share(batch, [one, other, batch]) == pytest.approx(8 / 100 * 0.1 / 4.8)


def test_gains_are_medians_of_pairs_of_rounds():
    found = comparison(t_block=3.0, t_pipe=2.0)
    block = dataclasses.replace(found.block, periods=[3.0, 30.0, 4.0], walls=[300.0, 3000.0, 400.0])
    pipe = dataclasses.replace(found.pipe, periods=[2.0, 10.0, 2.0], walls=[200.0, 1000.0, 200.0])
    uneven = dataclasses.replace(found, block=block, pipe=pipe)

    # Ratios of 1.5, 3 and 2; the medians of both would give 4 / 2.
    assert uneven.gain == pytest.approx(2.0)
    assert uneven.observed_rounds == pytest.approx([1.5, 3.0, 2.0])
    assert uneven.observed.median == pytest.approx(2.0)
    assert uneven.differences(0.1) == pytest.approx([0.15, 0.3, 0.2])


def test_the_observation_counts_the_zombies_step_and_the_callers_view_does_not():
    found = comparison(t_block=3.0, t_pipe=2.0, steps=99)

    assert found.observed.median == pytest.approx(3.0 * 99 / (2.0 * 100))
    assert found.observed.median == pytest.approx(found.batch_predicted)
    assert found.observed_rounds == pytest.approx([found.observed.median] * 2)
    assert found.observed_answers == pytest.approx(1.5)


def test_periods_come_from_commits_of_rounds_without_tracing():
    traced = dataclasses.replace(round_of(5.0, 20), spans=spans_of(20, forward=4.0, finalize=0.5, idle=0.5))
    figures = DepthFigures.of([round_of(2.0, 20), round_of(2.0, 20)], [traced])

    assert figures.period == pytest.approx(2.0)
    assert (figures.steps, figures.tokens, figures.requests) == (40, 42, 2)
    assert figures.steady.period_s == pytest.approx([5.0] * 19)


def test_only_whole_spans_between_the_last_prefill_and_the_first_end_are_steady():
    spans = [Span("compute", "forward", start, start + 2.0, {}) for start in (8.0, 9.0, 10.0, 17.0, 18.0, 19.0)]
    one = dataclasses.replace(round_of(1.0, 10), spans=spans)

    assert (one.prefilled, one.first_end) == (10.0, 20.0)
    assert [span.start_s for span in one.steady_spans] == [10.0, 17.0, 18.0]


def test_answers_agree_up_to_their_first_difference():
    one = [(5, (0.5,)), (6, (0.25, 0.5)), (0, ())]
    other = [(5, (0.5,)), (6, (0.25, 0.75)), (0, ())]
    found = Agreement.of([(one, one), (one, other), (one, one[:2])])

    assert (found.same, found.sequences) == (1, 3)
    assert (found.tokens, found.all_tokens) == (3 + 1 + 2, 9)


class Recorder:
    """Stands for an engine: notes what it is asked, and takes longer where the host does not know the ends."""

    def __init__(self, depth, log):
        self.depth, self._log = depth, log

    def run(self, requests, *, traced):
        told = all(request.budget < 60 for request in requests)
        self._log.append((self.depth, told, traced))
        zombies = len(requests) if self.depth == 2 and not told else 0
        spans = spans_of(30, forward=1.0, finalize=0.2, idle=0.2)
        return round_of(2.0 / self.depth, 30, streams=len(requests), zombies=zombies, spans=spans if traced else None)


def test_kinds_of_rounds_take_turns_at_being_first_and_known_ends_have_no_zombies():
    log = []
    found = compare((Recorder(1, log), Recorder(2, log)), tiny_subject(), "text", 2, rounds=4)

    plain = [entry[:2] for entry in log if not entry[2]]
    kinds = [(1, False), (2, False), (2, True)]
    assert plain[:9] == [*kinds, kinds[1], kinds[2], kinds[0], kinds[2], kinds[0], kinds[1]]
    assert {kind: plain.count(kind) for kind in kinds} == dict.fromkeys(kinds, 1 + 4)
    block, pipe = (1, False, True), (2, False, True)
    assert [entry for entry in log if entry[2]] == [block, pipe, pipe, block, block, pipe, pipe, block]
    assert (len(found.block.periods), len(found.told_walls)) == (4, 4)
    assert found.measured_shares == pytest.approx([1 / 31] * 4)
