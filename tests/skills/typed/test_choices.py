import asyncio
import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from photonlite.errors import CapacityError
from photonlite.grammar.decoding.choices import ChoiceTrie
from photonlite.request import Completion, Request, SamplingSettings, Token
from photonlite.skills.query import read_question
from photonlite.skills.typed.choices import ChoiceQuestion, Scoring
from photonlite.skills.typed.forms import ChoicesForm
from tests.skills.fake import METRICS, FakePrompts, awaited

END, ANSWER, SPACED = 0, 3, 1000


def question(*choices: str, prompts: FakePrompts | None = None, **changes: Any) -> ChoiceQuestion:
    prompts = prompts or FakePrompts(max_context=1000)
    arguments = {"images": 1, "reasoning": False, "refs": None, "settings": SamplingSettings()} | changes
    return ChoiceQuestion(prompts, read_question(prompts, "is it?", **arguments), ChoicesForm(choices))


Odds = Callable[[tuple[int, ...]], Mapping[int, float]]


def run(request: Request, begun: tuple[int, ...], odds: Odds, dice: random.Random | None = None) -> Completion:
    """Answer a request as a model would that finds these odds at each place, or the first where it says nothing."""
    way, tokens = begun, []
    while request.grammar.finish_reason is None:
        allowed = request.grammar.allowed
        ids = allowed.ids or ()
        weights = [odds(way).get(one, 0.0) if len(ids) > 1 else 1.0 for one in ids]
        whole = sum(weights)
        shares = [weight / whole for weight in weights]
        chosen = ids[shares.index(max(shares))] if dice is None else dice.choices(ids, shares)[0]
        tokens.append(Token(chosen, scores=tuple(shares[ids.index(one)] for one in allowed.scored)))
        request.grammar.accept(tokens[-1])
        way = (*way, chosen)
    return Completion(tuple(tokens), request.grammar.finish_reason, METRICS)


def asked(one: ChoiceQuestion, odds: Odds, dice: random.Random | None = None) -> tuple[Any, int]:
    """Ask with all further requests; gives the answer and how many requests it took."""
    first = run(one.bind(None), (), odds, dice)
    waiting, count = list(one.further(None, first)), 1
    while waiting:
        begun, request = waiting.pop()
        assert [token.id for token in request.prompt[-len(begun) :]] == list(begun)
        assert request.begun >= len(begun)  # reasoning belongs to the answer as well
        assert one.draft.prompt == request.prompt[: -request.begun]
        assert request.budget >= 1
        waiting += one.further(begun, run(request, begun, odds))
        count += 1
    return one.finish(first), count


def even(way: tuple[int, ...]) -> dict[int, float]:
    return {index: 1.0 for index in range(3000)}


def test_two_words_are_scored_by_one_request() -> None:
    weights = {ord("y"): 0.5, ord("y") + SPACED: 0.2, ord("n"): 0.2, ord("n") + SPACED: 0.1}
    answer, count = asked(question("y", "n"), lambda way: weights)

    assert answer["answer"] == "y"
    assert answer["scores"] == pytest.approx({"y": 0.7, "n": 0.3})
    assert (count, answer.metrics, answer.finish_reason) == (1, METRICS, "stop")


def test_the_most_probable_choice_is_the_answer_even_if_greedy_decoding_spelled_another() -> None:
    weights = {ord("y"): 0.4, ord("n"): 0.35, ord("n") + SPACED: 0.25}
    answer, _ = asked(question("y", "n"), lambda way: weights)
    assert answer["answer"] == "n"
    drawn = question("y", "n", settings=SamplingSettings(temperature=0.5))
    assert asked(drawn, lambda way: weights)[0]["answer"] == "y"  # what was drawn is drawn


def test_a_branch_that_was_not_taken_is_scored() -> None:
    def odds(way: tuple[int, ...]) -> dict[int, float]:
        if not way:
            return {ord("a"): 0.6, ord("b"): 0.4}
        return {ord("x"): 0.75, ord("y"): 0.25, END: 0.25}

    answer, count = asked(question("a", "bx", "by", "bxy"), odds)

    # behind bx there are the end and y: 0.25 each
    assert count == 2
    assert answer["scores"] == pytest.approx({"a": 0.6, "bx": 0.4 * 0.75 / 2, "by": 0.1, "bxy": 0.4 * 0.75 / 2})


@pytest.mark.long
def test_choices_that_begin_alike_all_have_their_probability() -> None:
    rng = random.Random(3)
    for _ in range(30):
        count = rng.randint(1, 64)
        choices = tuple({"".join(rng.choices("abc", k=rng.randint(1, 5))) for _ in range(count)})
        answer, _ = asked(question(*choices), even)
        assert list(answer["scores"]) == list(choices)
        assert math.fsum(answer["scores"].values()) == pytest.approx(1)
        assert answer["scores"] == pytest.approx(brute(choices))


