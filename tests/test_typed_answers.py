"""Typed questions through the whole engine, on a tiny model; most with grammars compiled in this process."""

import asyncio
import concurrent.futures
import gc
import json
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import pydantic
import pytest
import torch

from photonlite import Box, Point
from photonlite.api import VisionModel
from photonlite.api.batch import task_from_mapping
from photonlite.errors import (
    DeadlineError,
    GrammarError,
    InputError,
    ModelError,
    PromptError,
    SchemaError,
    UnsupportedSkillError,
)
from photonlite.grammar.automata.tables import SpecialIds
from photonlite.images.crops import cut_crops
from photonlite.images.decode import load_image
from photonlite.request import Allowed, SamplingSettings, Token
from photonlite.skills.query import read_question
from photonlite.skills.typed.choices import ChoiceQuestion
from photonlite.skills.typed.forms import TextForm, form_of
from photonlite.skills.typed.question import TypedQuestion
from tests.compiling import FakeCompiler, Workshop, fake_compilers
from tests.plain import PlainEngine, Sampler
from tests.serving import GUARD, IMAGE, Gate, counters, double, make_image, network, on_thread, run, serve, settle
from tests.tiny import CPU, tiny_config


class Thing(pydantic.BaseModel):
    name: Literal["mug", "jug"]
    at: Box | Point | None


class Shelf(pydantic.BaseModel):
    things: list[Thing] = pydantic.Field(min_length=1, max_length=2)
    full: bool


SETTINGS = {"max_tokens": 40}
FORMS: list[dict[str, Any]] = [
    {"schema": Thing},
    {"schema": Shelf, "settings": {"max_tokens": 150}},
    {"schema": {"type": "array", "items": {"type": "object", "format": "box"}, "maxItems": 3}},
    {"schema": Shelf, "settings": {"max_tokens": 150, "temperature": 1.5, "seed": 3}},
    {"regex": "[A-Z]{2}-[0-9]{1,4}"},
    {"choices": ["yes", "no", "now"]},
    {"choices": ["yes", "no", "now"], "settings": {"temperature": 2.0, "seed": 3}},
    {"schema": Thing, "reasoning": True},
    {"choices": ["yes", "no", "now"], "reasoning": True},
]


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch) -> list[FakeCompiler]:
    return fake_compilers(monkeypatch)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[FakeCompiler]:
    return fake_compilers(monkeypatch, slow=True)


@pytest.fixture
def model() -> Iterator[VisionModel]:
    model = serve()
    yield model
    model.close(drain=False)  # a test that fails may have left a grammar that never comes


def asked(form: dict[str, Any]) -> dict[str, Any]:
    return {"image": IMAGE, "question": "why?", "settings": SETTINGS} | form


def near(value: Any) -> Any:
    """Round numbers that depend on the order of single-precision sums to five decimals."""
    if isinstance(value, dict):
        return {key: near(item) for key, item in value.items() if key != "text"}
    if isinstance(value, list):
        return [near(item) for item in value]
    if isinstance(value, pydantic.BaseModel | Box | Point):
        return near(pydantic.TypeAdapter(type(value)).dump_python(value))
    return round(value, 5) if isinstance(value, float) else value


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_blocking_pipelined_awaited_batched_and_streamed_answers_are_the_same(
    compilers: list[FakeCompiler], form: dict[str, Any]
) -> None:
    with serve(depth=1) as blocking, serve() as model:
        wanted = blocking.query(**asked(form))
        found = [model.query(**asked(form)), run(model.aquery(**asked(form)))]
        found += model.batch([{"skill": "query", **asked(form)}] * 2)
        stream = model.query(**asked(form), stream=True)
        text = "".join(stream["answer"])

        async def awaited() -> Any:
            answer = await model.aquery(**asked(form), stream=True)
            return await answer.atext(), await answer.avalue()

        awaited_text, awaited_value = run(awaited())

    assert [near(answer) for answer in found] == [near(wanted)] * 4
    # The tiny model reasons until it is stopped.
    reason = "length" if form.get("reasoning") else "stop"
    assert all(answer.finish_reason == reason for answer in (wanted, *found, stream))
    assert near(stream.value) == near(awaited_value) == near(wanted["answer"])
    assert text == awaited_text
    assert stream.get("reasoning") == wanted.get("reasoning")
    if "schema" in form:
        assert near(json.loads(text)) == near(json.loads(wanted["text"]))


