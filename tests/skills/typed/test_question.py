import asyncio
import json
from typing import Any

import numpy as np
import pydantic
import pytest

from photonlite.errors import GrammarError, SchemaError, SettingsError, UnsupportedSkillError
from photonlite.grammar.automata.tables import SpecialIds
from photonlite.request import Allowed, Completion, Request, SamplingSettings, Token
from photonlite.results import Caption, Point
from photonlite.skills.query import read_question
from photonlite.skills.typed.forms import TextForm, form_of
from photonlite.skills.typed.question import TypedQuestion, TypedReader, check_retries
from tests.compiling import Workshop
from tests.skills.fake import METRICS, FakePrompts, awaited, completion, coordinate, size

END, ANSWER, COORDINATE, SIZE = 0, 3, 5, 6
PIECES = [b""] * 20 + [bytes([byte]) for byte in range(256)] + [b'"at":', b"ab", b"{"]
WORKSHOP = Workshop(PIECES, SpecialIds(END, COORDINATE, SIZE, len(PIECES)))
PLACE = {"type": "object", "properties": {"at": {"type": "object", "format": "point"}}, "required": ["at"]}
AT = {"x": 0.25, "y": 0.75, "score": 1.0}


class SpellingPrompts(FakePrompts):
    """Reads the ids of `PIECES`."""

    skills: tuple[str, ...] = ("query", "detect", "point")

    def decode(self, ids: Any) -> str:
        return b"".join(PIECES[index] for index in ids).decode()

    def detokenizer(self) -> Any:
        return Spelling()


class Spelling:
    def feed(self, token_id: int, /) -> str:
        return PIECES[token_id].decode()

    def flush(self) -> str:
        return ""


def question(
    schema: Any = PLACE,
    regex: str | None = None,
    prompts: FakePrompts | None = None,
    retries: int = 0,
    **changes: Any,
) -> TypedQuestion:
    prompts = prompts or SpellingPrompts(max_context=1000)
    arguments = {"images": 1, "reasoning": False, "refs": None, "settings": SamplingSettings()} | changes
    form = form_of(schema if regex is None else None, None, regex)
    assert isinstance(form, TextForm)
    return TypedQuestion(prompts, read_question(prompts, "where?", **arguments), form, retries)


def bound(one: TypedQuestion) -> Request:
    assert one.spec is not None
    return one.bind(WORKSHOP.automaton(one.spec))


def spell(text: str) -> list[Token]:
    """Letters as ids; x and y stand for coordinates, s for a size."""
    native = {"x": Token(COORDINATE, (0.25,), 1.0, (1.0,)), "y": Token(COORDINATE, (0.75,), 1.0, (1.0,))}
    native["s"] = Token(SIZE, (0.5, 0.5), 1.0, (1.0, 1.0))
    return [native.get(letter) or Token(20 + ord(letter)) for letter in text]


def told(request: Request, tokens: list[Token], reason: str = "stop") -> Completion:
    for token in tokens:
        request.grammar.accept(token)
    assert request.grammar.finish_reason == reason
    return Completion(tuple(tokens), reason, METRICS)


def test_boxes_and_points_are_written_into_the_text_of_an_answer() -> None:
    one = question()
    answer = one.finish(told(bound(one), spell('{"at":xy}')))

    assert answer["answer"] == {"at": AT}
    assert json.loads(answer["text"]) == {"at": AT}
    assert (answer.metrics, answer.finish_reason) == (METRICS, "stop")


def test_a_type_gives_objects() -> None:
    one = question(Point)
    assert one.finish(told(bound(one), spell("xy"))) == {
        "answer": Point(0.25, 0.75, 1.0),
        "text": json.dumps(AT, separators=(",", ":")),
    }


def test_a_pattern_gives_its_text_alone() -> None:
    one = question(regex="[a-b]{2}-[0-9]")
    assert one.finish(told(bound(one), spell("ab-7"))) == {"answer": "ab-7"}


def test_the_budget_is_that_of_the_settings_and_the_context() -> None:
    assert bound(question(settings=SamplingSettings(max_tokens=30))).budget == 30
    assert bound(question(prompts=SpellingPrompts(max_context=100))).budget == 100 - 26 - 1 + 1


