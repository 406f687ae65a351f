"""Frames at a fixed rate, each with a deadline: `python -m bench.realtime --device cuda`.

On a card: 30 frames per second of 640x480 to detect in, and 60 per second of 378x378 to point in, at Moondream 2's
shape with random weights, which never end an answer: limits give each its length. On a CPU: the shipped checkpoint on
the frames of `assets/clip`, at the rate that it can hold, which is measured first. No two frames are alike, so that
caching helps none of them. `--bulk 0 16` plays each case alone, and beside 16 clients that ask about large images
again and again.
"""

import argparse
import asyncio
import itertools
import shlex
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from PIL import Image

import photonlite
from bench.bubble.report import table
from bench.gpu.command import say, show_log
from bench.gpu.machine import describe
from bench.gpu.models import endless_model, make_images, serve
from bench.gpu.page import Page
from bench.shapes import MOONDREAM2, TINY
from photonlite.api import VisionModel
from photonlite.config import Encoding, EngineConfig, Precision
from photonlite.device.names import resolve_device
from photonlite.errors import PhotonliteError
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.precisions import Precisions
from photonlite.models.quantised import quantise_layers
from photonlite.observe.metrics import format_seconds
from photonlite.realtime.frames import TaskName
from photonlite.realtime.loop import RealtimeLoop
from photonlite.realtime.sources import Feed, Frames, open_source
from photonlite.realtime.state import LoopStats
from photonlite.request import RequestSettings

CLIP = Path(__file__).resolve().parents[1] / "assets" / "clip"
BULK_SIZE = (850, 600)
BULK_TOKENS = 32
AIM, BULK_AIM = 0.005, 0.03
"""The largest share of frames that may be missed, alone and beside bulk."""
WARM_UP_S = 2.0
HELD = 0.8
"""On a CPU, frames come so much slower than the 90th percentile of one request alone would allow."""

_numbers = itertools.count()
"""Numbers all frames that the process plays: a second round must not hit the cache of the first."""

NOTES = """\
- A frame is missed if it has no result within one period of its rate from its submission: its deadline. It may have
  been dropped for a newer one, given up at its deadline, or answered late.
- Latency is from submission to result. Age is how old a result's frame has become when the next result replaces it.
  Jitter is the standard deviation of the times between results."""


@dataclass(frozen=True, slots=True)
class Case:
    """Frames that come at a rate, and what is asked about them.

    Attributes:
        what: Its name.
        task: The method of `VisionModel`.
        subject: The object.
        rate: Frames per second.
        aim: The largest share of frames that may be missed; None where there is no aim.
        frames: Gives them, without end.
        most: Objects of an answer at most; None for the default.
    """

    what: str
    task: TaskName
    subject: str
    rate: float
    aim: float | None
    frames: Callable[[], Iterator[Image.Image]]
    most: int | None = None


class Bulk:
    """Clients on a thread of their own that ask for long answers about large images, until the block ends.

    The block's end raises the error that a client got, unless the block has raised one itself.

    Args:
        model: Is asked.
        clients: How many; 0 for none.
        tokens: Of an answer.

    Attributes:
        answered: Answers so far.
        error: What a request failed with, if one did; the clients stop at the first.
    """

    def __init__(self, model: VisionModel, clients: int, tokens: int = BULK_TOKENS) -> None:
        self.answered = 0
        self._tokens = tokens
        self._model = model
        self._clients = clients
        self._stopping = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Bulk":
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self.error is not None and kind is None:
            raise self.error

    def _run(self) -> None:
        try:
            asyncio.run(self._everybody())
        except Exception as error:
            self.error = error

    async def _everybody(self) -> None:
        source = make_images(*BULK_SIZE)
        await asyncio.gather(*(self._client(source) for _ in range(self._clients)))

    async def _client(self, source: Iterator[Image.Image]) -> None:
        while not self._stopping.is_set():
            await self._model.aquery(next(source), "what is it", settings={"max_tokens": self._tokens})
            self.answered += 1


