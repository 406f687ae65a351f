import dataclasses

import pytest

from bench.bubble.short_answers import LENGTH, ShortAnswers, measure_short_answers, short_answer_table, short_config
from photonlite.config import EngineConfig
from tests.bubble.small import round_of, spans_of, tiny_subject


def test_answers_have_three_tokens_and_only_the_pipeline_that_does_not_know_has_zombies():
    found = measure_short_answers(tiny_subject(), streams=2, queued=5, rounds=1)

    last = {name: one.last for name, one in found.items()}
    assert all(len(tokens) == LENGTH for one in last.values() for tokens in one.tokens)
    assert last["depth 1"].zombies == last["depth 2, ends known"].zombies == 0
    assert last["depth 2"].zombies > 0
    assert last["depth 2"].tokens == last["depth 1"].tokens == last["depth 2, ends known"].tokens
    # Five requests do not fit into two rows: prompts ride along.
    assert all(one.prefills > 1 for one in last.values())
    assert all(len(one.rates) == 1 and 0 < one.busy[0] <= 1 for one in found.values())


def test_prefills_are_no_larger_than_those_of_an_engine_by_default():
    config = short_config(tiny_subject(), streams=32, depth=2)
    assert config.max_prefill_tokens == EngineConfig().max_prefill_tokens
    assert config.graph_sizes == (1, 2, 4, 8, 16, 24, 32)


def test_the_table_holds_rates_gains_and_what_the_last_round_did():
    found = {}
    for name, seconds in (("slow", 2.0), ("quick", 1.0)):
        one = round_of(1.0, 2, streams=6)
        one = dataclasses.replace(one, freed=one.submitted + seconds)
        traced = dataclasses.replace(one, spans=spans_of(2, forward=0.5, finalize=0.5, idle=1.0))
        found[name] = ShortAnswers()
        found[name].add(one, traced=False)
        found[name].add(traced, traced=True)

    # Two seconds of work with one of idling between them.
    expected = ["quick", "6.0", "6.0 to 6.0", "+100.0%", "66.67%", "1", "2", "12", "0"]
    assert cells(short_answer_table(found, absolute=True))[1] == expected
    assert [row[1] for row in cells(short_answer_table(found, absolute=False))] == ["1.000", "2.000"]


def test_a_queue_that_was_never_measured_is_a_mistake():
    with pytest.raises(AssertionError, match="no round of 'depth 1'"):
        short_answer_table({"depth 1": ShortAnswers(rates=[1.0], busy=[1.0])}, absolute=True)


def cells(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
