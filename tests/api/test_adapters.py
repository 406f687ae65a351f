"""Requests with adapters through the whole engine, against models whose weights have been changed."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from photonlite import VisionModel
from photonlite.api import adapters as api_adapters
from photonlite.engine.adapters import AdapterReader
from photonlite.errors import AdapterError, EngineDiedError, SettingsError, UnknownAdapterError
from photonlite.models.adapters.files import find_adapter
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.moondream.fused.decode import AdaptedDecode, FusedDecode
from photonlite.models.moondream.fused.prefill import FusedPrefill
from photonlite.runner.adapted import LONGEST
from photonlite.runner.graphs import GraphOptions, prefill_sizes
from photonlite.runner.torch_model_runner import FusedParts
from tests.adapters import adaptable, linear_sizes, merged, random_matrices, save_peft
from tests.guard import GUARD
from tests.runner.rig import Played
from tests.serving import counters, make_image, network, run, serve

RANK, ALPHA = 3, 6.0


class Served:
    """A model with two adapters, and for each name another model that has its changes in its weights."""

    def __init__(self, folder: Path, **engine: Any) -> None:
        loaded = adaptable()
        sizes = linear_sizes(loaded.model)
        self.model = serve(loaded, **engine)
        self.alone: dict[str | None, VisionModel] = {None: serve(loaded)}
        self.folders: dict[str, Path] = {}
        for seed, name in enumerate(("x", "y", "z"), start=1):
            parts = {key: size for key, size in sizes.items() if name != "y" or key.startswith("text")}
            matrices = random_matrices(parts, RANK, seed)
            self.folders[name] = save_peft(folder / name, matrices, ALPHA)
            changed = merged(loaded.model, matrices, ALPHA / RANK)
            self.alone[name] = serve(dataclasses.replace(loaded, model=changed))

    def load(self) -> None:
        for name, folder in self.folders.items():
            self.model.load_adapter(folder, name=name)

    def close(self) -> None:
        for model in (self.model, *self.alone.values()):
            model.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("adapters"), page_size=4, max_batch=6, adapter_slots=3)
    found.load()
    yield found
    found.close()


def task(number: int, adapter: str | None) -> dict[str, Any]:
    image = make_image(number % 3)
    if number % 2:
        return {"skill": "detect", "image": image, "object": "cat", "settings": {"max_objects": 4}, "adapter": adapter}
    asked = {"question": "What?", "settings": {"max_tokens": 7}}
    return {"skill": "query", "image": image, "adapter": adapter} | asked


def plain(result: Any) -> list[Any]:
    """Return what an answer says, rounded: sums of other orders differ in their last bits."""
    if "answer" in result:
        return [result["answer"]]
    keys = ("x_min", "y_min", "x_max", "y_max", "score")
    return [[round(one[key], 6) for key in keys] for one in result["objects"]]


def answers_of(served: Served, number: int, adapter: str | None) -> list[Any]:
    asked = task(number, None)
    return plain(getattr(served.alone[adapter], asked.pop("skill"))(**asked))


@pytest.mark.parametrize("adapter", ["x", "y", None])
def test_an_adapter_answers_as_a_model_with_its_weights(served: Served, adapter: str | None) -> None:
    for number in range(4):
        asked = task(number, adapter)
        found = getattr(served.model, asked.pop("skill"))(**asked)
        assert plain(found) == answers_of(served, number, adapter)
    expected = [answers_of(served, number, adapter) for number in range(4)]
    assert adapter is None or expected != [answers_of(served, number, None) for number in range(4)]


def test_adapters_in_one_batch_do_not_mix(served: Served) -> None:
    adapters = ["x", None, "y", "z", "y", "x", None, "z"]
    asked = [task(number, adapter) for number, adapter in enumerate(adapters * 3)]
    found = served.model.batch(asked, errors="raise")
    assert [plain(one) for one in found] == [
        answers_of(served, number, adapter) for number, adapter in enumerate(adapters * 3)
    ]


@pytest.mark.long
@pytest.mark.parametrize("fused", [False, True])
def test_captured_steps_read_the_slots_of_each_batch(
    fused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, page_size=4, max_batch=6, adapter_slots=2)
    runner, steps = served.model._session.engine._model_runner, []
    ladder = len(prefill_sizes(runner._model.shape.prefix_length, min(LONGEST, runner.shape.max_tokens)))
    plain_prompts: list[Any] = []  # models that ran prompts in their own operations
    if fused:
        model: Any = runner._model
        text, blocks = model.config.text, model.packed_blocks
        runner._fused = FusedParts(prompts=FusedPrefill(text, blocks), steps=FusedDecode(text, blocks))
        forward = runner._prefill._forward_plain
        monkeypatch.setattr(
            runner._prefill, "_forward_plain", lambda *given: plain_prompts.append(given[2]) or forward(*given)
        )
        call = AdaptedDecode.__call__
        monkeypatch.setattr(AdaptedDecode, "__call__", lambda *given: steps.append(given) or call(*given))
    assert runner.capture_adapters(Played()) is None  # nothing is captured at all
    runner.capture(GraphOptions((1, 2, 4, 6)), Played())
    served.load()
    report = runner.capture_adapters(Played())
    assert report is not None
    assert report.graphs == 4 + fused * ladder
    assert runner.capture_adapters(Played()) is None  # nothing has been added
    replayed: list[bool] = []
    launches: Any = runner.adapted
    bank, captured = launches.bank, launches._captured
    replay = captured.replay
    monkeypatch.setattr(captured, "replay", lambda *given: replayed.append(replay(*given)) or replayed[-1])
    adapters = ["x", None, "y", "z", "y", "x"]
    found = served.model.batch([task(number, name) for number, name in enumerate(adapters * 2)], errors="raise")
    expected = [answers_of(served, number, name) for number, name in enumerate(adapters * 2)]
    assert [plain(one) for one in found] == expected
    assert len(replayed) > 10
    assert all(replayed)
    assert not fused or len(steps) > 10
    assert bank.model not in plain_prompts
    counts = served.model._session.engine.metrics
    assert counts.graph_replays == counts.steps["decode"] > 0
    bank.generation += 1  # as after an adapter with further terms
    assert served.model.query(make_image(0), "What?", adapter="x")["answer"]
    assert not replayed[-1]
    assert not fused or plain_prompts[-1] is bank.model
    served.close()


def test_a_restarted_engine_takes_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(tmp_path)
    served.load()
    model, image = served.model, make_image(7)
    expected = model.query(image, "What?", adapter="x")["answer"]
    (served.folders["y"] / "adapter_model.safetensors").unlink()
    model._session.engine._loop.fail(EngineDiedError("for a test"))
    while model._session.engine.alive:
        model._session.engine._loop._thread.join(GUARD)
    held = model._adapters.find("x")  # by a request that goes on after its name is forgotten
    for name in served.folders:
        model.unload_adapter(name)
    monkeypatch.setattr(model._adapters, "find", lambda name: held)
    model.restart()
    assert model.query(image, "What?", adapter="x")["answer"] == expected
    served.close()


def test_an_adapter_is_loaded_to_the_engine_that_a_restart_meanwhile_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path)
    model, image = served.model, make_image(8)

    def find_slowly(source: Any) -> Any:
        model._session.engine._loop.fail(EngineDiedError("for a test"))
        model._session.engine._loop._thread.join(GUARD)
        model.restart()
        return find_adapter(source)

    monkeypatch.setattr(api_adapters, "find_adapter", find_slowly)
    model.load_adapter(served.folders["x"], name="x")
    assert model.query(image, "What?", adapter="x")["answer"] == served.alone["x"].query(image, "What?")["answer"]
    served.close()


@pytest.mark.parametrize(
    ("owner", "name"), [(api_adapters, "find_adapter"), (AdapterReader, "__call__"), (AdapterBank, "reserve")]
)
def test_no_adapter_is_loaded_to_an_engine_that_has_died_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    served = Served(tmp_path)
    model, work = served.model, getattr(owner, name)

    def work_slowly(*given: Any) -> Any:
        model._session.engine._loop.fail(EngineDiedError("for a test"))
        model._session.engine._loop._thread.join(GUARD)
        return work(*given)

    monkeypatch.setattr(owner, name, work_slowly)
    with pytest.raises(EngineDiedError, match="for a test"):
        model.load_adapter(served.folders["x"], name="x")
    served.close()


def test_an_encoded_image_belongs_to_no_adapter(served: Served) -> None:
    image = served.model.encode_image(make_image(30))
    expected = [served.alone[name].query(make_image(30), "What?")["answer"] for name in ("x", None)]
    assert [served.model.query(image, "What?", adapter=name)["answer"] for name in ("x", None)] == expected


@pytest.mark.long
def test_more_adapters_than_slots_take_turns(tmp_path: Path) -> None:
    served = Served(tmp_path, page_size=4, max_batch=6, adapter_slots=1, adapter_bytes=0)
    served.load()
    adapters = ["x", "y", None, "z"]
    found = served.model.batch([task(number, name) for number, name in enumerate(adapters * 3)], errors="raise")
    expected = [answers_of(served, number, name) for number, name in enumerate(adapters * 3)]
    served.close()
    assert [plain(one) for one in found] == expected


def test_what_is_asked_with_a_name_that_is_not_loaded(served: Served) -> None:
    before = counters(served.model)["requests_submitted"]
    with pytest.raises(UnknownAdapterError, match=r"no adapter is called 'xx' .did you mean 'x'.*loaded are x, y, z"):
        served.model.detect(make_image(1), "cat", adapter="xx")
    with pytest.raises(UnknownAdapterError, match="of type int"):
        served.model.query(make_image(1), "What?", adapter=3)  # type: ignore[arg-type]
    assert counters(served.model)["requests_submitted"] == before


def test_async_twins_take_adapters(served: Served) -> None:
    found = run(served.model.aquery(make_image(2), "What?", adapter="y"))
    assert found["answer"] == served.alone["y"].query(make_image(2), "What?")["answer"]


@pytest.mark.long
def test_a_name_is_loaded_again_and_unloaded(tmp_path: Path) -> None:
    served = Served(tmp_path)
    model, image = served.model, make_image(4)
    first = model.load_adapter(served.folders["x"])
    assert (first.name, first.rank, first.source) == ("x", RANK, str(served.folders["x"]))
    assert model.load_adapter(served.folders["x"], name="x") == first
    with pytest.raises(AdapterError, match=r"'x' is loaded already.*unload it first"):
        model.load_adapter(served.folders["y"], name="x")
    expected = model.query(image, "What?", adapter="x")["answer"]
    model.load_adapter(served.folders["x"], name="again")
    assert [one.key == first.key for one in model.adapters()] == [True, True]
    model.unload_adapter("x")
    with pytest.raises(UnknownAdapterError, match="loaded are again"):
        model.query(image, "What?", adapter="x")
    with pytest.raises(UnknownAdapterError):
        model.unload_adapter("x")
    assert model.query(image, "What?", adapter="again")["answer"] == expected
    model.load_adapter(served.folders["y"], name="x")
    assert model.query(image, "What?", adapter="x")["answer"] == served.alone["y"].query(image, "What?")["answer"]
    served.close()


@pytest.mark.long
def test_an_adapter_that_is_unloaded_answers_what_is_open(tmp_path: Path) -> None:
    served = Served(tmp_path, adapter_slots=1)
    served.load()
    model, image = served.model, make_image(5)
    stream = model.query(image, "What?", stream=True, adapter="x", settings={"max_tokens": 20})
    waiting = model.query(image, "Who?", stream=True, adapter="y", settings={"max_tokens": 20})
    model.unload_adapter("x")
    model.unload_adapter("y")
    settings: Any = {"max_tokens": 20}
    assert "".join(stream["answer"]) == served.alone["x"].query(image, "What?", settings=settings)["answer"]
    assert "".join(waiting["answer"]) == served.alone["y"].query(image, "Who?", settings=settings)["answer"]
    served.close()


@pytest.mark.long
def test_files_that_are_gone_end_the_requests_that_need_them(tmp_path: Path) -> None:
    served = Served(tmp_path, adapter_slots=1, adapter_bytes=0)
    served.load()
    model, image = served.model, make_image(6)
    (served.folders["x"] / "adapter_model.safetensors").unlink()
    (served.folders["y"] / "adapter_model.safetensors").write_bytes(
        (served.folders["z"] / "adapter_model.safetensors").read_bytes()
    )
    with pytest.raises(AdapterError, match="cannot be read"):
        model.query(image, "What?", adapter="x")
    with pytest.raises(AdapterError, match="have changed since it was loaded"):
        model.query(image, "What?", adapter="y")
    assert model.query(image, "What?", adapter="z")["answer"] == served.alone["z"].query(image, "What?")["answer"]
    assert model.query(image, "What?")["answer"] == served.alone[None].query(image, "What?")["answer"]
    served.close()


def test_a_batch_without_adapters_runs_the_model_itself(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    adapted = served.model._session.engine._model_runner.adapted
    assert adapted is not None
    bank = adapted.bank
    monkeypatch.setattr(type(bank), "running", lambda *_: pytest.fail("the copy with adapters ran"))
    assert served.model.query(make_image(50), "What?")["answer"]
    assert network(served.model).vision is not bank.model.vision


def test_names_that_cannot_be_used(served: Served) -> None:
    for name in ("a:b", "", "a/b", "x" * 101):
        with pytest.raises(AdapterError, match="cannot be an adapter's name"):
            served.model.load_adapter(served.folders["x"], name=name)


def test_a_model_without_files_takes_no_adapters(tmp_path: Path) -> None:
    with serve() as model, pytest.raises(SettingsError, match="takes no adapters"):
        model.load_adapter(tmp_path)
