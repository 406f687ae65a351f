"""A model whose engine has died, and a new engine over the same weights."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

import pytest

from photonlite.api import VisionModel
from photonlite.api import session as session_module
from photonlite.engine import engine as engine_module
from photonlite.engine.engine import Engine
from photonlite.errors import EngineDiedError, ModelError
from photonlite.realtime import RealtimeLoop
from photonlite.runner.torch_model_runner import TorchModelRunner
from tests.serving import GUARD, IMAGE, SKILLS, Gate, arguments, make_image, method, network, on_thread, run, serve

SHORT = {"max_tokens": 4, "max_objects": 2}


@pytest.fixture
def model() -> Iterator[VisionModel]:
    with serve() as served:
        yield served


def kill(model: VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let forward passes fail until the engine has died, and work again."""

    def lost(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error: unspecified launch failure")

    with monkeypatch.context() as broken:
        broken.setattr(network(model), "forward", lost)
        while model.alive:
            with pytest.raises(Exception, match=r"the device failed|the engine has stopped"):
                model.query(question="why?", settings=SHORT)
            model._session.engine._loop._thread.join(0.01)


def test_every_call_of_a_dead_model_raises_at_once_and_works_after_a_restart(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {skill: method(model, skill)(**arguments(skill, IMAGE, SHORT)) for skill in SKILLS}
    encoded = model.encode_image(IMAGE)
    kill(model, monkeypatch)

    def refused(call: Callable[[], Any]) -> None:
        with pytest.raises(EngineDiedError, match=r"restart\(\)"):
            call()

    for skill in SKILLS:
        refused(lambda skill=skill: method(model, skill)(**arguments(skill, IMAGE, SHORT)))
        refused(lambda skill=skill: run(method(model, skill, "a")(**arguments(skill, IMAGE, SHORT))))
    refused(lambda: model.caption("no such file.png", stream=True))  # nothing is read any more
    refused(lambda: model.query(question="why?", schema=int))
    refused(lambda: model.batch([{"skill": "caption", "image": IMAGE}]))
    refused(lambda: model.encode_image(IMAGE))
    assert not model.alive
    model.restart()

    assert model.alive
    for skill, answer in expected.items():
        assert method(model, skill)(**arguments(skill, IMAGE, SHORT)) == answer
        assert run(method(model, skill, "a")(**arguments(skill, IMAGE, SHORT))) == answer
    assert model.caption(encoded, "short", settings=SHORT) == expected["caption"]
    assert isinstance(model.query(question="why?", schema=int, settings=SHORT)["answer"], int)


def test_tasks_of_a_batch_after_the_death_have_errors_of_their_own(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = {"skill": "query", "question": "why?", "settings": SHORT}

    def tasks() -> Iterator[dict[str, Any]]:
        yield task
        kill(model, monkeypatch)
        yield from [task] * 3

    messages = [str(error) for error in model.batch(tasks())]
    assert [message.partition(":")[0] for message in messages[1:]] == ["task 1", "task 2", "task 3"]


def test_requests_in_flight_fail_and_those_that_were_prepared_are_answered_by_the_new_engine(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = Gate(monkeypatch, network(model), "forward")
    decode = Gate(monkeypatch, model._session._pool, "_load")
    in_flight = on_thread(lambda: model.query(question="why?", settings=SHORT))
    forward.wait()
    preparing = on_thread(lambda: model.caption(IMAGE, settings=SHORT))
    decode.wait()
    core = model._session.engine._core
    monkeypatch.setattr(core, "tick", lambda: (_ for _ in ()).throw(SystemError("a fault of ours")))
    forward.open()

    assert isinstance(in_flight.exception(GUARD), EngineDiedError)
    model.restart()
    decode.open()
    assert preparing.result(GUARD)["caption"] == model.caption(IMAGE, settings=SHORT)["caption"]


def test_restarting_frees_the_old_engines_memory_and_threads(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(model, monkeypatch)
    others = set(threading.enumerate())
    model.restart()
    threads, old = set(threading.enumerate()) - others, weakref.ref(model._session.engine._core.runner)
    cache = model._session.engine._core.runner._model_runner.cache  # type: ignore[attr-defined]
    kill(model, monkeypatch)
    model.restart()
    gc.collect()

    assert threads
    assert not any(thread.is_alive() for thread in threads)
    assert cache.keys.numel() == 0
    assert old() is None


def test_images_are_cut_into_the_new_engines_memory_and_wake_it(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(model, monkeypatch)
    used: list[tuple[str, object]] = []
    for name in ("wake", "host_array"):
        work = getattr(Engine, name)

        def noted(engine: Engine, *given: Any, name: str = name, work: Any = work) -> Any:
            used.append((name, engine))
            return work(engine, *given)

        monkeypatch.setattr(Engine, name, noted)
    model.restart()
    model.caption(make_image(9), settings=SHORT)

    assert {("wake", model._session.engine), ("host_array", model._session.engine)} == set(used)


def test_the_new_engine_is_connected_before_requests_reach_it(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(model, monkeypatch)
    dead, connect = model._session.engine, session_module.connect
    reached: list[Engine] = []

    def noted(pool: Any, engine: Engine, store: Any) -> None:
        assert engine is not dead
        reached.append(model._session.engine)
        connect(pool, engine, store)

    monkeypatch.setattr(session_module, "connect", noted)
    model.restart()

    assert reached == [dead]
    assert model.alive


def test_a_living_model_is_not_restarted_and_a_closed_one_cannot_be(model: VisionModel) -> None:
    engine = model._session.engine
    model.restart()
    assert model._session.engine is engine
    model.close()
    with pytest.raises(ModelError, match="closed"):
        model.restart()


def test_many_threads_restart_a_model_once(model: VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    kill(model, monkeypatch)
    built: list[object] = []
    build = engine_module.build
    monkeypatch.setattr(engine_module, "build", lambda *given: built.append(given) or build(*given))
    restarts: list[Future[None]] = [on_thread(model.restart) for _ in range(4)]
    wait(restarts, GUARD)

    assert [one.exception() for one in restarts] == [None] * 4
    assert len(built) == 1


def test_a_device_that_works_no_more_asks_for_a_new_process(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(model, monkeypatch)

    def lost(*_: Any) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    with monkeypatch.context() as broken:
        broken.setattr(engine_module, "build", lost)
        with pytest.raises(
            EngineDiedError, match=r"cannot be started again on cpu: RuntimeError.* new process"
        ) as died:
            model.restart()
    assert "launch failure" in str(died.value.__cause__)
    with pytest.raises(EngineDiedError, match=r"restart\(\)"):
        model.query(question="why?")
    model.restart()
    assert model.query(question="why?", settings=SHORT)["answer"]


def test_coroutines_learn_of_the_death_and_go_on_after_a_restart(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        prefill = Gate(monkeypatch, network(model), "forward")
        asked = asyncio.create_task(model.aquery(question="why?", settings=SHORT))
        await prefill.wait_async()
        core = model._session.engine._core
        monkeypatch.setattr(core, "tick", lambda: (_ for _ in ()).throw(SystemError("a fault of ours")))
        prefill.open()
        with pytest.raises(EngineDiedError):
            await asked
        with pytest.raises(EngineDiedError):
            await model.aquery(question="why?", settings=SHORT)
        await asyncio.to_thread(model.restart)
        assert (await model.aquery(question="why?", settings=SHORT))["answer"]

    run(main())


def test_a_realtime_loop_tells_of_the_death_and_goes_on_after_a_restart(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[Any] = []
    told = threading.Semaphore(0)

    def note(outcome: Any) -> None:
        outcomes.append(outcome)
        told.release()

    with RealtimeLoop(model, "point", object="mug", settings=SHORT, on_result=note, on_error=note) as loop:
        for dead in (True, False):
            kill(model, monkeypatch) if dead else model.restart()
            loop.submit(make_image(3))
            assert told.acquire(timeout=GUARD)

    assert isinstance(outcomes[0].error, EngineDiedError)
    assert "points" in outcomes[1].result
    assert "the engine has stopped" in caplog.text


def test_closing_a_runner_frees_its_memory_although_the_device_fails(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[object] = []
    runner = model._session.engine._core.runner
    close = TorchModelRunner.close
    monkeypatch.setattr(TorchModelRunner, "close", lambda self: closed.append(self) or close(self))
    device = runner._device  # type: ignore[attr-defined]
    monkeypatch.setattr(device, "close", lambda close=device.close: close() or 1 / 0)
    model.close()

    assert closed
