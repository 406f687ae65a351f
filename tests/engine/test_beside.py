"""Images that are encoded beside the other steps."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import photonlite
from photonlite.batch import Step
from photonlite.errors import EngineDiedError, RequestCancelledError, StepError
from photonlite.request import Token
from photonlite.scheduler import images as scheduler_images
from photonlite.scheduler.limits import LaunchModel, RunCost
from photonlite.scheduler.parts import PartSpeeds, PartTable
from photonlite.scheduler.realtime import BULK_TURN, RealtimePolicy
from tests.engine.fakes import END, PREFIX, Bench, FakeImage, FakeSink, ends_at
from tests.models.qwen import tiny as qwen
from tests.serving import GUARD, counters, make_image, on_thread

DESK = Path(__file__).parents[2] / "assets/desk.png"


def beside(length: int = 60, **options: Any) -> Bench:
    """A bench whose encode steps end only when they are waited for."""
    bench = Bench(ends_at(length), encodes_beside=True, **options)
    bench.runner.encodes_last = True
    return bench


def kinds(bench: Bench) -> list[str]:
    return [step.kind for step in bench.runner.steps]


def encoded(bench: Bench) -> list[list[str]]:
    """Images of each encode step."""
    return [[group.job.key for group in step.plan.groups] for step in bench.runner.steps if step.kind == "encode"]


def urgent(bench: Bench) -> RealtimePolicy:
    bench.scheduler.prioritise()
    policy = bench.scheduler.policy
    assert isinstance(policy, RealtimePolicy)
    return policy


def test_decoding_goes_on_while_an_image_is_encoded_and_its_prompt_waits_for_the_end() -> None:
    bench = beside()
    bench.ask()
    bench.core.tick()
    bench.ask(image=FakeImage("a"))
    for _ in range(10):
        bench.core.tick()
    assert kinds(bench) == ["prefill", "decode", "encode", *["decode"] * 9]
    bench.runner.encodes_last = False
    bench.core.tick()

    assert kinds(bench)[-1] == "prefill"
    bench.run()
    assert [len(one.tokens) for one in bench.sequences] == [60, 60]
    assert bench.core.metrics.steps["encode"] == 1
    assert bench.everything_is_free()


def divided(length: int = 60, **options: Any) -> Bench:
    """A bench that decodes, and knows that a crop takes as long as a step."""
    bench = beside(length, divides=True, **options)
    bench.runner.per_crop = bench.runner.per_position = 0.001
    bench.ask()
    bench.core.tick()
    bench.scheduler.policy.crops.observe(3, 0.003)
    for _ in range(3):
        bench.core.tick()
    bench.runner.steps.clear()
    return bench


def launched(bench: Bench) -> list[tuple[str, bool, bool]]:
    """Kinds of steps, whether they run beside others or know that these do, and whether images have a part."""
    return [
        (one.kind, bool(one.rows) and (one.plan.beside or one.beside), one.plan.in_part) for one in bench.runner.steps
    ]


@pytest.mark.parametrize("fails", [False, True], ids=["launched", "failing"])
def test_a_prompt_that_is_cancelled_between_the_launches_of_a_tick_keeps_its_pages_until_its_step_has_ended(
    fails: bool,
) -> None:
    bench = divided()
    sink = bench.ask(image=FakeImage("a"))
    bench.runner.encodes_last = False
    cancelled = bench.sequences[-1]
    held: list[int] = []
    launch = bench.runner.launch

    def launch_and_cancel(step: Step) -> None:
        if step.rows and step.plan.beside:
            held.extend(cancelled.pages)
            if fails:
                raise RuntimeError("it fails")
        launch(step)
        if cancelled.beside:  # its prompt is planned behind this step
            bench.core.cancel(cancelled)

    bench.runner.launch = launch_and_cancel  # type: ignore[method-assign]
    bench.run()

    assert held
    assert isinstance(sink.ends[0].error, RequestCancelledError)
    assert bench.sequences[0].tokens[-1].id == END
    assert bench.everything_is_free()


def test_a_prompt_runs_behind_its_image_in_the_encoders_part_and_its_last_position_is_decoded() -> None:
    bench = divided()
    sink = bench.ask(image=FakeImage("a"))
    bench.core.tick()  # a step and behind it the encoding, which overtakes
    bench.core.tick()
    bench.runner.encodes_last = False
    bench.core.tick()
    bench.runner.encodes_last = True
    bench.core.tick()
    assert launched(bench) == [
        ("decode", True, False), ("encode", False, True), ("decode", True, False),
        ("decode", True, False), ("prefill", True, False), ("decode", True, False),
    ]  # fmt: skip
    (row,) = bench.runner.steps[4].rows
    assert (row.start, row.count, row.index) == (0, PREFIX + 1, None)
    bench.runner.encodes_last = False
    bench.core.tick()

    assert [(row.start, row.index) for row in bench.runner.steps[-1].rows] == [(10, 8), (PREFIX + 1, 0)]
    assert not bench.runner.steps[-1].beside
    blocks = [bench.cache.prefix.lookup(link.key) for link in bench.sequences[1].links or ()]
    assert [block and block.end for block in blocks] == [PREFIX, None], "position 11 is about to be computed"
    bench.run()
    assert len(sink.tokens) == 60
    assert bench.sequences[1].times.prefill_s > 0
    assert bench.everything_is_free()


def use_table(bench: Bench, **speeds: PartSpeeds) -> None:
    """Give the scheduler speeds in parts beside one row that decodes, and beside three."""
    policy = bench.scheduler.policy
    table = PartTable({1: speeds["one"], 3: speeds["three"]})
    policy.limits = policy.images.limits = dataclasses.replace(policy.limits, parts=table)


@pytest.mark.parametrize("more", [0, 2])
@pytest.mark.parametrize("many_pay", [True, False])
def test_images_have_a_part_where_that_pays_by_the_table_for_the_rows_that_decode(more: int, many_pay: bool) -> None:
    bench = divided()
    good, bad = PartSpeeds(0.6, 0.6), PartSpeeds(0.4, 0.4)
    use_table(bench, one=bad if many_pay else good, three=good if many_pay else bad)
    for _ in range(more):
        bench.ask()
    for _ in range(3):
        bench.core.tick()
    assert len(bench.scheduler.running.decoding()) == 1 + more
    bench.ask(image=FakeImage("a"))
    bench.core.tick()
    bench.core.tick()

    (step,) = [one for one in bench.runner.steps if one.kind == "encode"]
    assert step.plan.in_part == (many_pay == (more == 2))
    assert step.plan.beside == step.plan.in_part


def test_what_runs_in_a_part_is_counted_as_on_the_whole_card() -> None:
    bench = divided()
    use_table(bench, one=PartSpeeds(0.5, 0.75), three=PartSpeeds(0.1, 0.1))
    bench.ask(image=FakeImage("a"))
    bench.core.tick()
    decode, encode = bench.runner.steps[-2:]
    policy = bench.scheduler.policy
    policy.run_cost, policy.crops = RunCost(), LaunchModel(8)
    decode.in_part, decode.device_s, encode.device_s = True, 0.004, 0.030
    policy.observe(decode)
    policy.observe(encode)

    assert encode.plan.in_part
    assert policy.run_cost.decode_s == pytest.approx(0.003)
    assert policy.crops.cost(encode.plan.crops) == pytest.approx(0.015)


@pytest.mark.parametrize("call", ["launch", "collect"])
def test_a_prompt_that_fails_in_the_encoders_part_ends_its_request_alone(call: str) -> None:
    bench = divided(9)
    bench.runner.encodes_last = False
    bench.ask(image=FakeImage("a"))
    bench.core.tick()
    number = next(step.number for step in bench.runner.steps if step.kind == "encode")
    bench.runner.fails = {(call, number + 2)}  # behind a decode step
    bench.run()

    assert [type(one.error) for one in bench.sequences] == [type(None), StepError]
    assert bench.everything_is_free()


def test_a_request_whose_prompt_is_computed_beside_others_may_be_cancelled() -> None:
    bench = divided()
    bench.ask(image=FakeImage("a"))
    bench.core.tick()
    bench.runner.encodes_last = False
    bench.core.tick()
    bench.runner.encodes_last = True
    assert launched(bench)[-1] == ("prefill", True, False)
    bench.core.cancel(bench.sequences[1])
    bench.core.tick()
    assert bench.scheduler.running.zombies == {bench.sequences[1]}
    bench.run()

    assert bench.everything_is_free()


def test_images_are_encoded_in_turn_where_little_decodes() -> None:
    bench = divided(60)
    bench.scheduler.policy.crops.observe(3, 100.0)  # far longer than what decodes
    bench.ask(image=FakeImage("a"))
    for _ in range(3):
        bench.core.tick()
    assert kinds(bench) == ["encode", "decode", "encode"]
    collected = [number for call, number in bench.runner.calls if call == "collect"]
    assert collected[-2:] == [step.number for step in bench.runner.steps[:2]], "as every launch needs a place"
    bench.run()

    assert not any(beside for _, beside, _ in launched(bench))
    assert bench.everything_is_free()


def test_an_image_in_turn_that_fails_ends_the_request_whose_prompt_is_launched() -> None:
    bench = divided(60)
    bench.scheduler.policy.crops.observe(3, 100.0)
    bench.ask(image=FakeImage("a"))
    bench.core.tick()
    bench.runner.fails = {("collect", bench.runner.steps[0].number)}
    bench.run()

    assert [type(one.error) for one in bench.sequences] == [type(None), StepError]
    assert bench.everything_is_free()


@pytest.mark.parametrize("left", ["little", "a text", "a place"])
def test_prompts_run_on_the_whole_card_where_little_decodes_or_no_step_could_go_on(left: str) -> None:
    bench = divided(4 if left == "little" else 60)
    if left == "little":
        bench.sequences[0].budget = 7
    bench.runner.encodes_last = False
    if left == "a text":
        bench.ask()
    else:
        bench.ask(image=FakeImage("a"))
    if left == "a place":
        bench.sequences[1].prompt = (Token(1), Token(5, (0.5,)))
    bench.run()

    assert ("prefill", False, False) in launched(bench)
    assert bench.core.metrics.steps["prefill"] == 2
    assert bench.everything_is_free()


def test_the_engine_waits_for_an_encode_step_where_there_is_nothing_else_to_do() -> None:
    bench = beside(2)
    sink = bench.ask(image=FakeImage("a"))
    assert bench.core.tick()
    assert not bench.core.idle
    assert [step.kind for step in bench.core.in_flight] == ["encode"]
    assert bench.core.tick()
    assert bench.core.tick()
    bench.run()

    assert kinds(bench)[:2] == ["encode", "prefill"]
    assert len(sink.ends) == 1
    assert bench.core.idle


def test_a_cancelled_request_leaves_the_engine_busy_until_its_image_is_encoded() -> None:
    bench = beside()
    bench.ask(image=FakeImage("a"))
    bench.core.tick()
    bench.core.cancel(bench.sequences[0])
    assert not bench.core.open
    assert not bench.core.idle
    bench.run()

    assert [job.key for job in bench.runner.forgotten] == ["a"]
    assert bench.core.idle
    assert bench.everything_is_free()


def test_at_most_two_encode_steps_are_in_flight() -> None:
    bench = beside()
    bench.ask()
    bench.core.tick()
    for number in range(6):
        bench.ask(image=FakeImage(str(number)))
    for _ in range(6):
        bench.core.tick()

    assert len(encoded(bench)) == 2
    assert {step.slot for step in bench.core.encodings.in_flight} == {0, 1}


def test_images_are_cut_while_there_is_no_room_to_encode_them() -> None:
    bench = beside()
    bench.ask()
    for number in range(6):
        bench.ask(image=FakeImage(str(number)))
    for _ in range(4):
        bench.core.tick()
    assert bench.core.encodings.full
    late = FakeImage("late", cut=False)
    bench.ask(image=late)
    bench.core.tick()

    assert late.asked


def test_no_bulk_prompt_comes_between_a_realtime_image_and_its_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = beside()
    policy = urgent(bench)
    monkeypatch.setattr(policy.arrivals, "idle_until", lambda *_, **__: None)
    bench.ask()
    bench.core.tick()
    robot = FakeImage("robot")
    bench.ask(image=robot, realtime=True)
    bench.core.tick()
    for _ in range(3):
        bench.ask()
    for _ in range(4):
        bench.core.tick()
    assert kinds(bench) == ["prefill", "decode", "encode", *["decode"] * 4]
    bench.runner.encodes_last = False
    bench.core.tick()

    assert [row.sequence.number for row in bench.runner.steps[-1].rows] == [1]


@pytest.mark.parametrize("call", ["launch", "collect"])
def test_a_failing_encode_step_ends_the_requests_about_its_images_alone(call: str) -> None:
    bench = beside(9)
    bench.ask()
    bench.core.tick()
    bench.ask(image=FakeImage("a"))
    bench.runner.fails = {(call, 2)}  # behind a prompt and a decode step
    bench.core.tick()
    bench.runner.encodes_last = False
    bench.run()

    assert bench.runner.steps[-1].kind == "decode"
    assert [type(one.error) for one in bench.sequences] == [type(None), StepError]
    assert [job.key for job in bench.runner.forgotten] == ["a"]
    assert bench.everything_is_free()


def test_the_engine_dies_of_three_encode_steps_that_fail_in_a_row() -> None:
    bench = beside()
    bench.runner.fails = {("collect", number) for number in range(9)}
    for number in range(9):
        bench.ask(image=FakeImage(str(number)))
    with pytest.raises(EngineDiedError):
        bench.run()


def realtime(waiting: int) -> Bench:
    """A bulk request is decoded, and images of further ones wait."""
    bench = beside(400)
    bench.ask()
    bench.core.tick()
    for number in range(waiting):
        bench.ask(image=FakeImage(f"bulk {number}"))
    bench.runner.encodes_last = False
    return bench


def test_realtime_images_are_encoded_first_and_bulk_ones_have_their_turns() -> None:
    bench = beside(2)
    urgent(bench)
    bench.ask(image=FakeImage("bulk"))
    for number in range(3 * BULK_TURN):
        bench.ask(image=FakeImage(f"robot {number}"), realtime=True)
    bench.run()
    order = encoded(bench)
    place = next(index for index, images in enumerate(order) if images == ["bulk"])

    assert place == BULK_TURN
    assert all("robot" in images[0] for images in order[:place])


@pytest.mark.parametrize(("near", "crops"), [(False, 6), (True, 2)])
def test_a_launch_of_bulk_images_is_short_while_realtime_requests_are_near(near: bool, crops: int) -> None:
    bench = realtime(4)
    urgent(bench).is_near = lambda now: near  # type: ignore[method-assign]
    bench.scheduler.policy.crops.per_unit = 0.002  # and 4 ms are allowed
    bench.core.tick()

    assert [step.plan.crops for step in bench.core.encodings.in_flight] == [crops]


def test_no_bulk_image_is_launched_in_the_moments_before_a_realtime_one() -> None:
    bench = realtime(1)
    policy = urgent(bench)
    policy.arrivals.idle_until = lambda *args, **options: 1e9  # type: ignore[method-assign]
    bench.core.tick()
    assert not encoded(bench)
    policy._overtaking_encodings = BULK_TURN
    bench.core.tick()

    assert encoded(bench) == [["bulk 0"]]


def reserved(monkeypatch: pytest.MonkeyPatch, *, idle_until: float | None = None) -> tuple[Bench, RealtimePolicy]:
    """A divided bench that decodes, whose bulk images keep to their part: a real-time request is near."""
    bench = divided(realtime_part=True)
    policy = urgent(bench)
    monkeypatch.setattr(policy, "is_near", lambda now: True)
    monkeypatch.setattr(policy.arrivals, "idle_until", lambda *_, **__: idle_until)
    return bench, policy


def lanes(bench: Bench, kind: str) -> list[tuple[str, bool]]:
    """Images of encode steps, or numbers of prompts, and whether they ran beside the other steps."""
    steps = [step for step in bench.runner.steps if step.kind == kind]
    images = [(group.job.key, step.plan.beside) for step in steps for group in step.plan.groups]
    return images + [(str(row.sequence.number), step.plan.beside) for step in steps for row in step.rows]


@pytest.mark.parametrize("idle_until", [None, 1e9], ids=["near", "about to come"])
def test_realtime_images_take_turns_while_bulk_ones_are_encoded_in_their_part(
    idle_until: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, _ = reserved(monkeypatch, idle_until=idle_until)
    bench.scheduler.policy.crops.observe(3, 100.0)  # so parts would not pay
    bench.ask(image=FakeImage("bulk"))
    bench.ask(image=FakeImage("robot"), realtime=True)
    bench.core.tick()
    assert [step.plan.crops for step in bench.core.encodings.in_flight] == [3], "however long it takes"
    bench.runner.encodes_last = False
    bench.run()

    assert set(lanes(bench, "encode")) == {("robot", False), ("bulk", True)}
    assert sorted(lanes(bench, "prefill")) == [("1", True), ("2", False)]
    assert bench.everything_is_free()


@pytest.mark.parametrize(
    ("deadline", "how", "turns"),
    [
        (0.0, "waits", True),
        (0.0, "taken back", True),
        (0.0, "done", True),
        (1e9, "taken back", False),
        (1e9, "done", False),
        (None, "taken back", False),
    ],
)
def test_bulk_images_take_turns_once_realtime_requests_were_late_beside_them(
    deadline: float | None, how: str, turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, policy = reserved(monkeypatch)
    bench.ask(image=FakeImage("beside"))
    bench.core.tick()
    assert lanes(bench, "encode") == [("beside", True)]
    for number in range(2):
        bench.ask(realtime=True, deadline=None if deadline is None else deadline + number)
        if how == "waits":
            bench.core.tick()
        elif how == "taken back":
            bench.core.cancel(bench.sequences[-1])
        else:
            bench.scheduler.finish(bench.sequences[-1], bench.clock())
    bench.runner.encodes_last = False
    bench.ask(image=FakeImage("bulk"))
    for _ in range(40):
        bench.core.tick()

    assert policy.part.holds(bench.clock()) != turns
    assert set(lanes(bench, "encode")) == {("beside", True), ("bulk", not turns)}


@pytest.mark.parametrize(("error", "holds"), [(None, False), (RequestCancelledError("no longer wanted"), True)])
def test_answers_that_are_hardly_in_time_end_a_trial_and_requests_taken_back_then_do_not(
    error: Exception | None, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, policy = reserved(monkeypatch)
    bench.ask(image=FakeImage("beside"))
    bench.core.tick()
    for number in range(2):
        deadline = 1e6 + number
        bench.ask(realtime=True, deadline=deadline)
        bench.sequences[-1].error = error
        bench.scheduler.finish(bench.sequences[-1], deadline - 0.001)

    assert policy.part.holds(1e6) == holds


def test_fifteen_answers_in_time_of_sixteen_keep_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, policy = reserved(monkeypatch)
    bench.ask(image=FakeImage("beside"))
    bench.core.tick()
    for number in range(48):
        bench.ask(realtime=True, deadline=1e9 + number if number % 16 else -1.0 - number)
        bench.scheduler.finish(bench.sequences[-1], bench.clock())
    assert policy.part.holds(bench.clock())
    bench.ask(realtime=True, deadline=-100.0)
    bench.scheduler.finish(bench.sequences[-1], bench.clock())
    assert policy.part.holds(bench.clock()), "the last late one was sixteen before"
    bench.ask(realtime=True, deadline=-101.0)
    bench.scheduler.finish(bench.sequences[-1], bench.clock())

    assert not policy.part.holds(bench.clock())


def test_late_requests_say_nothing_of_the_part_while_no_bulk_work_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, policy = reserved(monkeypatch)
    bench.ask(image=FakeImage("never cut", cut=False))
    for number in range(40):
        bench.ask()
        bench.ask(realtime=True, deadline=float(number))
        bench.core.tick()

    assert policy.part.holds(bench.clock())


def test_a_bulk_prompt_keeps_to_its_part_where_nothing_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = reserved(monkeypatch)
    bench.core.cancel(bench.sequences[0])
    bench.run()
    bench.runner.encodes_last = False
    bench.ask(image=FakeImage("a"))
    bench.run()

    assert lanes(bench, "prefill") == [("1", True)]
    assert bench.everything_is_free()


def test_a_bulk_prompt_keeps_to_its_part_though_it_is_bulks_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, policy = reserved(monkeypatch)
    bench.runner.encodes_last = False
    bench.ask(image=FakeImage("late", cut=False), realtime=True)
    bench.ask(image=FakeImage("a"))
    for _ in range(4):
        policy._overtaking_launches = BULK_TURN
        bench.core.tick()

    assert lanes(bench, "prefill") == [("2", True)]


@pytest.mark.parametrize("more", ["nothing", "a text"])
def test_bulk_prompts_in_their_part_take_no_turn_of_others(more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, policy = reserved(monkeypatch, idle_until=1e9)  # so that a text waits
    bench.runner.encodes_last = False
    bench.ask(image=FakeImage("a"))
    if more == "a text":
        bench.ask()
    bench.core.tick()
    policy._overtaking_launches = BULK_TURN - 1
    bench.core.tick()
    assert lanes(bench, "prefill") == [("1", True)]

    assert policy._overtaking_launches == (BULK_TURN - 1 if more == "a text" else 0)


def test_an_image_is_encoded_to_its_end_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, policy = reserved(monkeypatch)
    bench.runner.encodes_last = False
    policy.crops.observe(3, 100.0)
    near = False
    monkeypatch.setattr(policy, "is_near", lambda now: near)
    bench.ask(image=FakeImage("a"))
    bench.core.tick()
    assert lanes(bench, "encode") == [("a", False)]
    near = True
    bench.ask(image=FakeImage("b"))
    bench.run()

    assert set(lanes(bench, "encode")) == {("a", False), ("b", True)}
    assert lanes(bench, "encode").count(("a", False)) > 1
    assert lanes(bench, "prefill") == [("2", True), ("1", False)] or lanes(bench, "prefill") == [
        ("1", False),
        ("2", True),
    ]
    assert bench.everything_is_free()


def answers(model: photonlite.VisionModel, images: list[Any]) -> list[Any]:
    """Ask about images at the same time, and about each again."""
    asked = [(image, number) for number in range(3) for image in images]
    waiting = [on_thread(partial(model.query, image, "What is it, " + "and why " * number)) for image, number in asked]
    return [answer.result(GUARD)["answer"] for answer in waiting]


def engines(source: Path | None, **settings: Any) -> dict[str, photonlite.VisionModel]:
    engine: Any = {"cpu_threads": 1, "max_output_tokens": 24, "max_input_tokens": 700, **settings}
    return {
        way: photonlite.load(source, device="cpu", engine=engine | {"encoding": way}) for way in ("turns", "beside")
    }


def compare(models: dict[str, photonlite.VisionModel], images: list[Any]) -> None:
    with models["turns"] as turns, models["beside"] as model:
        expected = answers(turns, images)
        with model.trace() as trace:
            assert answers(model, images) == expected
        assert len(set(expected)) > 1
        tracks = {span.track for span in trace.spans if span.name == "encode"}
        assert tracks == {"encode"}
        assert counters(model)["steps"]["encode"] == len([span for span in trace.spans if span.name == "encode"])


@pytest.mark.long
def test_the_shipped_checkpoint_answers_the_same() -> None:
    compare(engines(None), [DESK, make_image(1, (300, 200)), make_image(2, (120, 400))])


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.skipif(not torch.cuda.is_available(), reason="parts are those of a card")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parts_of_a_card_answer_the_same(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings")
    monkeypatch.setattr(scheduler_images, "parts_pay", lambda *_: True)  # the model's answers are too short for it
    images = [make_image(number, (300, 200)) for number in range(12)]
    parts: Any = {"encoding": "beside", "encode_sms": 68}
    boxes, texts = [], []
    for settings in ({}, parts):
        engine: Any = {"kv_cache_bytes": 1 << 30, "max_output_tokens": 64, "graph_sizes": (1, 4, 16, 64), **settings}
        with photonlite.load(device="cuda", dtype=dtype, engine=engine) as model:
            others = [on_thread(partial(model.query, image, "What is it?")) for image in images]
            boxes.append(torch.as_tensor(model.detect(DESK, "banana").boxes))
            texts.append([answer.result(GUARD)["answer"] for answer in others])
            prompts = 0
            for number in range(100, 300) if settings else ():  # until steps and prompts have met encodings
                if counters(model)["steps_in_part"] and prompts:
                    break
                with model.trace() as trace:
                    asked = [on_thread(partial(model.caption, DESK, "long")) for _ in range(4)]
                    about = [make_image(4 * number + more, (300, 200)) for more in range(4)]
                    asked += [on_thread(partial(model.query, image, "What is it?")) for image in about]
                    for answer in asked:
                        answer.result(GUARD)
                prompts += sum((span.track, span.name) == ("encode", "prefill") for span in trace.spans)
            steps, in_part = counters(model)["steps"], counters(model)["steps_in_part"]
        assert (0 < in_part < steps["decode"] and prompts) if settings else in_part == 0, (steps, in_part, prompts)

    assert len(boxes[0]) == 2
    torch.testing.assert_close(boxes[1], boxes[0], rtol=0, atol=0.02)
    if dtype == "float32":  # in half precision batches of other sizes round differently
        assert texts[1] == texts[0]


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.skipif(not torch.cuda.is_available(), reason="parts are those of a card")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_part_for_realtime_requests_answers_the_same(dtype: str) -> None:
    pytest.importorskip("cuda.bindings")
    images = [make_image(number, (300, 200)) for number in range(24)]
    reserved: Any = {"encoding": "beside", "encode_sms": 36, "realtime_part": True}
    boxes, texts, spans = [], [], []
    for settings in ({}, reserved):
        engine: Any = {"kv_cache_bytes": 1 << 30, "max_output_tokens": 64, "graph_sizes": (1, 4, 16, 64), **settings}
        with photonlite.load(device="cuda", dtype=dtype, engine=engine) as model:
            model.detect(DESK, "banana", realtime=True)  # from now on one is near
            with model.trace() as trace:
                bulk = [on_thread(partial(model.query, image, "What is it?")) for image in images]
                found = []
                for number in range(200):
                    if found and all(one.done() for one in bulk):
                        break
                    model.detect(make_image(1000 + number, (300, 200)), "banana", realtime=True)
                    found.append(torch.as_tensor(model.detect(DESK, "banana", realtime=True).boxes))
                texts.append([one.result(GUARD)["answer"] for one in bulk])
            boxes.append(found)
            spans = [(span.track, span.name) for span in trace.spans]

    assert spans.count(("encode", "encode")) > 0
    assert spans.count(("encode", "prefill")) > 0
    assert spans.count(("compute", "encode")) > 0, "real-time images take turns"
    for found in (*boxes[0], *boxes[1]):
        torch.testing.assert_close(found, boxes[0][0], rtol=0, atol=0.02)
    if dtype == "float32":
        assert texts[1] == texts[0]


@pytest.mark.parametrize("pages", [13, 200], ids=["few pages", "few rows"])
def test_a_bulk_prompt_that_gets_no_place_in_its_part_takes_its_turn(pages: int) -> None:
    bench = Bench(ends_at(19), encodes_beside=True, divides=True, realtime_part=True, pages=pages, prefix_caching=False)
    bench.runner.per_crop = bench.runner.per_position = 0.001

    def feed() -> None:
        while sum(not one.ends for one in urgent) < 6:
            urgent.append(bench.ask(realtime=True, budget=20))

    urgent: list[FakeSink] = []
    feed()
    bulk = bench.ask(image=FakeImage("bulk"), budget=20)
    for _ in range(1000):
        bench.core.tick()
        feed()
        if bulk.ends:
            break

    assert bulk.ends, f"{len(urgent)} real-time requests came first"


def ask_beside_bulk(model: photonlite.VisionModel, image: Any, images: list[Any]) -> tuple[list[Any], list[Any]]:
    """Ask about one image again and again, in real time, while bulk requests about others are answered."""
    bulk = [on_thread(partial(model.query, one, "What is it, " + "and why " * 3)) for one in images]
    found = []
    while not found or not all(one.done() for one in bulk):
        found.append(model.query(image, "Is it there?", realtime=True)["answer"])
    return found, [one.result(GUARD)["answer"] for one in bulk]


@pytest.mark.parametrize("family", ["3", pytest.param(None, marks=pytest.mark.long)])
def test_answers_are_the_same_where_realtime_requests_have_a_part(family: str | None, tmp_path: Path) -> None:
    folder = None if family is None else qwen.save(qwen.reference_model(family), tmp_path, family)
    settings: Any = {"encode_sms": 68, "realtime_part": True}
    images: list[Any] = [make_image(number, (140 + 28 * number, 210)) for number in range(5)]
    images += [DESK] if family is None else []
    engine: Any = {"cpu_threads": 1, "max_output_tokens": 24, "prefix_caching": False}
    engine["max_input_tokens"] = 700 if family is None else 276
    with photonlite.load(folder, device="cpu", engine=engine) as model:
        urgent, bulk = ask_beside_bulk(model, images[0], images[1:])
    with photonlite.load(folder, device="cpu", engine=engine | {"encoding": "beside"} | settings) as model:
        model.query(images[0], "Is it there?", realtime=True)  # from now on one is near
        with model.trace() as trace:
            found, answered = ask_beside_bulk(model, images[0], images[1:])

    assert (set(found), answered) == (set(urgent), bulk)
    assert len(set(bulk)) > 1
    spans = [(span.track, span.name) for span in trace.spans]
    assert spans.count(("encode", "prefill")) > 0
    assert spans.count(("encode", "encode")) > 0
    assert spans.count(("compute", "encode")) >= len(found), "real-time images take turns"


@pytest.mark.parametrize("family", ["2.5", "3"])
def test_qwen_answers_the_same_about_several_images(family: str, tmp_path: Path) -> None:
    folder = qwen.save(qwen.reference_model(family), tmp_path, family)
    images = [make_image(number, size) for number, size in enumerate([(280, 200), (70, 50), (140, 210)])]
    compare(engines(folder, max_input_tokens=276, page_size=4), [images[:2], images[1:], images[0]])
