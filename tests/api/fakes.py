"""A session on a fake engine, a fake compiler and fake pool threads that tests control."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from photonlite.api.session import Session
from photonlite.api.tasks import Task
from photonlite.config import EngineConfig, ImageLimits
from photonlite.engine.handle import RequestHandle
from photonlite.errors import ModelError, PhotonliteError
from photonlite.images.crops import CropSpec
from photonlite.images.pool import ImagePool, PreparedImage
from photonlite.request import Completion, Request, SamplingSettings, Token
from photonlite.sequence import Sequence
from photonlite.skills.encode import FixedGrammar
from tests.guard import GUARD

POOL = ImagePool(CropSpec(20, 4, 1, 6), ImageLimits(), 1)
BYTES = 3 * 6 * 4
ROOM = EngineConfig(max_prepared_bytes=100 + 33)
"""Memory for one image of 72 bytes at a time: 100 bytes for bulk calls."""


def request(budget: int = 8, **options: Any) -> Request:
    return Request("caption", (Token(9),) * 4, FixedGrammar(), budget, SamplingSettings(), **options)


def prepared_image() -> PreparedImage:
    return POOL.prepare(Image.new("RGB", (6, 4)))


@dataclass(eq=False)
class FakeEngine:
    """Collects requests; the test sends tokens and results."""

    sequences: list[Sequence] = field(default_factory=list)
    cancelled: list[Sequence] = field(default_factory=list)
    refusal: PhotonliteError | None = None
    on_submit: Callable[[Sequence], None] = lambda sequence: None
    options: dict[str, Any] = field(default_factory=dict)
    alive = True

    def check(self) -> None:
        """Refuse nothing before it is submitted."""

    def submit(self, request: Request, sink: Any, images: Any = (), **options: Any) -> Sequence:
        if self.refusal is not None:
            raise self.refusal
        self.options = options
        sequence = Sequence(len(self.sequences), request, sink, prefix_len=10, image=images[0] if images else None)
        sequence.times.submitted = options["submitted"]
        sequence.times.preprocess_s = options["preprocess_s"]
        self.sequences.append(sequence)
        self.on_submit(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        self.cancelled.append(sequence)

    @property
    def requests(self) -> list[Request]:
        return [sequence.request for sequence in self.sequences]

    def give(self, *tokens: Token) -> None:
        for token in tokens:
            self.sequences[-1].tokens.append(token)
            self.sequences[-1].sink.on_token(token)

    def finish(self, error: BaseException | None = None, number: int = -1) -> None:
        sequence = self.sequences[number]
        sequence.finalized, sequence.error = True, error
        sequence.sink.on_finish(sequence)


class Threads:
    """An image pool whose jobs run when the test calls `work`."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.urgent: list[Callable[[], None]] = []
        self.fetched: list[tuple[Future[Source], Callable[[int], None]]] = []
        self.arrived = threading.Semaphore(0)
        self.closed = False

    def submit(self, job: Callable[[], None]) -> "Future[Any]":
        if self.closed:
            raise ModelError("the model is closed: load it again")
        self.jobs.append(job)
        self.arrived.release()
        return Future()

    def hurry(self, job: Callable[[], None]) -> None:
        self.urgent.append(job)
        self.arrived.release()

    def work(self) -> None:
        assert self.arrived.acquire(timeout=GUARD)
        (self.urgent or self.jobs).pop(0)()

    def fetches(self, image: "Source") -> bool:
        return image.behind_url

    def fetch(self, image: "Source", hold: Callable[[int], None]) -> "Future[Source]":
        self.fetched.append((Future(), hold))
        return self.fetched[-1][0]

    def image_size(self, image: "Source") -> tuple[int, int] | None:
        image.measured += 1
        return image.header

    def prepare(
        self, image: "Source", *, cache_salt: str, adapter_key: str, checkpoint: Callable[[], None]
    ) -> PreparedImage:
        image.prepared += 1
        return image.prepare()


@dataclass(eq=False)
class Source:
    """Stands for an image of 72 bytes."""

    prepare: Callable[[], PreparedImage] = prepared_image
    behind_url: bool = False
    header: tuple[int, int] | None = (6, 4)
    measured: int = 0
    prepared: int = 0


class FakeCompiler:
    """Returns one future, which the test settles."""

    def __init__(self) -> None:
        self.future: Future[Any] = Future()

    def compile(self, spec: Any, *, cache_salt: str, caller: str) -> "Future[Any]":
        return self.future

    def close(self) -> None:
        self.future.cancel()


def make_session(engine: Any, threads: Any = None, config: EngineConfig | None = None) -> Session:
    return Session(engine, threads or Threads(), FakeCompiler(), config or EngineConfig())  # type: ignore[arg-type]


def task(asked: Request | None = None, image: Any = None, *, deadline_s: float | None = None, **more: Any) -> Task[Any]:
    images = () if image is None else (image,)
    return Task(asked or request(), images, lambda completion: completion, deadline_s, **more)


def begun(
    engine: FakeEngine,
    prepare: Callable[[], PreparedImage] | None = None,
    deadline_s: float | None = None,
    asked: Request | None = None,
) -> RequestHandle:
    """Submit a request on this thread; returns its handle."""
    image = None if prepare is None else Source(prepare)
    return make_session(engine)._start(task(asked, image, deadline_s=deadline_s))


async def completed(handle: RequestHandle) -> Completion:
    await handle.wait_async()
    return handle.result()


def on_thread(work: Callable[[], Any]) -> "Future[Any]":
    """Run a blocking function on a thread of its own."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