def brute(choices: tuple[str, ...]) -> dict[str, float]:
    """Multiply one over the number of ways at each place, along each spelling."""
    spell = FakePrompts().spell
    spelled = {(*spell(space + choice), END): choice for choice in choices for space in ("", " ")}
    shares = dict.fromkeys(choices, 0.0)
    for ids, choice in spelled.items():
        ways = [len({other[n] for other in spelled if other[:n] == ids[:n]}) for n in range(len(ids))]
        shares[choice] += math.prod(1 / way for way in ways)
    return shares


def test_a_sampled_choice_is_returned_with_the_same_scores() -> None:
    sampled = SamplingSettings(temperature=1.0)
    wanted = brute(("a", "ab", "b"))
    seen = set()
    for seed in range(30):
        answer, _ = asked(question("a", "ab", "b", settings=sampled), even, random.Random(seed))
        seen.add(answer["answer"])
        assert answer["scores"] == pytest.approx(wanted)
    assert seen == {"a", "ab", "b"}


def test_branches_of_negligible_probability_are_not_scored() -> None:
    answer, count = asked(question("a", "bx", "by"), lambda way: even(way) | {ord("b"): 1e-9, ord("b") + SPACED: 1e-9})

    assert count == 1
    assert answer["scores"] == {"a": 1.0, "bx": 0.0, "by": 0.0}


def test_many_choices_get_no_scores() -> None:
    choices = [f"{number:03d}" for number in range(65)]
    many = question(*choices)
    request = many.bind(None)
    assert request.grammar.allowed.scored == ()
    assert question(*choices[:64]).bind(None).grammar.allowed.scored != ()
    answer, count = asked(question(*choices), even)

    assert (dict(answer), count) == ({"answer": "000"}, 1)


def test_choices_that_differ_by_a_space_are_different() -> None:
    answer, _ = asked(question("a", " a"), lambda way: {ord("a"): 0.25, ord("a") + SPACED: 0.75})

    assert answer["scores"] == {"a": 0.25, " a": 0.75}


def test_a_choice_ignores_max_tokens_and_must_fit_the_context() -> None:
    prompts = FakePrompts()
    room = 100 - 26 - 2 + 1
    fits = question("x" * room, prompts=prompts, settings=SamplingSettings(max_tokens=1))
    assert fits.bind(None).budget == room
    with pytest.raises(CapacityError, match=f"takes {room + 1} tokens, but the context has room for {room}"):
        question("x" * (room + 1), prompts=prompts).bind(None)


THOUGHT = (Token(21), Token(5, (0.5,), 0.9, (0.3,)), Token(ANSWER))


def test_follow_up_requests_repeat_the_reasoning() -> None:
    one = question("a", "bx", "by", reasoning=True, settings=SamplingSettings(max_tokens=8))
    request = one.bind(None)
    assert request.budget == 8 + 1 + 2
    for token in THOUGHT:
        request.grammar.accept(token)
    rest = run(request, (), even)
    first = Completion((*THOUGHT, *rest.tokens), "stop", METRICS)
    further = list(one.further(None, first))

    assert [begun for begun, _ in further] == [(ord("b"),), (ord("b") + SPACED,)]
    assert [token.id for token in further[0][1].prompt[-4:]] == [21, 5, ANSWER, ord("b")]
    assert further[0][1].prompt[-3] == Token(5, (0.5,))
    for begun, more in further:
        assert not one.further(begun, run(more, begun, even))
    answer = one.finish(first)
    assert answer["reasoning"]["text"] == "<21>"
    assert answer["scores"] == pytest.approx({"a": 0.5, "bx": 0.25, "by": 0.25})


def test_a_stream_gives_the_choice_in_one_piece_and_the_scores_with_it() -> None:
    one = question("a", "b")
    first = run(one.bind(None), (), lambda way: {ord("a"): 0.25, ord("b"): 0.75})

    def tokens() -> Iterator[Token]:
        yield from first.tokens
        assert not one.further(None, first)

    answer = one.stream(tokens(), on_end=lambda: (METRICS, "stop"))
    assert answer["scores"] == {}
    assert list(answer["answer"]) == ["b"]
    assert answer["scores"] == {"a": 0.25, "b": 0.75}
    assert (answer.value, answer.finish_reason) == ("b", "stop")


def test_an_awaited_stream_is_the_same() -> None:
    one = question("a", "b")
    first = run(one.bind(None), (), even)
    assert not one.further(None, first)

    async def main() -> Any:
        answer = one.stream(awaited(*first.tokens), on_end=lambda: (METRICS, "stop"))
        return await answer.atext(), answer["scores"]

    assert asyncio.run(main()) == ("a", {"a": 0.5, "b": 0.5})


def test_scores_sum_to_one_despite_rounding() -> None:
    tree = ChoiceTrie([((1,), 0), ((2,), 1)], end=END)
    scoring = Scoring(tree, 2)
    assert scoring.take((), [Token(1, scores=(0.5999, 0.4))]) == []

    assert math.fsum(scoring.shares()) == 1.0
    assert scoring.shares()[0] == pytest.approx(0.5999 / 0.9999)
