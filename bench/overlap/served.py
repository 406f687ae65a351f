"""Streams that the engine decodes while clients ask about images, which are encoded in turns or beside the steps.

Beside them the encoder shares the card with the steps (`beside`), or each has a part of its own (`parts`).
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from bench.bubble.report import table
from bench.gpu.command import Options, say
from bench.gpu.models import endless_model, serve
from bench.gpu.samples import Sample
from bench.memory.riding import request_of
from bench.realtime import Bulk
from photonlite.api import VisionModel
from photonlite.config import EngineConfig
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.request import Token
from photonlite.sequence import Sequence as EngineSequence

WAYS: Mapping[str, Mapping[str, Any]] = {
    "turns": {},
    "beside": {"encoding": "beside"},
    "parts": {"encoding": "beside", "encode_sms": 68},
}
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Load:
    """Streams of text, each followed by another one when it ends, and clients with one image after the other."""

    streams: int
    context: int  # positions of a stream's prompt
    tokens: int  # of a stream
    clients: int
    seconds: float  # that a measurement takes


@dataclass(frozen=True, slots=True)
class Found:
    """Seconds between two tokens of a stream; tokens of streams, and answers about images, in a second."""

    gaps: Sequence[float]
    tokens: float
    images: float


class Place:
    """Streams one after the other, until they are stopped; a sink, called on the engine's thread."""

    def __init__(self, submit: Callable[["Place"], object]) -> None:
        self.gaps: list[tuple[float, float]] = []  # when a token came, and seconds since the one before
        self.begun, self.ended = threading.Event(), threading.Event()
        self.stopping = False
        self.error: BaseException | None = None
        self._submit = submit
        self._last: float | None = None
        submit(self)

    def on_token(self, token: Token) -> None:
        now = time.perf_counter()
        if self._last is not None:
            self.gaps.append((now, now - self._last))
            self.begun.set()
        self._last = now

    def on_finish(self, sequence: EngineSequence) -> None:
        self._last, self.error = None, sequence.error
        if self.stopping or self.error is not None:
            self.begun.set()
            self.ended.set()
        else:
            self._submit(self)


def measure(model: VisionModel, load: Load, vocabulary: int) -> Found:
    """Run a load on an engine for a while."""
    engine = model._session.engine

    def submit(place: Place) -> None:
        engine.submit(request_of(next(_numbers), load.context, load.tokens, vocabulary), place)

    places = [Place(submit) for _ in range(load.streams)]
    for place in places:
        place.begun.wait()
    with Bulk(model, load.clients) as bulk:
        while not bulk.answered:
            time.sleep(1e-3)
        begun, answered = time.perf_counter(), bulk.answered
        time.sleep(load.seconds)
        while not any(place.gaps[-1][0] > begun for place in places):  # on a machine that is busy with something else
            time.sleep(1e-3)
        ended, answered = time.perf_counter(), bulk.answered - answered
    for place in places:
        place.stopping = True
    for place in places:
        place.ended.wait()
        if place.error is not None:
            raise place.error
    gaps = [gap for place in places for at, gap in place.gaps if begun < at < ended]
    return Found(gaps, len(gaps) / (ended - begun), answered / (ended - begun))


def compare(models: dict[str, VisionModel], load: Load, vocabulary: int, rounds: int) -> list[list[str]]:
    """Measure all ways alternately, after a warm-up; return a row for each."""
    found: dict[str, list[Found]] = {way: [] for way in models}
    for place in range(rounds + 1):
        for way, model in models.items():
            one = measure(model, load, vocabulary)
            if place:
                found[way].append(one)
                steps = model.metrics()["counters"]["steps_in_part"]
                rates = f"{one.tokens:,.0f} tokens/s, {one.images:.1f} images/s"
                say(f"{load.streams} streams, {way}: {rates}, {steps:,} steps in a part so far")
    return [_row(way, load.streams, found[way]) for way in models]


def make_models(
    model_config: MoondreamConfig, options: Options, streams: Sequence[int], clients: int
) -> dict[str, VisionModel]:
    """Serve one model with random weights by an engine for each way."""
    model = endless_model(model_config, options.where, options.dtype)
    memory = 18 << 30 if options.cuda else 1 << 26  # three times, beside the weights, on a card of 80 GB
    sizes = tuple({rows for count in streams for rows in (count, count + clients)})
    return {
        way: serve(
            model, options.where, options.dtype,
            EngineConfig(kv_cache_bytes=memory, max_batch=max(streams) + clients, graph_sizes=sizes, **settings),
        )
        for way, settings in WAYS.items()
    }  # fmt: skip


def _row(way: str, streams: int, found: Sequence[Found]) -> list[str]:
    gaps = Sample.of([gap for one in found for gap in one.gaps])
    times = [f"{1e3 * seconds:.2f}" for seconds in (gaps.median, gaps.p99, gaps.high)]
    rates = f"{fmean(one.tokens for one in found):,.0f}", f"{median(one.images for one in found):.1f}"
    return [str(streams), way, *times, *rates]


def served_table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows of all numbers of streams as a table."""
    columns = ["streams", "encoding", "interval (ms)", "p99", "longest", "tokens/s", "images/s"]
    return table(columns, rows)
