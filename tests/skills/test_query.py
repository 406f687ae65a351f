import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from photonlite.errors import CapacityError, PromptError, SpatialRefError
from photonlite.grammar.decoding.grammars import ReasoningGrammar
from photonlite.request import Request, SamplingSettings, Token
from photonlite.skills import query
from tests.skills.fake import METRICS, FakePrompts, awaited, completion, coordinate

THOUGHT = [21, 7, 22, 23, coordinate(0.1), coordinate(0.2), coordinate(0.3), 9, 24, 7, 25, coordinate(0.5), 9, 3]


def build(prompts: FakePrompts, question: Any = "how many?", **changes: Any) -> Request:
    arguments = {"images": 1, "reasoning": False, "refs": None, "settings": SamplingSettings()} | changes
    return query.build(prompts, query.read_question(prompts, question, **arguments))


def test_a_question_is_stripped_and_asked() -> None:
    prompts = FakePrompts()
    request = build(prompts, " how many? ", refs=[(0.1, 0.2)])

    assert prompts.asked == [("query", "how many?", False, [(0.1, 0.2)])]
    assert request.subject == "how many?"
    assert request.budget == 100 - 26 - 2 + 1


def test_without_an_image_there_is_more_room() -> None:
    assert build(FakePrompts(), images=0).budget == 100 - 1 - 2 + 1


def test_reasoning_and_answer_have_a_budget_each_and_share_the_context() -> None:
    roomy, narrow = FakePrompts(max_context=1000), FakePrompts(max_context=40)
    settings = SamplingSettings(max_tokens=10)

    assert build(roomy, reasoning=True, settings=settings).budget == 21
    assert build(narrow, reasoning=True, settings=settings).budget == 13
    assert isinstance(build(roomy, reasoning=True).grammar, ReasoningGrammar)


def test_references_need_an_image() -> None:
    with pytest.raises(SpatialRefError, match="without an image"):
        build(FakePrompts(), images=0, refs=[(0.1, 0.2)])
    build(FakePrompts(), images=0, refs=[])


def test_questions_are_limited() -> None:
    build(FakePrompts(), "x" * 4000)
    with pytest.raises(PromptError, match="question has 4001 characters, over the limit of 4000"):
        build(FakePrompts(), "x" * 4001)
    with pytest.raises(PromptError, match="the question is missing: give text"):
        build(FakePrompts(), None)
    with pytest.raises(CapacityError):
        build(FakePrompts(), "a " * 1000)


def test_an_answer_is_its_text() -> None:
    prompts = FakePrompts()
    result = query.finish(build(prompts), prompts, completion(21, 22, 0))

    assert result == {"answer": "<21><22>"}
    assert (result.metrics, result.finish_reason) == (METRICS, "stop")


def test_reasoning_has_text_and_groundings_with_their_places_in_it() -> None:
    prompts = FakePrompts()
    result = query.finish(build(prompts, reasoning=True), prompts, completion(*THOUGHT, 26, 27, 0))

    assert result["answer"] == "<26><27>"
    assert result["reasoning"]["text"] == "<21><22><23><24><25>"
    # The odd coordinate is dropped, and so is the grounding that has no whole point.
    assert result["reasoning"]["grounding"] == [{"start_idx": 4, "end_idx": 12, "points": [[0.1, 0.2]]}]


def test_reasoning_that_never_ended_leaves_an_empty_answer() -> None:
    prompts = FakePrompts()
    result = query.finish(build(prompts, reasoning=True), prompts, completion(21, 22, reason="length"))

    assert result == {"answer": "", "reasoning": {"text": "<21><22>", "grounding": []}}


def test_an_answer_id_inside_the_answer_is_skipped() -> None:
    prompts = FakePrompts()
    result = query.finish(build(prompts, reasoning=True), prompts, completion(21, 3, 3, 22, 0))

    assert result == {"answer": "<22>", "reasoning": {"text": "<21>", "grounding": []}}


def test_a_stream_fills_the_reasoning_with_the_first_piece_of_the_answer() -> None:
    prompts = FakePrompts()
    taken: list[int] = []

    def tokens() -> Iterator[Token]:
        for token in completion(*THOUGHT, 26, 27, 0).tokens:
            taken.append(token.id)
            yield token

    result = query.stream(build(prompts, reasoning=True), prompts, tokens(), on_end=lambda: (METRICS, "stop"))

    assert taken == []
    assert result["reasoning"] == {"text": "", "grounding": []}
    assert next(result["answer"]) == "<26>"
    assert result["reasoning"]["text"] == "<21><22><23><24><25>"
    assert list(result["answer"]) == ["<27>"]
    assert result.finish_reason == "stop"


def test_an_awaited_stream_fills_the_reasoning_too() -> None:
    prompts = FakePrompts()

    async def main() -> None:
        tokens = awaited(*THOUGHT, 26, 27, 0)
        result = query.stream(build(prompts, reasoning=True), prompts, tokens)
        assert result["reasoning"] == {"text": "", "grounding": []}
        assert await anext(result["answer"]) == "<26>"
        assert result["reasoning"]["text"] == "<21><22><23><24><25>"
        assert await result.atext() == "<26><27>"

    asyncio.run(main())


def test_a_stream_whose_reasoning_never_ends_still_gives_the_reasoning() -> None:
    prompts = FakePrompts()
    result = query.stream(build(prompts, reasoning=True), prompts, iter([Token(21)]))

    assert list(result["answer"]) == []
    assert result["reasoning"]["text"] == "<21>"