def test_a_budget_too_small_for_any_answer_is_refused() -> None:
    shortest = len('{"at":xy}')
    assert bound(question(settings=SamplingSettings(max_tokens=shortest))).grammar.finish_reason is None
    with pytest.raises(GrammarError, match=f"takes {shortest} tokens, and {shortest - 1} are left"):
        bound(question(settings=SamplingSettings(max_tokens=shortest - 1)))


@pytest.mark.parametrize(
    ("skills", "schema", "missing"),
    [
        (("query",), PLACE, "points"),
        (("query", "point"), PLACE, None),
        (("query", "detect"), PLACE, None),
        (("query", "point"), {"type": "object", "format": "box"}, "boxes"),
        (("query", "detect"), {"type": "object", "format": "box"}, None),
        (("query",), {"type": "boolean"}, None),
    ],
)
def test_places_need_a_checkpoint_trained_for_them(skills: tuple[str, ...], schema: Any, missing: str | None) -> None:
    prompts = SpellingPrompts(max_context=1000)
    prompts.skills = skills
    one = question(schema, prompts=prompts)
    if missing is None:
        bound(one)
        return
    with pytest.raises(UnsupportedSkillError, match=f"hold {missing}, for which this checkpoint was not trained"):
        bound(one)


def test_an_answer_that_must_be_empty_generates_no_tokens() -> None:
    one = question(regex="")
    request = bound(one)
    assert (request.budget, request.grammar.finish_reason) == (0, "stop")
    assert one.finish(Completion((), "stop", METRICS)) == {"answer": ""}


THOUGHT = [Token(20 + ord("h")), Token(20 + ord("m")), Token(ANSWER)]


def test_reasoning_comes_first_and_leaves_room_for_the_answer() -> None:
    one = question(reasoning=True, settings=SamplingSettings(max_tokens=12))
    request = bound(one)
    assert request.budget == 12 + 1 + 12
    answer = one.finish(told(request, [*THOUGHT, *spell('{"at":xy}')]))

    assert answer["answer"] == {"at": AT}
    assert answer["reasoning"]["text"] == "hm"


def test_reasoning_ends_in_time_for_an_answer() -> None:
    room = 40
    request = bound(question(reasoning=True, prompts=SpellingPrompts(max_context=26 + 1 + room - 1)))
    assert request.budget == room
    thinking = 0
    while request.grammar.allowed.forced != ANSWER:
        request.grammar.accept(Token(100))
        thinking += 1
    told(request, [Token(ANSWER), *spell('{"at":xy}')], "length")
    assert thinking == room - 1 - (room - 1) // 2


def test_a_stream_yields_the_text_and_then_has_its_value() -> None:
    one = question()
    tokens = told(bound(one), spell('{"at":xy}')).tokens
    answer = one.stream(iter(tokens), on_end=lambda: (METRICS, "stop"))
    pieces = list(answer["answer"])

    assert pieces[:2] == ["{", '"']
    assert pieces[-1].startswith('{"x":0.25,')
    assert answer.value == json.loads("".join(pieces)) == {"at": AT}
    assert "text" not in answer


def test_an_awaited_stream_is_the_same() -> None:
    one = question(Point, reasoning=True)
    tokens = told(bound(one), [*THOUGHT, *spell("xy")]).tokens

    async def main() -> Any:
        answer = one.stream(awaited(*tokens), on_end=lambda: (METRICS, "stop"))
        return await answer.avalue(), answer["reasoning"]["text"]

    assert asyncio.run(main()) == (Point(0.25, 0.75, 1.0), "hm")


def test_a_draft_has_no_grammar_and_no_budget() -> None:
    one = question()
    assert (one.draft.budget, one.draft.subject, one.draft.skill) == (0, "where?", "query")
    assert one.draft.grammar.allowed == Allowed()


BOX = '{"x_min":0.25,"y_min":0.5,"x_max":0.75,"y_max":1.0,"score":0.5}'
POINT = '{"x":0.5,"y":0.75,"score":1.0}'


def pieces(*tokens: Token | int) -> list[str]:
    return list(Caption(iter(completion(*tokens).tokens), reader=TypedReader(FakePrompts()))["caption"])


