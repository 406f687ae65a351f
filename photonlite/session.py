"""Between the public methods and the engine: images are prepared, tasks become generations and are waited for.

```
task ──> Generation ── prepare: decode, hash ──> engine ──> completion ──> result
         │             sync: on the caller's thread
         │             async, batch: on a thread of the pool
         │             either waits in front of decoding while too much lies decoded
         ├─────────── compile: the grammar of a typed question, in another process
         └ dropped or cancelled: the request ends, wherever it is
```
"""

import concurrent.futures
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from photonlite.config import EngineConfig, ImageLimits
from photonlite.engine.delivery import Delivery
from photonlite.engine.engine import Engine
from photonlite.engine.generation import Generation
from photonlite.engine.preparation import Binding, Preparation
from photonlite.errors import ModelError, NumericalError
from photonlite.grammar.automata.tables import Automaton, SpecialIds
from photonlite.grammar.compiler.client import COUNTERS, GAUGES, GrammarCompiler
from photonlite.grammar.spec import GrammarSpec
from photonlite.images.isolation.pool import DecodePool
from photonlite.images.pool import ImagePool, PreparedImage
from photonlite.models.checkpoint import LoadedModel
from photonlite.options import Chosen, Options, chosen
from photonlite.request import Completion, Request
from photonlite.skills import encode, selftest
from photonlite.skills.typed.question import DeferredRequest
from photonlite.tasks import EncodedImage, ImageInput, Task, Tasks

R = TypeVar("R")

_SELFTEST = "photonlite self-test"
"""Salt of the self-test: nobody's question meets what it has left in the cache."""


