"""Streams that the engine decodes while clients ask about images, which are encoded in turns or beside the steps.

Beside them the encoder shares the card with the steps (`beside`), or each has a part of its own (`parts`), which
`reserved` keeps to while real-time requests come.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.bubble.report import table
from bench.gpu.command import Options, say
from bench.gpu.models import endless_model, serve
from bench.gpu.samples import Sample
from bench.memory.riding import request_of
from bench.overlap.timeline import explain, intervals_of, tell_steps
from bench.realtime import Bulk, card_cases, causes_of, missed_share, play
from photonlite.api import VisionModel
from photonlite.config import EngineConfig, Precision
from photonlite.errors import PhotonliteError
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.precisions import Precisions
from photonlite.models.quantised import quantise_layers
from photonlite.observe.metrics import format_seconds
from photonlite.request import Token
from photonlite.sequence import Sequence as EngineSequence

WAYS: Mapping[str, Mapping[str, Any]] = {
    "turns": {},
    "beside": {"encoding": "beside", "encode_sms": 0},
    "parts": {"encoding": "beside"},
    "reserved": {"encoding": "beside", "realtime_part": True},
    "tuned": {"encoding": "beside"},
    "mixed": {"batching": "mixed"},
    "mixed-beside": {"batching": "mixed", "encoding": "beside", "encode_sms": 0},
}
SIZED = ("parts", "reserved")
"""Ways that are measured for each size of the encoder's part."""

_numbers = itertools.count()
_DRAWN_S = 0.1
_SIZES = (1, 4, 8, 16, 32, 64)  # of batches that clients alone decode


def ways_of(names: Sequence[str], sms: Sequence[int], tuning: Path | None = None) -> dict[str, Mapping[str, Any]]:
    """Return the settings of ways, in parts for each size of the encoder's; without `tuning` "tuned" finds one."""
    ways = {name: settings for name, settings in WAYS.items() if name in names and name not in SIZED}
    if tuning is not None and "tuned" in ways:
        ways["tuned"] = {**WAYS["tuned"], "tuning": str(tuning)}
    for name in SIZED:
        for count in sms if name in names else ():
            ways[f"{name}, {count} SMs"] = {**WAYS[name], "encode_sms": count}
    return ways


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


def await_streams(holds: Callable[[], bool], places: Sequence[Place | Bulk]) -> None:
    """Wait until something holds; raises the error of a stream or client, since it may never hold then."""
    while not holds():
        for place in places:
            if place.error is not None:
                raise place.error
        time.sleep(1e-3)


@contextlib.contextmanager
def running(model: VisionModel, load: Load, vocabulary: int) -> Iterator[tuple[list[Place], Bulk]]:
    """Run a load in a block, which is entered once all streams decode and a client was answered."""
    engine = model._session.engine

    def submit(place: Place) -> None:
        engine.submit(request_of(next(_numbers), load.context, load.tokens, vocabulary), place)

    places = [Place(submit) for _ in range(load.streams)]
    for place in places:
        place.begun.wait()
    try:
        with Bulk(model, load.clients) as bulk:
            await_streams(lambda: bulk.answered > 0, [*places, bulk])
            yield places, bulk
    finally:
        for place in places:
            place.stopping = True
    for place in places:
        place.ended.wait()
        if place.error is not None:
            raise place.error


def measure(model: VisionModel, load: Load, vocabulary: int) -> Found:
    """Run a load on an engine for a while."""
    with running(model, load, vocabulary) as (places, bulk):
        begun, answered = time.perf_counter(), bulk.answered
        time.sleep(load.seconds)
        # On a machine that is busy with something else, none may have come yet.
        await_streams(lambda: any(place.gaps[-1][0] > begun for place in places), [*places, bulk])
        ended, answered = time.perf_counter(), bulk.answered - answered
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
                gaps = Sample.of(one.gaps)
                rates = f"{1e3 * gaps.median:.2f} ms, p99 {1e3 * gaps.p99:.2f}, longest {1e3 * gaps.high:.2f}, "
                rates += f"{one.tokens:,.0f} tokens/s, {one.images:.1f} images/s"
                say(f"{load.streams} streams, {way}: {rates}, {steps:,} steps in a part so far")
    return [_row(way, load.streams, found[way]) for way in models]


