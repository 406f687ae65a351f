"""The path of a request from a public method to the engine: prepare the image, compile the grammar, submit.

A blocking call runs `Session._steps` on its own thread. Async calls and batches run it on the image pool's threads,
which never wait: the callback of the future that a step waits for schedules the next step.
"""

import asyncio
import concurrent.futures
import dataclasses
import functools
import operator
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, TypeVar

import torch

from photonlite.api.connecting import connect
from photonlite.api.reading import read_images
from photonlite.api.storing import open_store, with_host_parts
from photonlite.api.tasks import Task
from photonlite.api.tuned import tuned_split
from photonlite.cache.store.store import ImageStore
from photonlite.config import EngineConfig, ImageLimits
from photonlite.device.cpu import in_passing
from photonlite.engine.engine import Engine
from photonlite.engine.handle import RequestHandle, TokenStream
from photonlite.engine.memory_gate import MemoryGate, MemoryPermit
from photonlite.errors import DeadlineError, ModelError
from photonlite.grammar.automata.tables import SpecialIds
from photonlite.grammar.compiler.client import GrammarCompiler
from photonlite.grammar.decoding.automaton import Automaton
from photonlite.grammar.decoding.grammars import known_id
from photonlite.images.fetch import ImageFetcher
from photonlite.images.isolation.pool import DecodePool, default_workers
from photonlite.images.pool import ImagePool, PreparedImage
from photonlite.models.checkpoint import LoadedModel
from photonlite.request import Completion, Request
from photonlite.results import Metrics
from photonlite.runner.memory import MemoryPlan
from photonlite.skills.tiles import Region

R = TypeVar("R")
Steps = Iterator["Future[Any]"]


