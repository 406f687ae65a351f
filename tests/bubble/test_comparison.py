import dataclasses

import pytest

from bench.bubble.comparison import Agreement, DepthFigures
from photonlite.observe.trace import Span
from tests.bubble.small import comparison, round_of, spans_of


def test_one_stream_loses_one_step_in_as_many_as_it_has_tokens():
    found = comparison(t_block=3.0, t_pipe=2.0, steps=99)

    assert found.pipe.length == 100
    assert found.pipe.zombie_share == pytest.approx(1 / 100)
    assert found.block.zombie_share == 0
    assert found.predicted == pytest.approx(1.5 * 0.99)


def test_the_observation_counts_the_zombies_step_and_the_callers_view_does_not():
    found = comparison(t_block=3.0, t_pipe=2.0, steps=99)

    assert found.observed == pytest.approx(3.0 * 99 / (2.0 * 100))
    assert found.observed == pytest.approx(found.predicted)
    assert found.observed_rounds == pytest.approx([found.observed] * 2)
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
