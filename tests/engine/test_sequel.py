from collections.abc import Iterable
from typing import Any

import pytest

from photonlite.engine.sequel import Sequel
from photonlite.request import Completion, Request, SamplingSettings, Token
from photonlite.results import Metrics
from photonlite.sequence import Sequence, Sink
from tests.engine.fakes import END, Words

FIRST = Completion((Token(7), Token(END)), "stop", Metrics(prefill_s=1.0, decode_s=2.0, output_tokens=2), (6, 4))


def request() -> Request:
    return Request("query", (Token(1),), Words(), 5, SamplingSettings())


class Rig:
    """A sequel in front of an engine that does nothing by itself."""

    def __init__(self, plan: dict[Any, list[str]]) -> None:
        self.plan = plan
        self.told: list[tuple[Any, int]] = []
        self.sequences: list[Sequence] = []
        self.cancelled: list[Sequence] = []
        self.ends: list[Completion | BaseException] = []
        self.sequel = Sequel(self._further, self._submit, self.cancelled.append, self.ends.append)

    def finish(self, number: int, error: BaseException | None = None) -> None:
        sequence = self.sequences[number]
        sequence.tokens += [Token(7)] * number + [Token(END)]
        for token in sequence.tokens:
            sequence.request.grammar.accept(token)
            sequence.sink.on_token(token)
        sequence.times.encode_s, sequence.times.prefill_s = 0.125, 0.25
        sequence.times.first_token, sequence.times.finished = 4.0, 4.5
        sequence.error = error
        sequence.sink.on_finish(sequence)

    def _further(self, name: Any, completion: Completion) -> Iterable[tuple[Any, Request]]:
        self.told.append((name, len(completion.tokens)))
        return [(known, request()) for known in self.plan.pop(name, [])]

    def _submit(self, asked: Request, sink: Sink) -> Sequence:
        sequence = Sequence(len(self.sequences), asked, sink, prefix_len=10)
        self.sequences.append(sequence)
        return sequence


def test_an_answer_that_needs_no_more_goes_out_as_it_is() -> None:
    rig = Rig({})
    rig.sequel.begin(FIRST)

    assert rig.ends == [FIRST]
    assert rig.told == [(None, 2)]


def test_requests_follow_requests_until_there_are_no_more() -> None:
    rig = Rig({None: ["a", "b"], "a": ["aa"]})
    rig.sequel.begin(FIRST)
    rig.finish(1)
    rig.finish(0)
    assert (len(rig.sequences), rig.ends) == (3, [])
    rig.finish(2)

    assert rig.told == [(None, 2), ("b", 2), ("a", 1), ("aa", 3)]
    (end,) = rig.ends
    assert isinstance(end, Completion)
    assert (end.tokens, end.finish_reason, end.picture_size) == (FIRST.tokens, "stop", (6, 4))
    assert end.metrics == Metrics(encode_s=0.375, prefill_s=1.75, decode_s=3.5, output_tokens=8)
    assert not rig.cancelled


def test_one_that_fails_fails_all_and_the_others_are_given_up() -> None:
    rig = Rig({None: ["a", "b"]})
    rig.sequel.begin(FIRST)
    error = RuntimeError("gone")
    rig.finish(0, error)

    assert rig.ends == [error]
    assert rig.sequences[1] in rig.cancelled


@pytest.mark.parametrize("at", ["take", "submit"])
def test_what_goes_wrong_while_planning_is_the_end(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig({None: ["a"], "a": ["aa"]})
    rig.sequel.begin(FIRST)
    if at == "take":
        rig.plan["a"] = [1, 2, 3]  # type: ignore[list-item]
        monkeypatch.setattr(rig.sequel, "_further", lambda name, completion: 1 / 0)
    else:
        monkeypatch.setattr(rig.sequel, "_submit", lambda request, sink: 1 / 0)
    rig.finish(0)

    assert [type(end) for end in rig.ends] == [ZeroDivisionError]


def test_what_has_ended_is_not_given_up() -> None:
    rig = Rig({None: ["a", "b"]})
    rig.sequel.begin(FIRST)
    rig.finish(0)
    rig.sequel.cancel()

    assert rig.cancelled == [rig.sequences[1]]


def test_giving_up_cancels_what_runs_and_asks_for_nothing_more() -> None:
    rig = Rig({None: ["a", "b"], "a": ["aa"]})
    rig.sequel.begin(FIRST)
    rig.sequel.cancel()
    rig.finish(0)

    assert len(rig.sequences) == 2
    assert set(rig.cancelled) == set(rig.sequences)
    assert rig.ends == []


def test_giving_up_in_the_middle_of_asking_reaches_the_newest() -> None:
    rig = Rig({None: ["a", "b"]})
    submit = rig.sequel._submit

    def and_cancel(asked: Request, sink: Sink) -> Sequence:
        sequence = submit(asked, sink)
        rig.sequel.cancel()
        return sequence

    rig.sequel._submit = and_cancel  # type: ignore[method-assign]
    rig.sequel.begin(FIRST)

    assert len(rig.sequences) == 1
    assert rig.sequences[0] in rig.cancelled
    assert rig.ends == []