@pytest.mark.long
def test_typed_answers_equal_the_oracle(compilers: list[FakeCompiler]) -> None:
    loaded = double()
    ids = loaded.prompts.vocabulary
    workshop = Workshop(
        loaded.prompts.pieces(), SpecialIds(ids.end, ids.coordinate, ids.size, loaded.prompts.vocab_size)
    )
    oracle = PlainEngine(loaded.model, CPU, torch.float64)
    with serve(loaded) as model:
        for form in FORMS[:5]:
            form_asked = form_of(form.get("schema"), None, form.get("regex"))
            assert isinstance(form_asked, TextForm)
            question = read_question(
                loaded.prompts,
                "why?",
                images=1,
                reasoning=False,
                refs=None,
                settings=SamplingSettings.from_dict(form.get("settings", SETTINGS)),
            )
            typed = TypedQuestion(loaded.prompts, question, form_asked)
            request = typed.bind(workshop.automaton(form_asked.spec))
            crops = cut_crops(load_image(IMAGE), loaded.model.crop_spec)
            wanted = typed.finish(oracle.generate(request, crops).complete())
            assert near(model.query(**asked(form))) == near(wanted)


@pytest.mark.parametrize("choices", [["yes", "no"], ["a", "b", "ab", "abc", "abd", "ac", "bcd"], ["mug"]])
def test_scores_are_the_products_of_the_probabilities_along_each_spelling(
    model: VisionModel, choices: list[str]
) -> None:
    found = model.query(IMAGE, "why?", choices=choices)

    assert found["scores"] == pytest.approx(brute(choices), abs=1e-5)
    assert math.fsum(found["scores"].values()) == pytest.approx(1.0)
    assert found["answer"] == max(found["scores"], key=found["scores"].__getitem__)


def brute(choices: list[str]) -> dict[str, float]:
    """Score every spelling with the oracle, position by position."""
    loaded = double()
    prompts, runner = loaded.prompts, PlainEngine(loaded.model, CPU, torch.float64).runner
    crops = cut_crops(load_image(IMAGE), loaded.model.crop_spec)
    prompt = prompts.query("why?", reasoning=False, refs=())
    end = prompts.vocabulary.end
    spelled = {(*prompts.spell(space + choice), end): choice for choice in choices for space in ("", " ")}
    scores = dict.fromkeys(choices, 0.0)
    for ids, choice in spelled.items():
        cache = runner.new_cache(loaded.model.shape.max_context)
        runner.prefill_image(cache, runner.encode(crops.pixels, crops.tiling))
        hidden, share = runner.extend(cache, prompt), 1.0
        for place, index in enumerate(ids):
            ways = tuple({other[place] for other in spelled if other[:place] == ids[:place]})
            token = runner.next_token(hidden, Allowed(ways, scored=ways), Sampler(SamplingSettings()))
            share *= token.scores[ways.index(index)]
            hidden = runner.extend(cache, (Token(index),))
        scores[choice] += share
    return scores


def test_choices_are_scored_without_compiling_and_with_few_encodings(
    compilers: list[FakeCompiler], model: VisionModel
) -> None:
    model.query(IMAGE, "why?", choices=["a", "b", "ab", "abc", "abd"])

    assert counters(model)["steps"]["encode"] == 1
    assert counters(model)["requests_submitted"] > 1
    assert compilers[0].asked == []