class Session:
    """Owns a model's engine and the threads that prepare its images."""

    def __init__(
        self,
        engine: Engine,
        pool: ImagePool,
        compiler: GrammarCompiler,
        config: EngineConfig,
        store: ImageStore | None = None,
    ) -> None:
        self.engine = engine
        self._store = store
        self.gate = MemoryGate(config.max_prepared_bytes)
        self.open: set[RequestHandle] = set()
        self._pool = pool
        self._compiler = compiler
        self._config = config
        self._state: Literal["open", "draining", "closed"] = "open"
        self._late = 0  # requests whose deadlines passed before they were submitted
        self._late_lock = threading.RLock()  # garbage collection may end a request on any line
        self._process = os.getpid()
        self._restarting = threading.Lock()

    @property
    def alive(self) -> bool:
        return self._state == "open" and self.engine.alive

    def run(self, task: Task[R]) -> R:
        """Ask and wait; a stream is returned as soon as its request is submitted."""
        return self._answer(task, self._start(task))

    async def arun(self, task: Task[R]) -> R:
        handle = self.launch(task)
        await handle.wait_async(None if task.stream is None else handle.submitted)
        if task.parts is not None or task.draws:  # joining many objects, or shrinking an image, takes milliseconds
            return await asyncio.to_thread(self._answer, task, handle)
        return self._answer(task, handle, awaited=True)

    def _answer(self, task: Task[R], handle: RequestHandle, **awaited: bool) -> R:
        if task.stream is None:
            return task.result_of(handle)
        handle.raise_error()
        return task.stream(TokenStream(handle), on_end=handle.outcome, **awaited)

    def launch(self, task: Task[Any]) -> RequestHandle:
        handle, steps = self._begin(task)
        self.open.add(handle)
        self._schedule(handle, steps)
        return handle

    def restart(self, prepare: Callable[[Engine], None]) -> None:
        """Put a new engine in the place of one that has died; raises as `Engine.restarted`, `check_open` and `prepare`.

        `prepare` is called with it, and its images are connected, before requests reach it.
        """
        with self._restarting:
            self._check_usable()
            if not self.engine.alive:
                engine = in_passing(self.engine.restarted)
                try:
                    prepare(engine)
                    connect(self._pool, engine, self._store)
                except BaseException:
                    engine.close(drain=False)
                    raise
                self.engine = engine
                if self._state == "closed":  # meanwhile
                    self.engine.close(drain=False)

    def check_open(self) -> None:
        """Raise `ModelError` as `_check_usable`, or `EngineDiedError` if the engine has died."""
        self._check_usable()
        self.engine.check()

    def _check_usable(self) -> None:
        """Raise `ModelError` if the model is closed, or belongs to the process from which this one was forked."""
        if self._state != "open":
            raise _closed()
        if os.getpid() != self._process:
            raise ModelError("this process was forked, and the model's threads stayed behind: load it in this process")

    def _begin(self, task: Task[Any]) -> tuple[RequestHandle, Steps]:
        self.check_open()
        request, compiling = task.request, None
        if task.typed is not None and task.typed.spec is not None:
            compiling = self._compiler.compile(task.typed.spec, cache_salt=request.cache_salt, caller=task.caller)
        handle = RequestHandle(request, task.deadline_s, self._note_end)
        if compiling is not None:
            handle.when_computed(compiling.cancel)  # where the request ends before it is compiled
        return handle, self._steps(handle, task, compiling)

    def _steps(self, handle: RequestHandle, task: Task[Any], compiling: "Future[Automaton] | None") -> Steps:
        """Take a request from the call to the engine; yields the futures that it waits for."""
        if task.images:
            yield from read_images(handle, task, self._pool, partial(self._enter, handle))
        sizes = [image.size for image in handle.images]
        if task.typed is not None:
            if compiling is not None and not compiling.done():
                if self._config.prefix_caching and task.reads_images:
                    self._encode_beside(handle, task.typed.encoding())
                yield compiling
            automaton = None if compiling is None else compiling.result(timeout=0)
            handle.ask(task.typed.bind(automaton, sizes))
        elif task.sized is not None:
            handle.ask(task.sized(sizes))
        if task.parts is not None and handle.image is not None:
            yield from self._join(handle, handle.image, task.parts(handle.image.size))
        elif task.further is not None:
            yield from self._ask_further(handle, task.further, retried=task.retried)
        else:
            self._submit(handle)

    def _enter(
        self, handle: RequestHandle, size: int, *, images: int = 1
    ) -> Generator["Future[Any]", None, MemoryPermit]:
        """Wait for room for images; the permit is released when the request no longer needs them."""
        lane = self.gate.realtime if handle.request.realtime else self.gate.bulk
        permit = lane.request(size, images=images)
        handle.when_computed(permit.release)
        if (granted := permit.granted) is not None:
            yield granted
        if self._state == "closed":
            raise _closed()
        return permit

    def _submit(self, handle: RequestHandle) -> None:
        if handle.ended():
            return
        request = handle.request
        if not request.budget and request.skill != "encode":  # its answer is empty: there is nothing to compute
            metrics = Metrics(preprocess_s=handle.preprocess_s)
            handle.finish(Completion((), request.grammar.finish_reason, metrics, handle.picture_size))
            return
        handle.in_engine = True
        sequence = self.engine.submit(
            request,
            handle,
            handle.images,
            deadline_s=handle.deadline_s,
            preprocess_s=handle.preprocess_s,
            submitted=handle.begun,
        )
        handle.attach(partial(self.engine.cancel, sequence))

    def _ask_further(self, handle: RequestHandle, further: Callable[[Any, Completion], Any], *, retried: bool) -> Steps:
        """Answer with several requests: of a scored choice, or of a typed question that is asked again."""
        first = handle.follow_up(handle.request)
        first.encode_s = handle.encode_s
        first.when_computed(handle.release)
        self._submit(first)
        handle.in_engine = first.in_engine
        handle.attach(first.cancel)
        asked: list[tuple[Any, RequestHandle]] = [(None, first)]
        metrics: list[Metrics] = []
        for branch, one in asked:
            yield one.future
            if (error := one.future.exception()) is not None:
                handle.fail(error)
                return
            found = one.result()
            metrics.append(found.metrics)
            for following, request in further(branch, found):
                asked.append((following, handle.follow_up(request)))
                self._submit(asked[-1][1])
        answered = asked[-1 if retried else 0][1].result()
        completion = dataclasses.replace(answered, metrics=_total(metrics))
        for token in completion.tokens:
            handle.on_token(token)
        handle.finish(completion)

    def _join(
        self, handle: RequestHandle, image: PreparedImage, requests: Iterable[tuple[Region | None, Request]]
    ) -> Steps:
        """Answer several requests about an image and its tiles as one; the first failure ends them all."""
        images: dict[Region | None, PreparedImage] = {None: image}
        parts: list[RequestHandle] = []
        for region, request in requests:
            if region is not None and region not in images:
                images[region] = image.part(region.box)
            strict = dataclasses.replace(request, strict=handle.request.strict)
            parts.append(handle.follow_up(strict, images[region]))
        if len(images) == 1:
            parts[0].when_computed(handle.release)  # tiles are cut when the engine gets to them
        for part in parts:
            part.future.add_done_callback(partial(_fail_with, handle))
            self._submit(part)
        handle.in_engine = True
        for part in parts:
            yield part.future
        joined = _joined([part.result() for part in parts], tiles=len(images) - 1)
        cutting_s = sum({id(part.image): part.cutting_s for part in parts}.values())
        metrics = dataclasses.replace(joined.metrics, preprocess_s=handle.preprocess_s + cutting_s)
        handle.finish(dataclasses.replace(joined, metrics=metrics))

    def _encode_beside(self, handle: RequestHandle, request: Request) -> None:
        """Encode the image while the grammar is compiled."""
        encoding = handle.follow_up(request)

        def add_cost(ended: "Future[Completion]") -> None:
            if ended.exception() is None:
                handle.encode_s += ended.result().metrics.encode_s

        encoding.future.add_done_callback(add_cost)
        handle.when_computed(encoding.cancel)
        self._submit(encoding)

    def _start(self, task: Task[Any]) -> RequestHandle:
        """Run the steps on this thread; for a stream, until the request is submitted."""
        handle, steps = self._begin(task)
        try:
            self.open.add(handle)  # an interrupt just behind it must not leave it there, where `close` waits for it
            self._run_steps(handle, steps, waits=lambda: task.stream is None or not handle.submitted.done())
        except BaseException as error:
            handle.fail(error)
            if not isinstance(error, Exception):  # an interrupt, perhaps when the engine has the request already
                handle.cancel()
                raise
        return handle

    def _schedule(self, handle: RequestHandle, steps: Steps) -> None:
        """Run the next step on a thread of the pool."""
        if handle.future.done():  # perhaps by garbage collection, which must not take the pool's lock
            return
        schedule = self._pool.hurry if handle.request.realtime else self._pool.submit
        run = partial(self._run_steps, handle, steps, waits=lambda: False)
        handle.guard(partial(schedule, partial(handle.guard, run)))

    def _run_steps(self, handle: RequestHandle, steps: Steps, *, waits: Callable[[], bool]) -> None:
        """Run steps on this thread, which waits between them while `waits`; the pool runs the others."""
        handle.thread = threading.get_ident()
        try:
            while (future := _next(handle, steps)) is not None and waits():
                handle.wait(future)
        finally:
            handle.thread = None
        if future is not None:
            # A future keeps its callbacks when it is done: this one knows the session only until then.
            then = [partial(self._schedule, handle, steps)]
            future.add_done_callback(lambda _: then.pop()())

    def metrics(self) -> dict[str, Any]:
        metrics = self.engine.metrics
        metrics.preparing, metrics.prepared_bytes = self.gate.waiting, self.gate.held
        metrics.dropped_preparing = self._late
        snapshot = metrics.snapshot()
        snapshot["gauges"] |= self._compiler.gauges
        snapshot["counters"] |= self._compiler.counters
        if self._store is not None:
            snapshot["gauges"] |= self._store.gauges
            snapshot["counters"] |= self._store.counters
        return snapshot

    def memory_plan(self) -> MemoryPlan:
        return with_host_parts(self.engine.memory, self._config)

    def close(self, *, drain: bool) -> None:
        if os.getpid() != self._process:
            self._state = "closed"
            return  # the threads that would have to end are another process's
        if drain and self._state != "closed":
            self._state = "draining"
            self._drain()
        self._state = "closed"
        for handle in list(self.open):
            if not handle.in_engine:  # it may wait for something that never comes, such as a fetch that is dropped
                handle.fail(_closed())
        self.engine.close(drain=drain)
        self._pool.close()
        self._compiler.close()
        if self._store is not None:
            self._store.close()

    def _drain(self) -> None:
        """Wait until all open requests have ended; fail those whose steps were interrupted on this thread."""
        for handle in list(self.open):
            if handle.thread == threading.get_ident():
                handle.fail(_closed())
        # An interrupt may have kept one that has ended from leaving `open`.
        while waiting := [handle.future for handle in list(self.open) if not handle.future.done()]:
            concurrent.futures.wait(waiting)

    def _note_end(self, handle: RequestHandle) -> None:
        self.open.discard(handle)
        if not handle.in_engine and isinstance(handle.future.exception(), DeadlineError):
            with self._late_lock:
                self._late += 1