def test_words_are_yielded_once_they_are_certain() -> None:
    assert pieces(21, 22, 0) == ["<21>", "<22>"]


def test_a_box_is_written_when_its_size_is_known() -> None:
    box = coordinate(0.5, 0.5), coordinate(0.75, 0.5), size(0.5, 0.5, (0.5, 0.5))

    assert pieces(21, *box, 22, 0) == ["<21>" + BOX, "<22>"]


def test_a_point_is_written_when_no_size_follows() -> None:
    point = coordinate(0.5), coordinate(0.75)

    assert "".join(pieces(21, *point, 22, *point, 0)) == "<21>" + POINT + "<22>" + POINT
    assert "".join(pieces(*point)) == POINT  # nothing follows at all


def test_numbers_are_clamped_and_rounded() -> None:
    spelled = json.loads("".join(pieces(coordinate(1 / 3, 1e-30), coordinate(0.99), size(0.1, 0.1, (1e-30, 1e-30)))))

    assert spelled == {"x_min": 0.283333, "y_min": 0.94, "x_max": 0.383333, "y_max": 1.0, "score": spelled["score"]}
    assert 0 < spelled["score"] < 1e-6


CHECKED: list[int] = []


class Even(pydantic.BaseModel):
    number: int = pydantic.Field(ge=0, le=9)

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Even":
        CHECKED.append(self.number)
        if self.number % 2:
            raise ValueError("odd, " + "and " * 200)
        return self


def odd(one: TypedQuestion) -> Completion:
    return told(bound(one), spell('{"number":3}'))


def test_a_refused_answer_is_asked_about_again_with_the_reason() -> None:
    prompts = SpellingPrompts(max_context=1000)
    one = question(Even, prompts=prompts, retries=2, refs=[(0.5, 0.5)])

    [(tries, again)] = one.further(None, odd(one))
    [(tries, _)] = one.further(tries, odd(one))
    assert (tries, one.further(tries, odd(one))) == (3, ())

    (_, first, _, refs), *retries = prompts.asked
    assert (first, len(refs), len(retries)) == ("where?", 1, 2)
    for _, text, reasoning, places in retries:
        assert text.startswith('where?\nThe answer {"number":3} is wrong: Value error, odd, and and')
        assert text.endswith("Give another answer.")
        assert len(text) < 400
        assert (reasoning, places) == (False, refs)
    assert len(again.prompt) == len(retries[0][1].split())


def test_an_accepted_answer_is_validated_once_and_not_asked_about_again() -> None:
    one = question(Even, retries=2)
    answered = told(bound(one), spell('{"number":4}'))
    CHECKED.clear()

    assert one.further(None, answered) == ()
    assert one.finish(answered)["answer"].number == 4
    assert CHECKED == [4]


@pytest.mark.parametrize(("left", "asked"), [(20, 0), (80, 0), (100, 1)])
def test_nothing_is_asked_again_where_the_reason_leaves_no_room_for_an_answer(left: int, asked: int) -> None:
    prompts = SpellingPrompts(max_context=26 + left)  # the note takes 74 words, and the shortest answer 12 letters
    one = question(Even, prompts=prompts, retries=1)

    assert len(one.further(None, odd(one))) == asked
    with pytest.raises(SchemaError, match="not to its validators"):
        one.finish(odd(one))


@pytest.mark.parametrize("retries", [-1, 6, True, 1.5, "1", None])
def test_retries_are_a_small_whole_number(retries: Any) -> None:
    with pytest.raises(SettingsError, match=r"retries is .* from 0 to 5"):
        check_retries(retries, form_of(Even, None, None), stream=False)


def test_only_answers_of_a_schema_that_are_not_streamed_are_asked_for_again() -> None:
    typed = form_of(Even, None, None)
    assert check_retries(np.int64(5), typed, stream=False) == 5
    assert check_retries(0, None, stream=True) == 0
    with pytest.raises(SettingsError, match="stream"):
        check_retries(1, typed, stream=True)
    for form in (None, form_of(None, ["a", "b"], None), form_of(None, None, "a")):
        with pytest.raises(SettingsError, match="for answers with a schema"):
            check_retries(1, form, stream=False)