def play(model: VisionModel, case: Case, seconds: float, bulk: int, in_flight: int) -> tuple[LoopStats, float]:
    """Play frames for so many seconds, after a warm-up.

    Returns:
        What became of them, and bulk answers per second.
    """
    source = case.frames()
    with Bulk(model, bulk) as beside:
        _loop(model, case, source, WARM_UP_S if seconds > WARM_UP_S else seconds, in_flight)
        answered, begun = beside.answered, time.perf_counter()
        stats = _loop(model, case, source, seconds, in_flight)
        rate = (beside.answered - answered) / (time.perf_counter() - begun)
    return stats, rate


def _loop(model: VisionModel, case: Case, source: Iterator[Image.Image], seconds: float, in_flight: int) -> LoopStats:
    settings: RequestSettings | None = None if case.most is None else {"max_objects": case.most}
    window = max(2, round(2 * case.rate * seconds))
    frames = Frames(lambda: source, case.rate, repeatable=False)
    deadline_ms = 1000 / case.rate
    with RealtimeLoop(
        model,
        case.task,
        object=case.subject,
        deadline_ms=deadline_ms,
        window=window,
        in_flight=in_flight,
        settings=settings,
    ) as loop:
        Feed(loop, frames, duration_s=seconds).join()
    return loop.stats


def missed_share(stats: LoopStats) -> float:
    """Return the share of frames without a result in time."""
    return 1 - (stats.answered - stats.late) / stats.submitted if stats.submitted else 1.0


def causes_of(stats: LoopStats) -> str:
    """List the causes of missed frames, each with its number of frames."""
    causes = (*stats.dropped.items(), ("late", stats.late), *stats.failures.items())
    return ", ".join(f"{count} {cause}" for cause, count in causes if count)


def cells(case: Case, stats: LoopStats, bulk: str) -> list[str]:
    """Write a row of the report."""
    share = missed_share(stats)
    verdict = "-" if case.aim is None else f"{case.aim:.1%} {'reached' if share <= case.aim else 'MISSED'}"
    return [
        case.what,
        f"{case.rate:.3g} Hz",
        bulk,
        f"{stats.submitted:,}",
        f"{share:.2%}",
        verdict,
        causes_of(stats) or "-",
        " / ".join(format_seconds(value) for value in (stats.latency.p50, stats.latency.p95, stats.latency.p99)),
        " / ".join(format_seconds(value) for value in (stats.age.p50, stats.age.p99)),
        format_seconds(stats.jitter_s),
    ]


HEAD = ["what", "rate", "bulk answers", "frames", "missed", "aim", "why", "latency p50 / p95 / p99", "age p50 / p99"]
HEAD += ["jitter"]


def card_cases() -> list[Case]:
    """Return the frames that are played on a card."""
    return [
        Case("detect, 3 objects, 640x480", "detect", "mug", 30, AIM, lambda: make_images(640, 480), 3),
        Case("point, 1 point, 378x378", "point", "mug", 60, AIM, lambda: make_images(378, 378), 1),
    ]


def clip_frames() -> Iterator[Image.Image]:
    """Return the frames of the clip again and again, each with a few pixels of its own in a corner."""
    base = [np.asarray(frame) for frame in open_source(CLIP).play()]
    for pixels in itertools.cycle(base):
        own = pixels.copy()
        own.reshape(-1)[:8] = np.array([next(_numbers)], np.int64).view(np.uint8)
        yield Image.fromarray(own)


