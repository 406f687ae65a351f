import asyncio
import dataclasses
import gc
import io
import json
import math
import os
import queue
import select
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tqdm import TMonitor

import photonlite
from photonlite.api import VisionModel
from photonlite.api.tasks import Task
from photonlite.cache import manager
from photonlite.cache.pages import page_key
from photonlite.config import EngineConfig
from photonlite.engine import build
from photonlite.engine.engine import Engine
from photonlite.engine.handle import RequestHandle
from photonlite.errors import (
    CapacityError,
    DeadlineError,
    ImageError,
    ModelError,
    OutOfMemoryError,
    PromptError,
    RequestCancelledError,
    SettingsError,
    StepError,
)
from photonlite.grammar.compiler.client import COUNTERS, GAUGES
from photonlite.images import crops, pool
from photonlite.request import Request
from photonlite.sequence import Sequence
from tests.serving import GUARD, IMAGE, Gate, counters, make_image, network, on_thread, run, serve, settle


def cancel_at(model: VisionModel, gate: Gate, ask: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(ask())
        await gate.wait_async()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    gate.open()


def detect_task(model: VisionModel, image: Any, **options: Any) -> Any:
    return model._building.detect(image, "mug", **options)


ASYNC_WAYS: list[Callable[[VisionModel], Coroutine[Any, Any, Any]]] = [
    lambda model: model.acaption(IMAGE, "short"),
    lambda model: model.acaption(IMAGE, "short", stream=True),
    lambda model: model.aencode_image(IMAGE),
    lambda model: model.abatch([{"skill": "detect", "image": IMAGE, "object": "mug"}]),
]


@pytest.fixture
def model() -> Iterator[VisionModel]:
    with serve() as model:
        yield model


@pytest.mark.long
@pytest.mark.parametrize("ask", ASYNC_WAYS)
def test_cancelling_while_the_image_is_prepared_submits_nothing(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch, ask: Any
) -> None:
    cancel_at(model, Gate(monkeypatch, pool, "load_image"), lambda: ask(model))

    assert model.detect(IMAGE, "mug")["objects"]
    assert counters(model)["requests_submitted"] == 1


def test_results_that_take_long_to_make_are_made_off_the_event_loop(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    finish = Task.result_of

    def noted(task: Task[Any], handle: Any) -> Any:
        threads.append(threading.current_thread().name)
        return finish(task, handle)

    monkeypatch.setattr(Task, "result_of", noted)
    run(model.adetect(IMAGE, "mug"))
    run(model.adetect(IMAGE, ["mug", "key"]))

    assert threads[0] == threading.main_thread().name != threads[1]


def test_cancelling_a_queued_request_leaves_others_running(model: VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, network(model).vision, "encode")

    async def main() -> Any:
        first = asyncio.ensure_future(model.adetect(make_image(1), "mug"))
        await gate.wait_async()
        queued = asyncio.ensure_future(model.adetect(make_image(2), "mug"))
        await asyncio.sleep(0)
        await asyncio.to_thread(settle, model)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        gate.open()
        return await first

    assert run(main()) == model.detect(make_image(1), "mug")
    assert counters(model)["requests_cancelled"] == 1


@pytest.mark.parametrize(
    "ask", [lambda model: model.acaption(IMAGE, "short"), lambda model: model.aquery(IMAGE, "why?")]
)
def test_cancelling_a_decoding_request_leaves_others_running(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch, ask: Any
) -> None:
    cancel_at(model, Gate(monkeypatch, network(model), "logits", at=5), lambda: ask(model))

    assert model.detect(IMAGE, "mug")["objects"]
    assert counters(model)["requests_cancelled"] == 1
    assert model.metrics()["gauges"]["running"] == 0


def test_cancelling_a_task_that_reads_a_stream_cancels_the_request(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read() -> None:
        result = await model.acaption(IMAGE, "short", stream=True)
        async for _ in result["caption"]:
            pass

    cancel_at(model, Gate(monkeypatch, network(model), "logits", at=5), read)

    assert model.detect(IMAGE, "mug")["objects"]
    assert counters(model)["requests_cancelled"] == 1


def test_a_dropped_stream_cancels_its_request(model: VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, network(model), "logits", at=5)
    for _ in model.caption(IMAGE, "short", stream=True)["caption"]:
        break
    gate.open()

    assert model.detect(IMAGE, "mug")["objects"]
    assert counters(model)["requests_cancelled"] == 1


@pytest.mark.parametrize("leave", ["close", "drop"])
def test_leaving_an_async_stream_cancels_its_request(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch, leave: str
) -> None:
    gate = Gate(monkeypatch, network(model), "logits", at=5)

    async def main() -> None:
        result = await model.acaption(IMAGE, "short", stream=True)
        await anext(result["caption"])
        if leave == "close":
            await result["caption"].aclose()
        else:
            del result

    run(main())
    gate.open()

    assert model.detect(IMAGE, "mug")["objects"]
    assert counters(model)["requests_cancelled"] == 1


def test_a_closed_stream_cancels_its_request(model: VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, network(model), "logits", at=5)
    result = model.caption(IMAGE, "short", stream=True)
    next(result["caption"])
    result["caption"].close()
    gate.open()

    assert model.detect(IMAGE, "mug")["objects"]
    assert counters(model)["requests_cancelled"] == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda model: model.detect(make_image(1), "mug", deadline_s=0.05),
        lambda model: run(model.adetect(make_image(1), "mug", deadline_s=0.05)),
        lambda model: list(model.caption(make_image(1), "short", stream=True, deadline_s=0.05)["caption"]),
        lambda model: model.batch(
            [{"skill": "detect", "image": make_image(1), "object": "mug", "deadline_s": 0.05}], errors="raise"
        ),
    ],
)
def test_a_deadline_holds_while_the_device_hangs(model: VisionModel, monkeypatch: pytest.MonkeyPatch, ask: Any) -> None:
    gate = Gate(monkeypatch, network(model).vision, "encode")
    with pytest.raises(DeadlineError, match=r"0\.05 s|deadline passed"):  # of caller or engine
        on_thread(lambda: ask(model)).result(GUARD)
    gate.open()

    assert model.detect(IMAGE, "mug", deadline_s=GUARD)["objects"]


@pytest.mark.long
def test_a_second_question_about_an_image_does_not_cut_or_encode_it_again(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = Gate(monkeypatch, network(model).vision, "encode", at=0)
    cut = Gate(monkeypatch, crops, "cut_crops", at=0)

    first = model.detect(IMAGE, "mug")
    calls = encoded.calls
    second = model.detect(np.asarray(IMAGE), "mug")
    model.query(IMAGE, "why?")

    assert first == second
    assert calls > 0
    assert (encoded.calls, cut.calls) == (calls, 1)
    assert second.metrics is not None
    assert second.metrics.encode_s == 0


@pytest.mark.long
def test_cutting_crops_on_the_device_gives_the_same_answers(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [model.detect(make_image(seed), "mug") for seed in range(3)]
    limits = build.RunnerLimits
    cutting = {"image_bytes": build.MOST_BYTES}
    monkeypatch.setattr(build, "RunnerLimits", lambda *sizes: dataclasses.replace(limits(*sizes), **cutting))
    monkeypatch.setattr(Engine, "cuts_images", True)
    monkeypatch.setattr(Engine, "host_array", lambda self, shape: np.empty(shape, np.uint8))
    cut = Gate(monkeypatch, crops, "cut_crops", at=0)

    with serve(max_crops=3) as other:
        found = [
            result["objects"]
            for result in other.batch(
                [{"skill": "detect", "image": make_image(seed), "object": "mug"} for seed in range(3)]
            )
        ]
        image = other.encode_image(make_image(0))
        again = other.detect(image, "mug")

    assert found == [one["objects"] for one in wanted]
    assert again["objects"] == found[0]
    assert cut.calls == 0
    assert image._prepared.crops is None


@pytest.mark.long
def test_requests_of_different_cache_salts_share_nothing(model: VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Gate(monkeypatch, crops, "cut_crops", at=0)
    results = [model.detect(IMAGE, "mug", cache_salt=cache_salt) for cache_salt in (None, "a", "b", "a")]

    assert cut.calls == 3
    assert results == [results[0]] * 4


@pytest.mark.long
def test_an_empty_cache_salt_means_none(model: VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Gate(monkeypatch, crops, "cut_crops", at=0)
    results = [model.detect(IMAGE, "mug", cache_salt=cache_salt) for cache_salt in (None, "")]
    images = [model.encode_image(IMAGE, cache_salt=cache_salt) for cache_salt in (None, "")]
    results += [model.detect(image, "mug", cache_salt=cache_salt) for image in images for cache_salt in (None, "")]
    tenants = model.encode_image(IMAGE, cache_salt="a")

    assert cut.calls == 2
    assert images[0]._prepared.key == images[1]._prepared.key != tenants._prepared.key
    assert [*results, model.detect(tenants, "mug", cache_salt="")] == [results[0]] * 7


@pytest.mark.long
def test_an_encoded_image_that_was_evicted_is_rebuilt_from_its_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    # A page holds 16 positions of 2 layers in 8 bytes; a longest request needs 9 pages, and there are not many more.
    page = 16 * 2 * 2 * 8 * 8
    with serve(kv_cache_bytes=12 * page, embedding_cache_bytes=0) as model:
        loaded = Gate(monkeypatch, pool, "load_image", at=0)
        encoded = Gate(monkeypatch, network(model).vision, "encode", at=0)
        image = model.encode_image(IMAGE)
        assert image.metrics.encode_s > 0
        first, calls = model.detect(image, "mug"), encoded.calls
        assert model.detect(image, "mug") == first
        assert encoded.calls == calls

        for seed in range(1, 4):
            model.caption(make_image(seed), "short")
        calls, loads = encoded.calls, loaded.calls
        assert model.detect(image, "mug") == first

        assert encoded.calls > calls
        assert loaded.calls == loads


def test_an_encoded_image_is_cut_again_after_a_shortage_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(prefix_caching=False, embedding_cache_bytes=0) as model:
        image = model.encode_image(IMAGE)
        expected = model.detect(image, "mug")

        def fail(_: Any) -> None:
            raise MemoryError

        with monkeypatch.context() as short:
            short.setattr(model._session._pool, "cut", fail)
            with pytest.raises(OutOfMemoryError):
                model.detect(image, "mug")

        assert model.detect(image, "mug") == expected


def test_an_encoded_image_belongs_to_its_model_and_salt(model: VisionModel) -> None:
    with serve() as other, pytest.raises(ImageError, match="belongs to another model"):
        other.detect(model.encode_image(IMAGE), "mug")
    image = model.encode_image(IMAGE, cache_salt="a")
    with pytest.raises(SettingsError, match="another cache_salt"):
        model.detect(image, "mug", cache_salt="b")
    assert model.detect(image, "mug", cache_salt="a") == model.detect(image, "mug")


def test_encoding_alone_produces_no_tokens(model: VisionModel) -> None:
    image = model.encode_image(make_image(9))

    assert image.picture_size == (40, 30)
    assert (image.metrics.output_tokens, image.metrics.prompt_tokens) == (0, 26)
    assert min(image.metrics.preprocess_s, image.metrics.encode_s, image.metrics.prefill_s) > 0
    assert counters(model)["tokens"] == 0


def test_a_request_larger_than_the_cache_is_refused() -> None:
    with pytest.raises(CapacityError):
        serve(kv_cache_bytes=1024)


@pytest.mark.long
def test_fp8_makes_pages_smaller_and_still_shares_prefixes() -> None:
    with serve() as wide, serve(kv_dtype="fp8") as narrow:
        for model in (wide, narrow):
            first = model.detect(IMAGE, "mug")
            assert model.detect(IMAGE, "mug") == first
            assert first.metrics is not None
            assert counters(model)["prefix_hits"] == 1
        large, small = (model.metrics()["gauges"]["page_bytes"] for model in (wide, narrow))
        assert large == 8 * small > 0  # the tests' weights have eight bytes


def test_closing_finishes_open_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    model = serve()
    wanted = model.detect(IMAGE, "mug")
    load = Gate(monkeypatch, pool, "load_image")
    preparing = on_thread(lambda: run(model.adetect(make_image(3), "mug")))
    load.wait()
    gate = Gate(monkeypatch, network(model), "logits")
    stream = model.caption(IMAGE, "short", stream=True, settings={"max_tokens": 12})
    task = detect_task(model, IMAGE)
    queued = model._session.launch(task)
    gate.wait()
    drain = Gate(monkeypatch, model._session, "_drain")
    closing = on_thread(model.close)
    for blocked in (drain, load, gate):
        blocked.wait()
        blocked.open()

    closing.result(GUARD)

    assert task.finish(queued.result()) == wanted
    assert preparing.result(GUARD)["objects"]
    assert stream.text
    assert stream.finish_reason == "length"
    assert not model.alive
    with pytest.raises(ModelError, match="closed"):
        model.detect(IMAGE, "mug")


class ClosingFile(io.BytesIO):
    """Closes a model while it is read, as a signal handler may on the thread that reads."""

    def __init__(self, model: VisionModel) -> None:
        super().__init__(b"never decoded")
        self._model = model

    def read(self, size: int | None = -1, /) -> bytes:
        self._model.close()
        return super().read(size)


@pytest.mark.parametrize(
    "ask",
    [
        lambda model, file: model.detect(file, "mug"),
        lambda model, file: run(model.adetect(file, "mug")),
        lambda model, file: model.query(file, "what?", choices=["a", "b"]),
    ],
    ids=["blocking", "async", "choices"],
)
def test_closing_on_the_thread_that_prepares_an_image_fails_that_request(
    ask: Callable[[VisionModel, io.BytesIO], object],
) -> None:
    model = serve()
    asking = on_thread(lambda: ask(model, ClosingFile(model)))

    with pytest.raises(ModelError, match="closed"):
        asking.result(GUARD)
    assert not model.alive


def test_closing_without_draining_fails_open_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    model = serve()
    load = Gate(monkeypatch, pool, "load_image")
    preparing = on_thread(lambda: run(model.adetect(make_image(3), "mug")))
    load.wait()
    gate = Gate(monkeypatch, network(model), "logits", at=3)
    open_ = on_thread(lambda: model.caption(IMAGE, "short"))
    gate.wait()
    close = Gate(monkeypatch, model._session.engine, "close")
    closing = on_thread(lambda: model.close(drain=False))
    close.wait()
    with pytest.raises(ModelError, match="closed: load it again"):
        model.detect(IMAGE, "mug")
    for blocked in (close, gate, load):
        blocked.open()
    closing.result(GUARD)

    for future in (open_, preparing):
        with pytest.raises(ModelError, match="closed: load it again"):
            future.result(GUARD)


def test_an_error_in_a_with_block_does_not_wait_for_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = serve()
    gate = Gate(monkeypatch, network(model), "logits", at=3)
    stream = model.caption(IMAGE, "short", stream=True)
    gate.wait()

    def leave() -> None:
        with model:
            raise KeyError

    leaving = on_thread(leave)
    gate.open()
    with pytest.raises(KeyError):
        leaving.result(GUARD)
    with pytest.raises(ModelError):
        list(stream["caption"])


def test_aborting_skips_images_that_are_not_prepared_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    model = serve(image_threads=1)
    load = Gate(monkeypatch, pool, "load_image")
    asked = [model._session.launch(detect_task(model, IMAGE)) for _ in range(3)]
    close = Gate(monkeypatch, model._session.engine, "close")
    closing = on_thread(lambda: model.close(drain=False))
    for blocked in (load, close):
        blocked.wait()
        blocked.open()
    closing.result(GUARD)

    for handle in asked:
        with pytest.raises(ModelError, match="closed"):
            handle.result()
    assert load.calls == 1


def test_closing_ends_all_threads() -> None:
    before = set(threading.enumerate())
    with serve() as model:
        model.detect(IMAGE, "mug")
        assert len(set(threading.enumerate()) - before) > 2

    assert set(threading.enumerate()) <= before


@pytest.mark.long
def test_threads_end_when_a_model_is_dropped_without_close() -> None:
    before = set(threading.enumerate())
    gc.collect()
    model = serve()
    image = model.encode_image(IMAGE)
    list(model.caption(image, "short", stream=True)["caption"])
    run(model.abatch([{"skill": "detect", "image": IMAGE, "object": "mug"}] * 3))
    with pytest.raises(PromptError):
        model.detect(IMAGE, "")
    with pytest.raises(ImageError):
        model.detect(b"no image", "mug")
    # The bar of a batch starts a thread of its own in the first test that shows one.
    threads = [one for one in threading.enumerate() if one not in before and not isinstance(one, TMonitor)]
    assert len(threads) > 2

    gc.disable()  # they must not wait for the collector of cycles
    try:
        del model
        for thread in threads:
            if not thread.name.startswith("photonlite-images"):  # the encoded image keeps those that may cut it
                thread.join(GUARD)
                assert not thread.is_alive()
        del image
        for thread in threads:
            thread.join(GUARD)
            assert not thread.is_alive()
    finally:
        gc.enable()


@pytest.mark.long
def test_a_stream_may_outlive_the_last_reference_to_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as kept:
        wanted = kept.caption(IMAGE, "short", settings={"max_tokens": 12})["caption"]

    stream = serve().caption(IMAGE, "short", stream=True, settings={"max_tokens": 12})["caption"]
    gc.collect()

    assert "".join(stream) == wanted


def test_metrics_and_a_trace_record_requests(model: VisionModel, tmp_path: Path) -> None:
    model.detect(IMAGE, "mug")
    with model.trace() as trace:
        model.detect(IMAGE, "mug")
    model.detect(IMAGE, "mug")

    assert counters(model)["requests_finished"] == 3
    assert {span.name for span in trace.spans} >= {"launch", "commit", "finalize", "forward"}
    assert len(trace.spans) == len({id(span) for span in trace.spans})
    trace.save(tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == len(trace.spans)
    trace.draw(tmp_path / "run.png")
    with Image.open(tmp_path / "run.png") as drawn:
        assert drawn.width == 1600


def test_load_takes_engine_settings_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    golden = Path(__file__).parents[1] / "golden" / "moondream-tiny"
    monkeypatch.setenv("PHOTONLITE_GPU_MEMORY_FRACTION", "0.5")
    with photonlite.load(golden, device="cpu", engine={"depth": 1, "max_batch": 2}) as model:
        config = model._session.engine.config
        assert (config.depth, config.max_batch, config.gpu_memory_fraction) == (1, 2, 0.5)
    with photonlite.load(golden, device="cpu", engine=photonlite.EngineConfig(depth=1)) as model:
        assert model._session.engine.config == EngineConfig(depth=1)


def test_closing_a_stream_ends_it_for_the_thread_that_reads_it(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, network(model), "logits", at=3)
    stream = model.caption(IMAGE, "short", stream=True)["caption"]
    gate.wait()  # no more tokens come
    waits = threading.Event()

    class Tokens(queue.SimpleQueue[Any]):
        def get(self, *arguments: Any, **options: Any) -> Any:
            if self.empty():
                waits.set()
            return super().get(*arguments, **options)

    [handle] = model._session.open
    tokens, handle.tokens = handle.tokens, Tokens()
    while not tokens.empty():
        handle.tokens.put(tokens.get())
    reading = on_thread(lambda: list(stream))
    assert waits.wait(GUARD)
    stream.close()

    with pytest.raises(RequestCancelledError):
        reading.result(GUARD)
    gate.open()


def test_closing_twice_at_once_still_finishes_open_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    model = serve()
    load = Gate(monkeypatch, pool, "load_image")
    preparing = on_thread(lambda: run(model.adetect(IMAGE, "mug")))
    load.wait()
    drain = Gate(monkeypatch, model._session, "_drain", at=2)
    closing = [on_thread(model.close) for _ in range(2)]
    for gate in (drain, load):
        gate.wait()
        gate.open()

    assert preparing.result(GUARD)["objects"]
    for one in closing:
        one.result(GUARD)


def test_an_interrupt_that_comes_as_a_call_begins_leaves_no_request_open() -> None:
    class Interrupted(set[RequestHandle]):
        def add(self, handle: RequestHandle) -> None:
            super().add(handle)
            raise KeyboardInterrupt

    with serve() as model:
        model._session.open = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            model.detect(IMAGE, "mug")

        assert not model._session.open


def test_closing_waits_for_no_request_that_has_ended_though_an_interrupt_came_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    model = serve()
    load = Gate(monkeypatch, pool, "load_image")
    handle = model._session.launch(detect_task(model, IMAGE))
    load.wait()
    handle.future.add_done_callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        handle.cancel()
    load.open()

    on_thread(model.close).result(GUARD)
    assert not model.alive


@pytest.mark.long
@pytest.mark.parametrize("deadline_s", [np.float32(1500), Fraction(3001, 2), 10**12])
def test_a_deadline_may_be_any_real_number(model: VisionModel, deadline_s: Any) -> None:
    assert model.detect(IMAGE, "mug", deadline_s=deadline_s) == model.detect(IMAGE, "mug")
    assert model.caption(IMAGE, stream=True, deadline_s=deadline_s).text


@pytest.mark.parametrize("deadline_s", [math.nan, math.inf, 10**400, True, "1"])
def test_a_deadline_that_is_no_number_of_seconds_is_refused(model: VisionModel, deadline_s: Any) -> None:
    with pytest.raises(SettingsError, match="deadline_s is"):
        model.detect(IMAGE, "mug", deadline_s=deadline_s)


def test_an_error_that_is_kept_does_not_keep_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model = serve()

    def fail(pixels: Any) -> Any:
        raise RuntimeError("out of order")

    monkeypatch.setattr(network(model).vision, "encode", fail)
    kept = model.batch([{"skill": "detect", "image": IMAGE, "object": "mug"}], errors="return")
    monkeypatch.undo()
    weights, engine = weakref.ref(network(model)), weakref.ref(model._session.engine)
    gc.disable()  # nor wait for the collector of cycles
    try:
        model.close()
        del model
        assert isinstance(kept[0], StepError)
        assert engine() is None
        gc.collect()
        assert weights() is None
    finally:
        gc.enable()


def test_a_forked_process_must_load_the_model_itself(model: VisionModel) -> None:
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: that is the point
        child = os.fork()
    if child == 0:
        told = []
        try:
            for ask in (model.detect, lambda *a: asyncio.run(model.adetect(*a))):
                try:
                    ask(IMAGE, "mug")
                except ModelError as error:
                    told.append(str(error))
            model.close()
            os.write(write, "\n".join(told).encode())
        finally:
            os._exit(0)  # whatever was raised: this process would run the tests that follow
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        if not select.select([pipe], [], [], GUARD)[0]:
            os.kill(child, signal.SIGKILL)
        told = pipe.read().decode().splitlines()
    os.waitpid(child, 0)

    assert len(told) == 2
    assert all("forked" in line for line in told)
    assert model.detect(IMAGE, "mug")["objects"]


def test_the_cache_salt_applies_to_a_question_without_an_image(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    salts = []
    submit = Engine.submit

    def watched(self: Engine, request: Request, *arguments: Any, **options: Any) -> Any:
        salts.append(request.cache_salt)
        return submit(self, request, *arguments, **options)

    monkeypatch.setattr(Engine, "submit", watched)
    model.query(question="why?", cache_salt="a", settings={"max_tokens": 1})
    model.query(question="why?", settings={"max_tokens": 1})

    assert salts == ["a", ""]


def submitted(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    requests: list[Request] = []
    submit = Engine.submit

    def watched(self: Engine, request: Request, *arguments: Any, **options: Any) -> Any:
        requests.append(request)
        return submit(self, request, *arguments, **options)

    monkeypatch.setattr(Engine, "submit", watched)
    return requests


WAYS: list[Callable[..., Any]] = [
    lambda model, **options: model.detect(IMAGE, "mug", **options),
    lambda model, **options: run(model.adetect(IMAGE, "mug", **options)),
    lambda model, **options: model.caption(IMAGE, "short", stream=True, **options).text,
    lambda model, **options: model.encode_image(IMAGE, **options),
    lambda model, **options: run(model.aencode_image(IMAGE, **options)),
    lambda model, **options: model.batch(
        [{"skill": "detect", "image": IMAGE, "object": "mug", **options}], errors="raise"
    ),
]
LONG = {"question": "why? " * 20, "settings": {"max_tokens": 1}}
"""A prompt of several pages, without an image: its keys begin with the cache salt."""


@pytest.mark.parametrize("ask", [*WAYS, lambda model, **options: model.query(None, **LONG, **options)])
def test_a_lone_surrogate_is_refused_as_cache_salt(model: VisionModel, ask: Callable[..., Any]) -> None:
    with pytest.raises(SettingsError, match=r"half a character \(U\+D800, at 1\)"):
        ask(model, cache_salt="a\ud800")

    assert model.query(None, **LONG, cache_salt="a").finish_reason == "length"
    assert model.alive


def test_a_cache_salt_of_a_str_subclass_counts_as_its_text(model: VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    class Loud(str):
        def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
            raise RuntimeError("not me")

    requests = submitted(monkeypatch)
    model.query(None, **LONG, cache_salt=Loud("a"))

    assert [type(request.cache_salt) for request in requests] == [str]


def test_prompts_are_hashed_on_the_calling_thread(model: VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def watched(*arguments: Any) -> bytes:
        threads.append(threading.current_thread())
        return page_key(*arguments)

    monkeypatch.setattr(manager, "page_key", watched)
    model.query(None, **LONG)

    assert set(threads) == {threading.current_thread()}


@pytest.mark.long
@pytest.mark.parametrize("ask", WAYS)
def test_every_method_takes_the_realtime_option(model: VisionModel, monkeypatch: pytest.MonkeyPatch, ask: Any) -> None:
    requests = submitted(monkeypatch)
    ask(model, realtime=True)
    ask(model)

    assert [request.realtime for request in requests] == [True, False]


@pytest.mark.parametrize("realtime", [1, "yes", None])
def test_realtime_must_be_a_bool(model: VisionModel, realtime: Any) -> None:
    with pytest.raises(SettingsError, match="realtime is"):
        model.detect(IMAGE, "mug", realtime=realtime)


def test_no_answer_depends_on_priority(model: VisionModel) -> None:
    assert model.detect(IMAGE, "mug", realtime=True) == model.detect(make_image(0), "mug")


@pytest.mark.long
def test_images_are_not_decoded_while_too_many_bytes_wait_for_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 3 * 40 * 30
    with serve(max_prepared_bytes=2 * size) as model:  # one bulk image at a time
        gate = Gate(monkeypatch, network(model).vision, "encode")
        loads = Gate(monkeypatch, pool, "load_image", at=0)

        async def main() -> list[Any]:
            asked = [asyncio.ensure_future(model.adetect(make_image(seed), "mug")) for seed in range(4)]
            await gate.wait_async()
            await asyncio.to_thread(settle, model)
            gauges = model.metrics()["gauges"]
            assert (loads.calls, gauges["preparing"], gauges["prepared_bytes"]) == (1, 3, size)
            assert model.open_requests == 4
            gate.open()
            return await asyncio.gather(*asked)

        found = run(main())
        assert found == [model.detect(make_image(seed), "mug") for seed in range(4)]
        assert (model.open_requests, model.metrics()["gauges"]["prepared_bytes"]) == (0, 0)


def test_a_realtime_call_does_not_wait_for_memory_of_bulk_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(max_prepared_bytes=4 * 3 * 40 * 30) as model:
        gate = Gate(monkeypatch, network(model).vision, "encode")
        memory = model._session.gate

        async def main() -> Any:
            asked = [asyncio.ensure_future(model.adetect(make_image(seed), "mug")) for seed in range(5)]
            await gate.wait_async()
            await asyncio.to_thread(settle, model)
            assert memory.bulk.waiting == 2
            robot = asyncio.ensure_future(model.adetect(make_image(9), "mug", realtime=True))
            await asyncio.sleep(0)
            await asyncio.to_thread(settle, model)
            assert (memory.bulk.waiting, memory.realtime.waiting, memory.realtime.held) == (2, 0, 3600)
            gate.open()
            return await asyncio.gather(robot, *asked)

        assert len(run(main())) == 6


def test_a_call_cancelled_while_it_waits_for_memory_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(max_prepared_bytes=5000) as model:
        gate = Gate(monkeypatch, network(model).vision, "encode")

        async def main() -> None:
            first = asyncio.ensure_future(model.adetect(make_image(1), "mug"))
            await gate.wait_async()
            waits = asyncio.ensure_future(model.adetect(make_image(2), "mug"))
            await asyncio.sleep(0)
            await asyncio.to_thread(settle, model)
            assert model.metrics()["gauges"]["preparing"] == 1
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            assert model.metrics()["gauges"]["preparing"] == 0
            gate.open()
            await first

        run(main())
        assert counters(model)["requests_submitted"] == 1


@pytest.mark.parametrize("drain", [True, False])
def test_closing_finishes_or_fails_calls_that_wait_for_memory(monkeypatch: pytest.MonkeyPatch, drain: bool) -> None:
    model = serve(max_prepared_bytes=5000)
    gate = Gate(monkeypatch, network(model).vision, "encode")
    asked = [model._session.launch(detect_task(model, make_image(seed))) for seed in range(3)]
    gate.wait()
    settle(model)
    wait = Gate(monkeypatch, model._session, "_drain")
    stop = Gate(monkeypatch, model._session.engine, "close")
    closing = on_thread(lambda: model.close(drain=drain))
    reached = wait if drain else stop
    reached.wait()
    for blocked in (wait, stop, gate):
        blocked.open()
    closing.result(GUARD)

    ended = [handle for handle in asked if not isinstance(outcome(handle), ModelError)]
    assert len(ended) == (3 if drain else 0)


def outcome(handle: RequestHandle) -> Any:
    try:
        return handle.result()
    except ModelError as error:
        return error


def test_a_deadline_that_passes_while_an_image_is_decoded_skips_the_rest(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, named = Gate(monkeypatch, pool, "load_image"), Gate(monkeypatch, pool, "image_key", at=0)
    asked = model._session.launch(detect_task(model, IMAGE, deadline_s=GUARD))
    load.wait()
    asked.begun -= GUARD
    with pytest.raises(DeadlineError):
        asked.result()
    load.open()
    settle(model)

    assert named.calls == 0
    assert counters(model)["dropped_preparing"] == 1
    assert counters(model)["requests_submitted"] == 0


def test_a_frame_that_cannot_be_in_time_is_dropped_and_the_next_one_is_answered(model: VisionModel) -> None:
    model.detect(make_image(1), "mug")
    policy = model._session.engine._core.scheduler.policy
    policy.crops.per_unit = 1e6
    with pytest.raises(DeadlineError, match="image and prompt alone take about"):
        model.detect(make_image(2), "mug", deadline_s=GUARD, realtime=True)
    policy.crops.per_unit = 1e-6

    assert model.detect(make_image(2), "mug", deadline_s=GUARD, realtime=True)["objects"]
    assert counters(model)["dropped_hopeless"] == 1


def test_a_request_is_not_open_once_its_answer_is_there(model: VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, model._session, "_note_end")  # the engine's thread tells waiting callers first
    try:
        model.detect(IMAGE, "mug")
        gate.wait()
        assert model.open_requests == 0
    finally:
        gate.open()


def test_metrics_count_open_requests_and_their_age(model: VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    core, now = model._session.engine._core, time.perf_counter()
    monkeypatch.setattr(core, "tick", lambda: False)
    for number, (realtime, age) in enumerate(((True, 1000), (False, 3000), (True, 2000))):
        request = dataclasses.replace(detect_task(model, IMAGE).request, realtime=realtime)
        waits = Sequence(number, request, RequestHandle(request), 1)
        waits.times.submitted = now - age
        core.scheduler.prepare(waits)
        core.submit(waits)

    gauges = model.metrics()["gauges"]
    model._session.engine.close(drain=False)

    assert (gauges["open_realtime"], gauges["open_bulk"], gauges["waiting"]) == (2, 1, 3)
    assert 2000 <= gauges["oldest_realtime_s"] < 3000 <= gauges["oldest_bulk_s"]
    after = model.metrics()["gauges"]
    assert (after["open_realtime"], after["open_bulk"], after["oldest_bulk_s"]) == (0, 0, 0)


def test_the_last_tick_is_recent_and_grows_once_the_model_is_closed() -> None:
    with serve() as model:
        model.detect(IMAGE, "mug")
        model._session.engine._loop._last_tick = -math.inf
        model.detect(IMAGE, "mug")
        assert model.last_tick_s < GUARD
    model._session.engine._loop._last_tick -= GUARD
    assert model.last_tick_s > GUARD


def test_metrics_include_the_grammar_compiler(model: VisionModel) -> None:
    metrics = model.metrics()

    assert {name: metrics["gauges"][name] for name in GAUGES} == dict.fromkeys(GAUGES, 0)
    assert {name: metrics["counters"][name] for name in COUNTERS} == dict.fromkeys(COUNTERS, 0)
    assert metrics["gauges"]["pages_cached"] == 0


def test_metrics_count_pages_held_by_the_prefix_cache_only(model: VisionModel) -> None:
    model.caption(IMAGE, settings={"max_tokens": 2})
    model._session.engine.close(drain=True)  # nothing is in flight any more
    gauges = model.metrics()["gauges"]

    assert gauges["pages_cached"] > 0
    assert gauges["pages_cached"] + gauges["pages_free"] == gauges["pages_usable"]
