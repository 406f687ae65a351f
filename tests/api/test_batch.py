from collections.abc import Iterator
from typing import Any

import pytest

from photonlite.api import VisionModel
from photonlite.errors import (
    ImageDecodeError,
    InputError,
    PromptError,
    SettingsError,
    UnknownArgumentError,
)
from tests.serving import GUARD, IMAGE, SKILLS, Gate, arguments, counters, make_image, network, on_thread, run, serve


def mixed() -> list[dict[str, Any]]:
    tasks = []
    for n, skill in enumerate(SKILLS * 4):
        asked = arguments(skill, make_image(n % 5), {"max_objects": 1 + n % 3, "max_tokens": 3 + n})
        tasks.append({"skill": {"reason": "query"}.get(skill, skill), **asked})
    return tasks


@pytest.fixture
def model() -> Iterator[VisionModel]:
    with serve() as model:
        yield model


def test_a_batch_takes_conversations(model: VisionModel) -> None:
    messages = [{"role": "user", "content": "why?"}]
    [found] = model.batch([{"skill": "chat", "messages": messages, "settings": {"max_tokens": 4}}], errors="raise")
    assert found["answer"] == model.chat(messages, settings={"max_tokens": 4})["answer"]


@pytest.mark.long
@pytest.mark.parametrize("run_batch", [VisionModel.batch, lambda *a, **k: run(VisionModel.abatch(*a, **k))])
def test_a_batch_mixes_skills_and_keeps_their_order(run_batch: Any) -> None:
    with serve(max_batch=3) as model:
        alone = [getattr(model, task["skill"])(**{k: v for k, v in task.items() if k != "skill"}) for task in mixed()]

        assert run_batch(model, mixed()) == alone
        assert run_batch(model, iter(mixed())) == alone
        assert run_batch(model, []) == []


@pytest.mark.long
@pytest.mark.parametrize("run_batch", [VisionModel.batch, lambda *a, **k: run(VisionModel.abatch(*a, **k))])
def test_bad_tasks_of_a_batch_fail_alone_at_their_index(model: VisionModel, run_batch: Any) -> None:
    good = {"skill": "detect", "image": IMAGE, "object": "mug"}
    tasks = [
        good,
        {**good, "image": b"no image"},
        {**good, "object": " "},
        good,
        {**good, "skill": "fly"},
        {**good, "length": "short"},
        {"skill": "caption", "image": IMAGE, "stream": True},
        "detect",
        {**good, "deadline_s": 0},
        good,
    ]

    results = run_batch(model, tasks)

    wanted = model.detect(IMAGE, "mug")
    assert [results[0], results[3], results[9]] == [wanted] * 3
    kinds = [ImageDecodeError, PromptError, InputError, UnknownArgumentError, InputError, InputError, SettingsError]
    assert [type(results[n]) for n in (1, 2, 4, 5, 6, 7, 8)] == kinds
    assert "caption, query, chat, detect, point, segment" in str(results[4])
    assert "detect() takes no argument 'length'" in str(results[5])
    assert all(str(results[n]).startswith(f"task {n}: ") for n in (1, 2, 4, 5, 6, 7, 8))


@pytest.mark.parametrize("run_batch", [VisionModel.batch, lambda *a, **k: run(VisionModel.abatch(*a, **k))])
def test_a_batch_that_raises_cancels_its_open_requests(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch, run_batch: Any
) -> None:
    good = {"skill": "caption", "image": IMAGE, "length": "short"}
    gate = Gate(monkeypatch, network(model), "logits", at=5)
    with pytest.raises(ImageDecodeError, match=r"^task 0: "):
        run_batch(model, [{**good, "image": b"no image"}, good, good], errors="raise")
    gate.open()
    model.detect(IMAGE, "mug")

    after = counters(model)
    assert after["requests_submitted"] == after["requests_cancelled"] + after["requests_finished"]
    assert after["requests_finished"] == 1
    assert model.metrics()["gauges"]["running"] == 0


def test_a_batch_that_raises_names_the_task(model: VisionModel) -> None:
    good = {"skill": "detect", "image": IMAGE, "object": "mug"}
    for bad, error in (({"image": b"no image"}, ImageDecodeError), ({"object": ""}, PromptError)):
        with pytest.raises(error, match=r"^task 2: "):
            model.batch([good, good, good | bad, good], errors="raise")


@pytest.mark.parametrize("tasks", [5, None, {"skill": "detect"}, "detect"])
def test_tasks_must_be_a_list(model: VisionModel, tasks: Any) -> None:
    with pytest.raises(InputError, match=r"tasks is of type .*: give a list of dicts"):
        model.batch(tasks)


def test_a_misspelled_skill_gets_a_hint(model: VisionModel) -> None:
    [error] = model.batch([{"skill": "detekt", "image": IMAGE, "object": "mug"}])

    assert str(error).startswith("task 0: there is no skill 'detekt' (did you mean 'detect'?): a task is a dict")


@pytest.mark.long
def test_a_batch_prepares_images_for_its_window_only(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0

    def tasks() -> Iterator[dict[str, Any]]:
        nonlocal taken
        for _ in range(40):
            taken += 1
            yield {"skill": "detect", "image": IMAGE, "object": "mug"}

    with serve(max_batch=4) as model:
        gate = Gate(monkeypatch, network(model).vision, "encode")
        done = on_thread(lambda: model.batch(tasks()))
        gate.wait()
        assert taken <= 8
        gate.open()
        assert len(done.result(GUARD)) == taken == 40


@pytest.mark.long
def test_a_batch_shows_progress_on_request(model: VisionModel, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = [{"skill": "detect", "image": IMAGE, "object": "mug"}] * 3
    model.batch(tasks)
    assert capsys.readouterr().err == ""
    model.batch(tasks, progress=True)
    assert "3/3" in capsys.readouterr().err
    with pytest.raises(SettingsError, match="errors is 'ignore'"):
        model.batch(tasks, errors="ignore")  # type: ignore[arg-type]