class Session:
    """A loaded model at work: its engine and the threads that prepare images.

    Args:
        loaded: The checkpoint.
        device: Where it is.
        dtype: Of its weights.
        limits: How large an image may be.
        config: How the engine runs.
        decoder: Decodes image files in other processes; closed with the session. None decodes them in this one.

    Attributes:
        engine: Takes requests.
        window: Tasks of a batch call that are open at a time: enough to keep the engine full while others are prepared.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        device: torch.device,
        dtype: torch.dtype,
        limits: ImageLimits,
        config: EngineConfig,
        decoder: DecodePool | None = None,
    ) -> None:
        self.engine = Engine(loaded.model, device, dtype, config)
        self.window = 2 * self.engine.max_batch
        wake, buffer = _weakly(self.engine)
        self._pool = ImagePool(
            loaded.model.crop_spec,
            limits,
            config.image_threads,
            buffer=buffer,
            packs=self.engine.cuts_images,
            on_ready=wake,
            decoder=decoder,
        )
        self._prompts = loaded.prompts
        self._config = config
        self._compiler: GrammarCompiler | None = None
        self._unbound: set[Future[None]] = set()  # of requests that wait for their grammars
        self._lock = threading.Lock()
        self._state: Literal["open", "draining", "closed"] = "open"
        self._process = os.getpid()

    @property
    def alive(self) -> bool:
        """Whether requests are taken and answered."""
        return self._state == "open" and self.engine.alive

    def run(self, task: Task[R], options: Options) -> R:
        """Ask and wait; a stream is given as soon as its image is prepared."""
        generation, preparation = self._begin(task, self.check(task, options))
        preparation.here()
        if task.stream is None:
            return task.finish(generation.complete())
        generation.check()
        return task.stream(generation, generation.outcome)

    async def arun(self, task: Task[R], options: Options) -> R:
        """The same for coroutines: nothing slow happens on the event loop."""
        generation, preparation = self._begin(task, self.check(task, options, twin=True))
        preparation.on(self._pool)
        if task.astream is None:
            return task.finish(await generation.acomplete())
        await generation.await_start()
        generation.check()
        return task.astream(generation, generation.outcome)

    def encode(self, task: Task[Any], options: Options) -> EncodedImage:
        """Read an image into the prefix cache, and wait."""
        generation, preparation = self._begin(task, self.check(task, options))
        preparation.here()
        return _encoded(generation, generation.complete())

    async def aencode(self, task: Task[Any], options: Options) -> EncodedImage:
        """The same for coroutines."""
        generation, preparation = self._begin(task, self.check(task, options, twin=True))
        preparation.on(self._pool)
        return _encoded(generation, await generation.acomplete())

    def launch(self, task: Task[Any], options: Options) -> Generation:
        """Ask without waiting for anything."""
        generation, preparation = self._begin(task, self.check(task, options))
        preparation.on(self._pool)
        return generation

    def check_open(self) -> None:
        """Check that tasks are taken.

        Raises:
            ModelError: The model is closed, or belongs to the process from which this one was forked.
        """
        if self._state != "open":
            raise _closed()
        if os.getpid() != self._process:
            raise ModelError("this process was forked, and the model's threads stayed behind: load it in this process")

    def metrics(self) -> dict[str, Any]:
        """Return the numbers of the engine and of the processes that compile grammars, as plain values for JSON."""
        snapshot = self.engine.metrics.snapshot()
        compiler = self._compiler
        snapshot["gauges"] |= dict.fromkeys(GAUGES, 0) if compiler is None else compiler.gauges
        snapshot["counters"] |= dict.fromkeys(COUNTERS, 0) if compiler is None else compiler.counters
        return snapshot

    def self_test(self) -> None:
        """Ask a tiny question through every skill and every head, which warms the kernels up as well.

        Raises:
            NumericalError: The checkpoint computes something that is no finite number.
        """
        image = np.indices((24, 32, 3)).sum(axis=0).astype(np.uint8)
        asked = {}
        for skill, request in selftest.build(self._prompts).items():
            task = Task(request, image, lambda completion: completion)
            asked[skill], preparation = self._begin(task, Chosen(cache_salt=_SELFTEST))
            preparation.on(self._pool)
        for skill, generation in asked.items():
            try:
                generation.complete()
            except NumericalError as cause:
                raise NumericalError(f"the self-test of {skill!r} has failed: {cause}") from cause

    def close(self, *, drain: bool) -> None:
        """Take no more tasks, finish or fail those that are open, and let go of the model."""
        if os.getpid() != self._process:
            self._state = "closed"
            return  # the threads that would have to end are another process's
        if drain and self._state != "closed":
            self._state = "draining"
            self._settle()
        else:
            self._state = "closed"
        self.engine.close(drain=drain)
        self._state = "closed"
        self._pool.close()
        with self._lock:
            compiler, self._compiler = self._compiler, None
        if compiler is not None:
            compiler.close()

    def _settle(self) -> None:
        """Wait until all that has begun is with the engine."""
        self._pool.settle()
        while self.engine.window.settle() or self._unbound:
            concurrent.futures.wait(list(self._unbound))
            self._pool.settle()

    def check(self, task: Task[Any], options: Options, *, twin: bool = False) -> Chosen:
        """Check the options of a task.

        Args:
            task: Names the method.
            options: As the method got them.
            twin: Whether it was the async one.

        Raises:
            UnknownArgumentError: The method does not take one of them.
            SettingsError: A value has the wrong type or is out of its range.
        """
        name = task.request.skill
        method = "encode_image" if name == "encode" else name
        return chosen(options, f"a{method}" if twin else method, getattr(Tasks, name))

    def _begin(self, task: Task[Any], options: Chosen) -> tuple[Generation, Preparation]:
        """Make a generation, and what prepares its image and hands it in."""
        self.check_open()
        cache_salt, realtime = options.cache_salt, options.realtime
        mark = partial(dataclasses.replace, cache_salt=cache_salt, realtime=realtime, strict=options.strict)
        generation, image = Generation(mark(task.request), options.deadline_s), task.image
        delivery, window = generation.delivery, self.engine.window
        delivery.further = task.further
        self.engine.calls.watch(delivery)
        measure = None if image is None or isinstance(image, EncodedImage) else partial(self._pool.decoded_bytes, image)
        prepare = partial(self._prepare, image, cache_salt, delivery.check)
        lane = window.realtime if realtime else window.bulk
        compiling = partial(self._compile, cache_salt=cache_salt, caller=options.caller or "")
        binding = None if task.late is None else self._bind(task.late, delivery, mark, compiling, measure is not None)
        return generation, Preparation(delivery, self.engine, lane, measure, prepare, binding)

    def _bind(
        self,
        late: DeferredRequest,
        delivery: Delivery,
        mark: Callable[[Request], Request],
        compiling: Callable[[GrammarSpec], "Future[Automaton]"],
        encodes: bool,
    ) -> Binding:
        """Begin to compile what a question needs."""
        spec = late.spec
        started = delivery.started
        self._unbound.add(started)
        started.add_done_callback(self._unbound.discard)

        def bind(automaton: Automaton | None) -> Request:
            return mark(late.bind(automaton))

        if spec is None:
            return Binding(bind)
        # Without a prefix cache nobody would find the image that was encoded before its question.
        meanwhile = encode.build() if encodes and self._config.prefix_caching else None
        return Binding(bind, compiling(spec), meanwhile)

    def _compile(self, spec: GrammarSpec, *, cache_salt: str, caller: str) -> "Future[Automaton]":
        return self._grammars().compile(spec, cache_salt=cache_salt, caller=caller)

    def _grammars(self) -> GrammarCompiler:
        """Give what compiles specs; it starts with the first one."""
        with self._lock:
            if self._compiler is None:
                if self._state != "open":
                    raise _closed()
                ids, vocab_size = self._prompts.vocabulary, self._prompts.vocab_size
                self._compiler = GrammarCompiler(
                    self._prompts.pieces,
                    SpecialIds(ids.end, ids.coordinate, ids.size, vocab_size),
                    workers=self._config.grammar_workers,
                    limit_s=self._config.grammar_limit_s,
                    cache_bytes=self._config.grammar_cache_bytes,
                )
            return self._compiler

    def _prepare(
        self, image: ImageInput | None, cache_salt: str, checkpoint: Callable[[], None]
    ) -> PreparedImage | None:
        if self._state == "closed":
            raise _closed()
        if image is None:
            return None
        if isinstance(image, EncodedImage):
            return image.prepared_for(self._pool, cache_salt)
        return self._pool.prepare(image, cache_salt=cache_salt, checkpoint=checkpoint)


def _encoded(generation: Generation, completion: Completion) -> EncodedImage:
    if generation.image is None:
        raise AssertionError("an encoding has completed without an image")
    generation.image.drop_crops()  # page-locked megabytes, which are still there if the image was cached
    return EncodedImage(generation.image, completion.metrics)


def _closed() -> ModelError:
    return ModelError("the model is closed: load it again")


def _weakly(engine: Engine) -> tuple[Callable[[], None], Callable[[tuple[int, ...]], npt.NDArray[np.uint8]]]:
    """Give the engine's `wake` and its host memory without a reference to it: the pool must not keep it alive."""
    reference = weakref.ref(engine)

    def wake() -> None:
        if (alive := reference()) is not None:
            alive.wake()

    def buffer(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        alive = reference()
        return np.empty(shape, np.uint8) if alive is None else alive.host_array(shape)

    return wake, buffer
