"""Clients of the public API, one after the other or concurrent, and the stages of a request's time."""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.bubble.report import table
from bench.gpu.samples import median_of
from photonlite.api import VisionModel
from photonlite.api.tasks import ImageInput
from photonlite.observe.trace import Span, busy_share
from photonlite.results import Metrics

Ask = Callable[[VisionModel, ImageInput], Metrics]
"""Asks one question about one image, and gives what the result says of its time."""

AskLater = Callable[[VisionModel, ImageInput], Awaitable[Metrics]]
"""The same, awaited."""

STAGES = ("until the encoder begins", "encode", "gap", "prefill", "decode: device", "decode: gaps", "until the caller")
"""From the call to its return, in order; they add up to the whole."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request, as its client measured it.

    Attributes:
        began: When the request was sent, in seconds of `time.perf_counter`.
        ended: When the answer was there.
        metrics: What the result says.
    """

    began: float
    ended: float
    metrics: Metrics

    @property
    def seconds(self) -> float:
        """Seconds that the client waited."""
        return self.ended - self.began


def visit(model: VisionModel, ask: Ask, images: Iterable[ImageInput]) -> list[Visit]:
    """Ask about the images one after the other."""
    visits = []
    for image in images:
        began = time.perf_counter()
        metrics = ask(model, image)
        visits.append(Visit(began, time.perf_counter(), metrics))
    return visits


def visit_with_threads(model: VisionModel, ask: Ask, images: Iterable[ImageInput], clients: int) -> list[Visit]:
    """Ask about all images from client threads, each one image at a time."""
    shared = _Shared(images)
    visits: list[Visit] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            visits.extend(visit(model, ask, shared))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return visits


def visit_with_coroutines(model: VisionModel, ask: AskLater, images: Iterable[ImageInput], clients: int) -> list[Visit]:
    """Ask about all images from coroutines of one thread."""
    source = iter(images)
    visits: list[Visit] = []

    async def client() -> None:
        for image in source:
            began = time.perf_counter()
            metrics = await ask(model, image)
            visits.append(Visit(began, time.perf_counter(), metrics))

    async def everybody() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client())

    asyncio.run(everybody())
    return visits


def stages(one: Visit, spans: Sequence[Span]) -> tuple[float, ...]:
    """Split the time of a request that ran alone; see `STAGES`.

    Args:
        one: The request.
        spans: Of a trace that covers it.

    Returns:
        Seconds of each stage; not a number where the trace lacks an encode or a prefill launch.
    """
    compute = sorted(
        (span for span in spans if span.track == "compute" and one.began <= span.start_s <= one.ended),
        key=lambda span: span.start_s,
    )
    encode = [span for span in compute if span.name == "encode"]
    prefill = [span for span in compute if span.name == "prefill"]
    if not encode or not prefill:
        return (math.nan,) * len(STAGES)
    later = [span for span in compute if span.start_s >= prefill[-1].end_s]
    working = sum(span.end_s - span.start_s for span in later)
    last = compute[-1].end_s
    return (
        encode[0].start_s - one.began,
        encode[-1].end_s - encode[0].start_s,
        prefill[0].start_s - encode[-1].end_s,
        prefill[-1].end_s - prefill[0].start_s,
        working,
        last - prefill[-1].end_s - working,
        one.ended - last,
    )


def stages_row(what: str, visits: Sequence[Visit], spans: Sequence[Span]) -> list[str]:
    """Write the medians of the stages of requests that came one after the other, in milliseconds."""
    split = [stages(one, spans) for one in visits]
    columns = [median_of(values) for values in zip(*split, strict=True)]
    prepared = median_of(one.metrics.preprocess_s for one in visits)
    whole = median_of(one.seconds for one in visits)
    return [what, *(f"{1e3 * seconds:.2f}" for seconds in (whole, prepared, *columns))]


def stages_table(rows: Iterable[Sequence[str]]) -> str:
    """Format the rows as a table."""
    return table(["request (ms)", "whole", "prepared after", *STAGES], rows)


def load_table(visits: Sequence[Visit], spans: Sequence[Span]) -> str:
    """Write the work of device and host for each of many concurrent requests.

    Args:
        visits: All requests of the trace.
        spans: The trace.
    """
    count = len(visits)
    totals: dict[tuple[str, str], list[float]] = {}
    for span in spans:
        totals.setdefault((span.track, span.name), []).append(span.end_s - span.start_s)
    rows = [
        [track, name, f"{1e3 * sum(times) / count:.3f}", f"{len(times) / count:.2f}", f"{1e3 * median_of(times):.3f}"]
        for (track, name), times in sorted(totals.items(), key=lambda entry: (entry[0][0], -sum(entry[1])))
    ]
    fields = ("preprocess_s", "queue_s", "encode_s", "prefill_s", "decode_s")
    words = ", ".join(
        f"{name[:-2]} {1e3 * median_of(getattr(one.metrics, name) for one in visits):.1f}" for name in fields
    )
    return (
        f"{count} requests; the device was busy for {busy_share(spans):.1%} of the time from its first span to its "
        f"last. Medians of what results say, in ms: {words}.\n\n"
        + table(["track", "what", "ms a request", "spans a request", "median span (ms)"], rows, left=2)
    )


class _Shared(Iterator[ImageInput]):
    """An iterator that several threads may advance."""

    def __init__(self, images: Iterable[ImageInput]) -> None:
        self._images = iter(images)
        self._lock = threading.Lock()

    def __next__(self) -> ImageInput:
        with self._lock:
            return next(self._images)
