import gc
import threading
from collections import deque

import pytest
import torch

from bench.bubble.rounds import Rig
from bench.bubble.subjects import WORKLOADS, engine_config, prompt_lengths, requests
from photonlite.engine.engine import Engine
from tests.bubble.small import STOP, tiny_subject
from tests.guard import GUARD
from tests.tiny import CPU

KINDS = ["photonlite_nano", "moondream2"]


class Waiter:
    def __init__(self):
        self.ended = threading.Event()

    def on_token(self, token): ...

    def on_finish(self, sequence):
        self.ended.set()


@pytest.fixture(scope="module", params=KINDS)
def rigs(request):
    subject = tiny_subject(request.param)
    made = subject, {depth: Rig(subject, engine_config(subject, (1, 4), depth)) for depth in (1, 2)}
    yield made
    for rig in made[1].values():
        rig.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_on_the_public_engine_ends_with_the_token_chosen_at_the_stop(kind):
    subject = tiny_subject(kind)
    engine = Engine(subject.model, CPU, torch.float64, engine_config(subject, (1,), depth=2))
    try:
        request, waiter = requests(subject, "text", 1, seed=3)[0], Waiter()
        sequence = engine.submit(request, waiter)
        assert waiter.ended.wait(GUARD)
    finally:
        engine.close(drain=False)

    ids = [token.id for token in sequence.tokens]
    assert sequence.error is None
    assert request.grammar.finish_reason == "stop"
    assert ids.index(subject.vocabulary.end) == len(ids) - 1
    # The last token was chosen from the hidden state at the stop.
    assert len(request.prompt) + len(ids) - 1 == STOP


def test_a_list_goes_on_to_the_stop_and_ends_where_it_next_may(rigs):
    subject, by_depth = rigs
    one = by_depth[2].run(requests(subject, "detect", 4, seed=0), traced=False)

    words = subject.vocabulary
    box = [words.coordinate, words.coordinate, words.size]
    for tokens, prompt in zip(one.tokens, prompt_lengths(subject, 4, seed=0), strict=True):
        least = STOP - prompt + 1
        boxes = -(-(least - 1) // 3)
        assert [token for token, _ in tokens] == box * boxes + [words.end]


@pytest.mark.parametrize("streams", [1, 4])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_both_depths_give_the_same_tokens_and_only_the_pipelined_one_has_zombies(rigs, workload, streams):
    subject, by_depth = rigs
    block, pipe = (by_depth[depth].run(requests(subject, workload, streams, seed=5), traced=False) for depth in (1, 2))

    assert block.tokens == pipe.tokens
    assert len({tuple(token for token, _ in tokens) for tokens in block.tokens}) == streams or workload == "detect"
    assert (block.zombies, pipe.zombies) == (0, streams)
    for one in (block, pipe):
        # The first token of each sequence comes from its prefill.
        assert one.rows - one.zombies == sum(len(tokens) - 1 for tokens in one.tokens)
    assert pipe.steps == block.steps + 1


@pytest.mark.parametrize("workload", WORKLOADS)
def test_budgets_tell_the_host_where_sequences_end_and_leave_no_zombies(rigs, workload):
    subject, by_depth = rigs
    told = by_depth[2].run(requests(subject, workload, 4, seed=5, bounded=True), traced=False)
    block = by_depth[1].run(requests(subject, workload, 4, seed=5), traced=False)

    assert told.tokens == block.tokens
    assert (told.zombies, told.steps, told.prefills) == (0, block.steps, 1)


def test_the_collector_rests_during_a_round_and_goes_on_after_it(rigs, monkeypatch):
    subject, by_depth = rigs
    working = []
    submit = Rig._submit

    def watched(rig, sequences):
        working.append(gc.isenabled())
        submit(rig, sequences)

    monkeypatch.setattr(Rig, "_submit", watched)
    by_depth[2].run(requests(subject, "text", 1, seed=1), traced=False)
    assert working == [False]
    assert gc.isenabled()


def test_a_trace_that_lost_spans_spoils_the_round(rigs, monkeypatch):
    subject, by_depth = rigs
    rig = by_depth[2]
    monkeypatch.setattr(rig.tracer, "_ring", deque(maxlen=10))
    with pytest.raises(RuntimeError, match=r"lost \d+ spans"):
        rig.run(requests(subject, "text", 1, seed=1), traced=True)
    rig.tracer.clear()


def test_a_round_is_prefilled_by_one_launch_and_its_times_are_in_order(rigs):
    subject, by_depth = rigs
    one = by_depth[2].run(requests(subject, "text", 4, seed=1), traced=True)

    assert [span.name for span in one.spans if span.track == "compute"].count("prefill") == 1
    assert one.submitted < one.prefilled <= one.first_end < one.last_end <= one.freed
    # The first request's first token is committed just before the last one's.
    assert min(map(len, one.tokens)) - 1 <= len(one.commits) <= min(map(len, one.tokens))
    assert one.steady_spans
    assert by_depth[2].run(requests(subject, "text", 4, seed=1), traced=False).spans == []


@pytest.mark.long
def test_a_sequence_that_does_not_end_at_the_stop_spoils_the_round():
    subject = tiny_subject(stop=10_000)
    rig = Rig(tiny_subject(), engine_config(tiny_subject(), (1,), depth=2))
    rig.close()
    with pytest.raises(RuntimeError, match="died"):
        rig.run(requests(subject, "text", 1, seed=0), traced=False)
    endless = Rig(subject, engine_config(tiny_subject(), (1,), depth=2))
    try:
        with pytest.raises(RuntimeError, match="not by 'length'"):
            endless.run(requests(subject, "text", 1, seed=0), traced=False)
    finally:
        endless.close()


def test_prompts_lie_evenly_around_their_mean():
    subject = tiny_subject()
    lengths = prompt_lengths(subject, 11, seed=2)
    assert sorted(lengths) == list(range(35, 46))
    assert lengths != sorted(lengths)
    assert prompt_lengths(subject, 1, seed=2) == [40]