def held_rate(model: VisionModel, case: Case, times: int) -> float:
    """Find a rate that the model can hold, from requests one after the other."""
    ask, frames, seconds = getattr(model, case.task), case.frames(), []
    for _ in range(times + 2):
        begun = time.perf_counter()
        ask(next(frames), case.subject)
        seconds.append(time.perf_counter() - begun)
    return HELD / statistics.quantiles(seconds[2:], n=10, method="inclusive")[-1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = _parse(arguments)
    called = shlex.join(["-m", "bench.realtime", *(sys.argv[1:] if arguments is None else arguments)])
    where: torch.device = options.where
    shape = "a tiny model in rehearsal: FIGURES MEAN NOTHING" if options.tiny else "Moondream 2's shape"
    on_card = options.tiny or where.type == "cuda"
    engine: Any = {"encoding": options.encoding, "fp8_linears": options.fp8}
    precision: Precision | None = options.weights
    if on_card:
        model = _random_model(where, engine, precision, tiny=options.tiny)
    else:
        model = photonlite.load(options.model, device=where, engine=engine, weights=precision or "auto")
    page = Page("Real time", options.output)
    page.put(
        "",
        f"{time.strftime('%Y-%m-%d')}, {describe(where)}, {torch.get_num_threads()} threads.\n"
        f"Model: {f'{shape}, random weights' if on_card else model.name}, {str(model.dtype).removeprefix('torch.')}; "
        f"{options.seconds:g} s of each, {options.in_flight} in flight.\nMade by `python {called}`.",
    )
    rows = []
    with model:
        cases = card_cases() if on_card else _clip_cases(model, options)
        for case in (replace(case, rate=options.rate or case.rate) for case in cases if case.task in options.only):
            for clients in options.bulk:
                stats, answers = play(model, case, options.seconds, clients, options.in_flight)
                bulk = f"{answers:.1f}/s to {clients} clients" if clients else "-"
                aimed = replace(case, aim=BULK_AIM) if clients and case.aim is not None else case
                rows.append(cells(aimed, stats, bulk))
                say(" | ".join(rows[-1]))
                page.put("Figures", table(HEAD, rows))
    page.put("How to read this", NOTES)
    say(f"\n{page}")
    return 0


def _clip_cases(model: VisionModel, options: argparse.Namespace) -> Iterator[Case]:
    tasks: tuple[TaskName, ...] = ("detect", "point")
    for task in tasks:
        case = Case(f"{task} banana, clip of 480x320", task, "banana", 1.0, None, clip_frames)
        if task in options.only:
            yield case if options.rate else replace(case, rate=held_rate(model, case, 20))


def _random_model(where: torch.device, engine: Any, precision: Precision | None, *, tiny: bool) -> VisionModel:
    config = MoondreamConfig.from_dict(TINY if tiny else MOONDREAM2)
    dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
    memory = 24 << 30 if where.type == "cuda" else 1 << 25
    model = endless_model(config, where, dtype)
    if precision is not None:
        quantise_layers(model, Precisions(precision))
    return serve(model, where, dtype, EngineConfig(kv_cache_bytes=memory, **engine))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.realtime", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--model", help="checkpoint for a CPU; the shipped one by default")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal with a tiny model; figures mean nothing")
    parser.add_argument("--only", nargs="+", choices=("detect", "point"), default=["detect", "point"])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each case, after a warm-up")
    parser.add_argument("--rate", type=float, help="frames per second, in place of each case's own")
    parser.add_argument(
        "--bulk", type=int, nargs="+", default=[0], metavar="CLIENTS", help="clients beside the frames; each in turn"
    )
    parser.add_argument("--encoding", choices=get_args(Encoding), default="turns", help="of images; see EngineConfig")
    parser.add_argument("--weights", choices=get_args(Precision), help="precision of the decoder's weights")
    parser.add_argument("--fp8", action="store_true", help="multiply e4m3 in encodings and prompts")
    parser.add_argument("--in-flight", type=int, default=1, help="frames that are asked about at a time")
    parser.add_argument("--output", type=Path, help="markdown file to write")
    options = parser.parse_args(arguments)
    try:
        options.where = resolve_device(options.device)
    except PhotonliteError as error:
        parser.error(str(error))
    if options.seconds <= 0 or min(options.bulk) < 0 or options.in_flight < 1:
        parser.error("seconds are above 0, clients at least 0, frames in flight at least 1")
    return options


if __name__ == "__main__":
    show_log()
    sys.exit(main())