def open_session(
    loaded: LoadedModel,
    device: torch.device,
    dtype: torch.dtype,
    limits: ImageLimits,
    config: EngineConfig,
    *,
    isolate_images: bool = False,
    allow_urls: bool = False,
) -> Session:
    """Start the engine of a model, and the threads (with `isolate_images`, the processes) that decode images."""
    split = tuned_split(loaded, device, dtype, config)  # refuses a file before anything is opened
    store = open_store(loaded, device, dtype, config)
    engine = Engine(loaded.model, device, dtype, config, store=store, split=split)
    decoder = DecodePool(limits, max(1, default_workers())) if isolate_images else None
    pool = ImagePool(
        loaded.model.crop_spec,
        limits,
        config.image_threads,
        packs=engine.cuts_images,
        decoder=decoder,
        fetcher=ImageFetcher(limits.max_bytes) if allow_urls else None,
        stored=store,
    )
    ids = loaded.prompts.vocabulary
    compiler = GrammarCompiler(
        loaded.prompts.pieces,
        SpecialIds(ids.end, known_id(ids.coordinate), known_id(ids.size), loaded.prompts.vocab_size, ids.digits),
        workers=config.grammar_workers,
        limit_s=config.grammar_limit_s,
        cache_bytes=config.grammar_cache_bytes,
    )
    connect(pool, engine, store)
    return Session(engine, pool, compiler, config, store)


def _next(handle: RequestHandle, steps: Steps) -> "Future[Any] | None":
    return None if handle.ended() else next(steps, None)


def _total(metrics: list[Metrics]) -> Metrics:
    return dataclasses.replace(
        metrics[0],
        encode_s=sum(one.encode_s for one in metrics),
        prefill_s=sum(one.prefill_s for one in metrics),
        decode_s=sum(one.decode_s for one in metrics),
        output_tokens=sum(one.output_tokens for one in metrics),
    )


def _joined(parts: list[Completion], *, tiles: int) -> Completion:
    """Join the completions of a call, the first of which is about the whole image; each image was prepared once."""
    metrics = [part.metrics for part in parts]
    reason = next((part.finish_reason for part in parts if part.finish_reason != "stop"), "stop")
    queue_s = min(one.queue_s for one in metrics)
    total = dataclasses.replace(functools.reduce(operator.add, metrics), queue_s=queue_s, tiles=tiles)
    return Completion((), reason, total, parts[0].picture_size, tuple(parts))


def _fail_with(handle: RequestHandle, part: "Future[Completion]") -> None:
    if (error := part.exception()) is not None:
        handle.fail(error)


def _closed() -> ModelError:
    return ModelError("the model is closed: load it again")