def test_the_image_is_encoded_while_its_grammar_is_compiled(
    slow: list[FakeCompiler], model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = Gate(monkeypatch, network(model).vision, "encode")
    for ask in (lambda: model.query(**asked({"schema": Thing})), lambda: run(model.aquery(**asked({"schema": Thing})))):
        waiting = on_thread(ask)
        if encoded.calls < 2:
            encoded.wait()  # with nothing compiled
            encoded.open()
        while not slow[0].asked or slow[0].asked[-1][1].done():
            assert not waiting.done()
        slow[0].finish()
        answer = waiting.result(GUARD)
        assert isinstance(answer["answer"], Thing)
    assert encoded.calls == 1


def test_a_compiled_schema_is_not_compiled_again(compilers: list[FakeCompiler], model: VisionModel) -> None:
    model.query(**asked({"schema": Thing}))

    assert counters(model)["requests_submitted"] == 1


def test_cache_salt_and_caller_reach_the_compiler(compilers: list[FakeCompiler], model: VisionModel) -> None:
    form = asked({"regex": "a+"})
    model.query(**form)
    model.query(**form, cache_salt="tenant")
    run(model.aquery(**form, cache_salt="tenant", caller="robot"))
    model.batch([{"skill": "query", **form, "caller": "robot"}])
    "".join(model.query(**form, cache_salt="tenant", stream=True)["answer"])

    [compiler] = compilers
    tenant = ("tenant", "tenant")
    assert compiler.callers == [("", ""), tenant, ("tenant", "robot"), ("", "robot"), tenant]


def test_without_a_prefix_cache_the_image_is_not_encoded_ahead(slow: list[FakeCompiler]) -> None:
    with serve(prefix_caching=False) as model:
        waiting = on_thread(lambda: model.query(**asked({"schema": Thing})))
        while not slow[0].asked:
            assert not waiting.done()
        slow[0].finish()
        waiting.result(GUARD)
        assert counters(model)["requests_submitted"] == 1


Ask = Callable[[VisionModel, dict[str, Any]], Any]
WAYS: list[Ask] = [
    lambda model, form: model.query(**asked(form)),
    lambda model, form: model.query(**asked(form), stream=True),
    lambda model, form: run(model.aquery(**asked(form))),
    lambda model, form: run(model.aquery(**asked(form), stream=True)),
    lambda model, form: model.batch([{"skill": "query", **asked(form)}], errors="raise"),
]
UNENFORCED = {"type": "number", "multipleOf": 0.3}


@pytest.mark.parametrize("ask", WAYS)
def test_an_unenforceable_keyword_is_refused_by_name(
    compilers: list[FakeCompiler], model: VisionModel, ask: Ask
) -> None:
    with pytest.raises(SchemaError, match="multipleOf") as raised:
        ask(model, {"schema": UNENFORCED})
    assert raised.value.keyword == "multipleOf"
    settle(model)  # the thread that told it may not have ended its call yet
    assert model.open_requests == 0


def test_errors_of_typed_tasks_keep_their_index_in_a_batch(compilers: list[FakeCompiler], model: VisionModel) -> None:
    forms: list[dict[str, Any]] = [{"schema": UNENFORCED}, {"regex": "[0-9]"}, {"choices": []}, {"schema": Thing}]
    found = model.batch([{"skill": "query", **asked(form)} for form in forms], errors="return")

    assert [type(one).__name__ for one in found] == ["SchemaError", "Answer", "GrammarError", "Answer"]
    with pytest.raises(InputError, match="stream"):
        model.batch([{"skill": "query", **asked({"regex": "a"}), "stream": True}], errors="raise")


def test_a_bad_question_is_reported_before_compiling(compilers: list[FakeCompiler], model: VisionModel) -> None:
    with pytest.raises(PromptError):
        model.query(IMAGE, " ", schema=Thing)
    with pytest.raises(GrammarError, match="were given"):
        model.query(IMAGE, "why?", schema=Thing, regex="a")
    with pytest.raises(GrammarError, match="max_tokens"):
        model.query(IMAGE, "why?", schema=Thing, settings={"max_tokens": 3})
    assert len(compilers) == 1


@pytest.mark.parametrize("ask", WAYS)
def test_a_deadline_includes_the_time_of_compiling(
    slow: list[FakeCompiler], model: VisionModel, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    query = model.query
    monkeypatch.setattr(model, "query", lambda **given: query(**given, deadline_s=0.05))
    aquery = model.aquery
    monkeypatch.setattr(model, "aquery", lambda **given: aquery(**given, deadline_s=0.05))
    batch = model.batch
    monkeypatch.setattr(
        model, "batch", lambda tasks, **given: batch([{**task, "deadline_s": 0.05} for task in tasks], **given)
    )
    while not slow[0].asked:  # on a busy machine the deadline may pass before it is asked
        with pytest.raises(DeadlineError):
            on_thread(lambda: ask(model, {"schema": Thing})).result(GUARD)
        settle(model)

    assert slow[0].asked[0][1].cancelled()


def test_cancelling_a_request_cancels_its_compilation(slow: list[FakeCompiler], model: VisionModel) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(model.aquery(**asked({"schema": Thing})))
        while not slow[0].asked:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    assert slow[0].asked[0][1].cancelled()
    assert model.open_requests == 0


def test_cancelling_a_request_cancels_its_follow_ups(model: VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, network(model), "logits", at=4)
    choices = ["abcdef", "abcdeg", "bcdefg", "bcdefh", "cdefgh", "cdefgi"]

    async def main() -> None:
        task = asyncio.ensure_future(model.aquery(IMAGE, "why?", choices=choices))
        await gate.wait_async()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    gate.open()
    assert model.query(IMAGE, "why?", choices=choices)["scores"] == pytest.approx(brute(choices), abs=1e-5)
    assert model.metrics()["gauges"]["running"] == 0


def test_closing_finishes_requests_that_wait_for_a_grammar(
    slow: list[FakeCompiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = serve()
    waiting = on_thread(lambda: run(model.aquery(**asked({"schema": Thing}))))
    while not (slow[0].asked and model._session.open):
        assert not waiting.done()
    waits = Gate(monkeypatch, concurrent.futures, "wait")
    closing = on_thread(model.close)
    waits.wait()
    waits.open()
    slow[0].finish()

    assert isinstance(waiting.result(GUARD)["answer"], Thing)
    closing.result(GUARD)
    assert slow[0].closed == 1


def test_closing_finishes_choices_with_their_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    model = serve()
    gate = Gate(monkeypatch, network(model), "logits")
    waiting = on_thread(lambda: model.query(IMAGE, "why?", choices=["abc", "abd", "b", "bc"]))
    gate.wait()
    drain = Gate(monkeypatch, model._session, "_drain")
    closing = on_thread(model.close)
    drain.wait()
    drain.open()
    gate.open()

    assert math.fsum(waiting.result(GUARD)["scores"].values()) == pytest.approx(1.0)
    closing.result(GUARD)


def test_closing_without_draining_fails_requests_that_wait_for_a_grammar(slow: list[FakeCompiler]) -> None:
    model = serve()
    waiting = on_thread(lambda: model.query(**asked({"schema": Thing})))
    while not counters(model)["requests_submitted"]:  # its image is encoded while its grammar is compiled
        assert not waiting.done()
    model.close(drain=False)

    with pytest.raises(ModelError, match="closed"):
        waiting.result(GUARD)
    with pytest.raises(ModelError, match="closed"):
        model.query(**asked({"schema": Thing}))


LATE = {"skill": "query", "image": IMAGE, "question": "why?", "regex": "[ab]"}


def test_neither_choices_nor_a_late_grammar_keep_the_engine_alive(slow: list[FakeCompiler]) -> None:
    model = serve()
    engine = weakref.ref(model._session.engine)
    gc.disable()  # nor wait for the collector of cycles
    try:
        stream = model.query(IMAGE, "why?", stream=True, choices=["ab", "ac", "b", "ba", "bab"])
        assert list(stream["answer"])
        late = model._session.launch(task_from_mapping(model._building, LATE))
        settle(model)
        slow[0].finish()
        late.result()
        model.close()
        del model, late
        assert engine() is None
        assert stream["scores"]
    finally:
        gc.enable()


@pytest.mark.parametrize("image", [IMAGE, None])
def test_a_pattern_that_allows_only_the_empty_text_gives_it(
    image: Any, compilers: list[FakeCompiler], model: VisionModel
) -> None:
    assert model.query(image, "why?", regex="") == {"answer": ""}
    assert list(model.query(image, "why?", regex="", stream=True)["answer"]) == []
    assert model.query(image, "why?", regex="", reasoning=True, settings={"max_tokens": 3})["answer"] == ""


def test_boxes_in_answers_need_a_checkpoint_with_detect(
    compilers: list[FakeCompiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = double()
    skills = tuple(skill for skill in loaded.prompts.skills if skill not in ("detect", "point"))
    monkeypatch.setattr(loaded.prompts, "skills", skills)
    with serve(loaded) as model:
        with pytest.raises(UnsupportedSkillError, match="boxes"):
            model.query(**asked({"schema": Thing}))
        assert model.query(**asked({"schema": bool}))["answer"] in (True, False)


@pytest.mark.parametrize("way", ["query", "aquery"])
def test_closing_without_draining_ends_a_scored_choice(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    further = ChoiceQuestion.further
    with serve() as model:

        def close_first(self: ChoiceQuestion, begun: Any, completion: Any) -> Any:
            model._session.engine._loop.stop(drain=False)
            return further(self, begun, completion)

        monkeypatch.setattr(ChoiceQuestion, "further", close_first)
        asked = {"image": IMAGE, "question": "why?", "choices": ["ab", "ac", "b"]}
        with pytest.raises(ModelError, match="the model is closed: load it again"):
            model.query(**asked) if way == "query" else asyncio.run(model.aquery(**asked))


class Picky(Thing):
    """Refuses as many answers as are left in `refusals`."""

    refusals: ClassVar[list[str]] = []

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Picky":
        if self.refusals:
            raise ValueError(self.refusals.pop())
        return self


@pytest.fixture
def roomy() -> Iterator[VisionModel]:
    """A model whose context has room for notes about refused answers."""
    with serve(double(tiny_config(text={"max_context": 400}))) as model:
        yield model


WAYS: dict[str, Callable[..., Any]] = {
    "query": lambda model, **asked: model.query(**asked),
    "aquery": lambda model, **asked: run(model.aquery(**asked)),
    "batch": lambda model, **asked: model.batch([{"skill": "query", **asked}], errors="raise")[0],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_refused_answer_is_asked_for_again(compilers: list[FakeCompiler], roomy: VisionModel, way: str) -> None:
    form = asked({"schema": Picky, "retries": 2})
    once = roomy.query(**form).metrics
    encodings = counters(roomy)["steps"]["encode"]
    Picky.refusals[:] = ["too small", "too large"]

    found = WAYS[way](roomy, **form)

    assert isinstance(found["answer"], Picky)
    assert (Picky.refusals, counters(roomy)["requests_submitted"]) == ([], 4)
    assert found.metrics.output_tokens > once.output_tokens
    assert counters(roomy)["steps"]["encode"] == encodings
    assert len(compilers[0].asked) == 2
    assert roomy.open_requests == 0


def test_the_last_answer_that_is_refused_is_an_error(compilers: list[FakeCompiler], roomy: VisionModel) -> None:
    Picky.refusals[:] = ["never reached", "too small", "too large"]
    with pytest.raises(SchemaError, match="too small"):
        roomy.query(**asked({"schema": Picky, "retries": 1}))
    with pytest.raises(SchemaError, match="never reached"):
        roomy.query(**asked({"schema": Picky}))


def test_the_deadline_covers_all_tries(
    compilers: list[FakeCompiler], roomy: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    further = TypedQuestion.further

    def late(self: TypedQuestion, tries: Any, completion: Any) -> Any:
        found = further(self, tries, completion)
        if found:
            handle = next(iter(roomy._session.open))
            handle.begun -= GUARD  # the first try has taken so long
        return found

    monkeypatch.setattr(TypedQuestion, "further", late)
    Picky.refusals[:] = ["too small"]
    with pytest.raises(DeadlineError, match=f"within {GUARD:g} s"):
        roomy.query(**asked({"schema": Picky, "retries": 1}), deadline_s=GUARD)


def test_typed_answers_take_cache_salt_and_realtime(compilers: list[FakeCompiler], model: VisionModel) -> None:
    plain = model.query(**asked({"schema": Thing}))
    assert near(model.query(**asked({"schema": Thing}), cache_salt="a", realtime=True)) == near(plain)
    assert near(model.query(**asked({"schema": Thing}) | {"image": model.encode_image(IMAGE)})) == near(plain)
    assert model.query(None, "why?", regex="[ab]")["answer"] in ("a", "b")
    scores = model.query(IMAGE, "why?", choices=["ab", "ac", "b"], cache_salt="a", realtime=True)["scores"]
    assert scores == pytest.approx(brute(["ab", "ac", "b"]), abs=1e-5)


def test_engine_settings_reach_the_compiler(compilers: list[FakeCompiler]) -> None:
    with serve(grammar_workers=3, grammar_limit_s=0.5, grammar_cache_bytes=10) as model:
        model.query(**asked({"regex": "a|b"}))
        model.query(**asked({"regex": "a|b"}))
    assert [one.options for one in compilers] == [{"workers": 3, "limit_s": 0.5, "cache_bytes": 10}]
    assert compilers[0].closed == 1


@pytest.mark.long
def test_a_real_compiler_works_in_another_process() -> None:
    with serve(grammar_limit_s=GUARD) as model:  # a busy machine may take more than `PATIENCE` allows
        check_real_compiler(model)


def check_real_compiler(model: VisionModel) -> None:
    answers = model.batch([{"skill": "query", **asked({"schema": Thing, "image": make_image(n)})} for n in range(3)])
    assert all(isinstance(answer["answer"], Thing) for answer in answers)
    with pytest.raises(SchemaError, match="multipleOf") as raised:
        model.query(**asked({"schema": UNENFORCED}))
    assert (raised.value.keyword, raised.value.where) == ("multipleOf", "")
    assert set(model.query(**asked({"schema": dict, "settings": {"max_tokens": 20}}))) == {"answer", "text"}