def make_models(
    model_config: MoondreamConfig,
    options: Options,
    streams: Sequence[int],
    clients: int,
    ways: Mapping[str, Mapping[str, Any]],
    precision: Precision | None = None,
) -> dict[str, VisionModel]:
    """Serve one model with random weights by an engine for each way."""
    model = endless_model(model_config, options.where, options.dtype)
    if precision is not None:
        quantise_layers(model, Precisions(precision))
    memory = 18 << 30 if options.cuda else 1 << 26  # three times, beside the weights, on a card of 80 GB
    sizes = tuple({rows for count in streams for rows in (count, count + clients)} | set(_SIZES))
    most = max(64, max(streams) + clients)
    return {
        way: serve(
            model, options.where, options.dtype,
            EngineConfig(kv_cache_bytes=memory, max_batch=most, graph_sizes=sizes, **settings),
        )
        for way, settings in ways.items()
    }  # fmt: skip


def timeline(model: VisionModel, load: Load, vocabulary: int, seconds: float, image: Path | None) -> list[str]:
    """Trace a load for some seconds: return what the device did in the longest token intervals; draw a part."""
    with running(model, load, vocabulary) as (places, _):
        time.sleep(min(1.0, load.seconds))
        with model.trace() as trace:
            begun = time.perf_counter()
            time.sleep(seconds)
            ended = time.perf_counter()
        times = [at for at, _ in places[0].gaps if begun < at < ended]
    if image is not None:
        trace.draw(image, start=begun + seconds / 2, end=begun + seconds / 2 + min(seconds / 2, _DRAWN_S), width=2400)
    return [*tell_steps(trace.spans), *explain(trace.spans, intervals_of(times))]


def answer_rates(models: dict[str, VisionModel], clients: int, tokens: int, seconds: float) -> list[list[str]]:
    """Measure answers a second about images of which no two are alike, after a warm-up of half the time."""
    rows = []
    for way, model in models.items():
        with Bulk(model, clients, tokens) as bulk:
            time.sleep(seconds / 2)
            begun, answered = time.perf_counter(), bulk.answered
            time.sleep(seconds)
            rate = (bulk.answered - answered) / (time.perf_counter() - begun)
        say(f"{clients} clients, answers of {tokens} tokens, {way}: {rate:.1f}/s")
        rows.append([f"{clients} clients, answers of {tokens} tokens", way, f"{rate:.1f}/s", "-", "-"])
    return rows


def frame_rates(models: dict[str, VisionModel], clients: int, seconds: float) -> list[list[str]]:
    """Play frames to detect in at 30 Hz beside clients, in all ways."""
    rows = []
    for way, model in models.items():
        case = card_cases()[0]
        try:
            stats, rate = play(model, case, seconds, clients, 1)
            why = f" ({causes})" if (causes := causes_of(stats)) else ""
            found = [f"{rate:.1f}/s", f"{missed_share(stats):.2%}{why}", format_seconds(stats.latency.p99)]
        except PhotonliteError as error:  # the other ways are still of use
            say(f"{way}: {type(error).__name__}: {error}")
            found = ["failed"] * 3
        rows.append([f"{case.what} at 30 Hz, {clients} clients", way, *found])
        say(" | ".join(rows[-1]))
    return rows


def _row(way: str, streams: int, found: Sequence[Found]) -> list[str]:
    gaps = Sample.of([gap for one in found for gap in one.gaps])
    times = [f"{1e3 * seconds:.2f}" for seconds in (gaps.median, gaps.p99, gaps.high)]
    rates = f"{fmean(one.tokens for one in found):,.0f}", f"{median(one.images for one in found):.1f}"
    return [str(streams), way, *times, *rates]


def rates_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of answers and of frames as a table."""
    return table(["load", "encoding", "answers", "frames missed", "frames' p99"], rows)


def served_table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows of all numbers of streams as a table."""
    columns = ["streams", "encoding", "interval (ms)", "p99", "longest", "tokens/s", "images/s"]
    return table(columns, rows)
