"""Requests from the call to the answer: `python -m bench.e2e --device cuda`.

Everything goes through the public face of the package, on images that were decoded before and that the engine has
not seen: caching helps none of them. Random weights never end an answer, so that limits give each its length.

Floor of a request: its products, its attention, and the bytes of its later tokens, as in `bench.vision` and
`bench.decode`, one after the other and measured in the same run. For many clients it is a ceiling of requests per
second, with prompts prefilled four and answers decoded 32 together.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from PIL import Image

from bench.gpu.clients import (
    Visit,
    load_table,
    stages_row,
    stages_table,
    visit,
    visit_with_coroutines,
    visit_with_threads,
)
from bench.gpu.command import Bench, Options, parse, show_log
from bench.gpu.figures import Figure
from bench.gpu.models import crop_spec, endless_model, make_images, serve
from bench.gpu.samples import Sample, window_rates
from photonlite.api import VisionModel
from photonlite.config import EngineConfig
from photonlite.images.crops import select_tiling
from photonlite.models.moondream.model import MoondreamModel
from photonlite.observe import Recording
from photonlite.request import RequestSettings
from photonlite.results import Metrics

NOTES = """\
- One client asks again as soon as it has its answer: median / 99th percentile of what it waits. Many clients do so at
  once; answers per second in windows of equally many answers, without the first and the last answer of each client.
- Where a request's time goes: medians of requests of one client, from one more run that was traced. "Prepared after" is
  part of the first stage: checks, hash, and packing or cutting. Then upload and the engine's tick. Gaps are idle time
  of the device between decode steps; "until the caller" is from the device's last work to the return of the call.
- Under load: what each track did, spans of a traced run over its requests. Host spans are those of the engine thread.
- Reference: the same image sizes and lengths, one client, in a process of its own on the same machine; it ends an
  answer of three tokens with a fourth forward pass."""

TOKENS, OBJECTS, POINTS = 3, 3, 1
CLIENTS = 64
PARTS = ("detect", "answer", "point", "clients", "threads", "fp8", "reference")


@dataclass(frozen=True, slots=True)
class Question:
    """A row of one client.

    Attributes:
        what: Its name.
        skill: The method that is called, and the part it belongs to.
        size: Width and height of the images.
        length: Objects or tokens of an answer.
        aim: For the median, in seconds.
        aim_p99: For the 99th percentile.
        times: Requests of one round.
    """

    what: str
    skill: str
    size: tuple[int, int]
    length: int
    aim: float
    aim_p99: float | None = None
    times: int = 20

    def ask(self, model: VisionModel, image: Image.Image) -> Metrics:
        """Ask, and check that the answer has the length that was wanted.

        Raises:
            AssertionError: It has another one.
        """
        found: Sequence[object]
        if self.skill == "answer":
            result = model.query(image, "what is it", settings={"max_tokens": self.length})
            return _checked(result.metrics, None if result.metrics is None else result.metrics.output_tokens, self)
        settings: RequestSettings = {"max_objects": self.length}
        if self.skill == "detect":
            boxes = model.detect(image, "mug", settings=settings)
            metrics, found = boxes.metrics, boxes["objects"]
        else:
            points = model.point(image, "mug", settings=settings)
            metrics, found = points.metrics, points["points"]
        return _checked(metrics, len(found), self)

    async def ask_later(self, model: VisionModel, image: Image.Image) -> Metrics:
        """The same for the answers of coroutines."""
        result = await model.aquery(image, "what is it", settings={"max_tokens": self.length})
        return _checked(result.metrics, None if result.metrics is None else result.metrics.output_tokens, self)


def _checked(metrics: Metrics | None, length: int | None, question: Question) -> Metrics:
    if metrics is None or length != question.length:
        raise AssertionError(f"{question.what}: the answer has a length of {length}, not {question.length}")
    return metrics


DETECT = Question(f"detect, {OBJECTS} objects, 640x480, 1 client", "detect", (640, 480), OBJECTS, 26e-3, times=4)
ANSWER = Question(f"answer, {TOKENS} tokens, 850x600, 1 client", "answer", (850, 600), TOKENS, 20e-3, 24e-3)
POINT = Question("point, 1 point, 378x378, 1 client", "point", (378, 378), POINTS, 10e-3, 12e-3)
RATES = {False: 68.0, True: 90.0}
"""Aims for requests per second, with FP8 linears and without."""


class EndToEnd:
    """Clients of one engine.

    Args:
        bench: The run.
        network: The model.
        rows: Of the table of stages, which grows.
        fp8: Whether linear layers multiply e4m3 numbers.
    """

    def __init__(self, bench: Bench, network: MoondreamModel, rows: list[list[str]], *, fp8: bool) -> None:
        options = bench.options
        self._bench = bench
        self._fp8 = fp8
        self._suffix = ", FP8 linears" if fp8 else ""
        self._rows = rows
        memory = 24 << 30 if options.cuda else 1 << 25
        config = EngineConfig(fp8_linears=fp8, kv_cache_bytes=memory)
        self._model = serve(network, options.where, options.dtype, config)

    def close(self) -> None:
        """Let go of the engine."""
        self._model.close(drain=False)

    def one_client(self, question: Question, reference: Mapping[str, float]) -> None:
        """Ask one question after the other, and once more with a trace."""
        count = question.times * self._bench.options.rounds
        source = make_images(*question.size)
        visit(self._model, question.ask, islice(source, 8))
        visits = visit(self._model, question.ask, list(islice(source, count)))
        traced, recording = self._traced(question.skill, lambda: visit(self._model, question.ask, islice(source, 10)))
        figure = Figure(
            question.what + self._suffix,
            Sample.of(one.seconds for one in visits),
            None if self._fp8 else question.aim,
            None if self._fp8 else question.aim_p99,
            bound=self._floor(question, visits),
            reference=reference.get(question.skill),
            latency=question.aim_p99 is not None,
        )
        self._bench.figure(figure)
        self._rows.append(stages_row(figure.what, traced, recording.spans))
        self._bench.section("Where a request's time goes", stages_table(self._rows))

    def clients(self, question: Question, *, threads: bool) -> None:
        """Let many clients ask at once, and once more with a trace."""
        options, count = self._bench.options, _clients(self._bench.options)

        def run(each: int) -> list[Visit]:
            images = list(islice(make_images(*question.size), each * count))
            if threads:
                return visit_with_threads(self._model, question.ask, images, count)
            return visit_with_coroutines(self._model, question.ask_later, images, count)

        run(2)
        visits = run(12)
        rates = window_rates((one.ended for one in visits), options.rounds, skip=count)
        kind = "threads" if threads else "coroutines"
        what = f"answers, {count} clients ({kind}){self._suffix}"
        ceiling = self._ceiling(question, visits)
        self._bench.figure(Figure(what, rates, RATES[self._fp8], bound=ceiling, rate=True))
        steady = sorted(visits, key=lambda one: one.ended)[count:-count]
        waits = Sample.of(one.seconds for one in steady)
        self._bench.figure(Figure(f"{what}: what each waits", waits, latency=True))
        traced, recording = self._traced(f"{kind}-{count}", lambda: run(2))
        self._bench.section(f"Under load: {what}", load_table(traced, recording.spans))

    def _traced(self, name: str, work: Callable[[], list[Visit]]) -> tuple[list[Visit], Recording]:
        with self._model.trace() as recording:
            visits = work()
        folder = self._bench.options.trace
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            recording.save(folder / f"e2e-{name}{'-fp8' * self._fp8}.json.gz")
        return visits, recording

    def _floor(self, question: Question, visits: Sequence[Visit]) -> float:
        """Return the least seconds of a request by itself."""
        floors, metrics = self._bench.floors, visits[-1].metrics
        first = floors.prefill(metrics.prompt_tokens, fp8=self._fp8).seconds
        return self._image(question) + first + (metrics.output_tokens - 1) * self._step(question, metrics, 1)

    def _ceiling(self, question: Question, visits: Sequence[Visit]) -> float:
        """Return the most requests per second where many come together."""
        floors, metrics, prompts, streams = self._bench.floors, visits[-1].metrics, 4, 32
        first = floors.prefill(metrics.prompt_tokens, prompts, fp8=self._fp8).seconds / prompts
        later = (metrics.output_tokens - 1) * self._step(question, metrics, streams) / streams
        return 1 / (self._image(question) + first + later)

    def _image(self, question: Question) -> float:
        width, height = question.size
        rows, columns = select_tiling(height, width, crop_spec(self._bench.config))
        crops = 1 if rows * columns == 1 else 1 + rows * columns
        floors = self._bench.floors
        return floors.encoder(crops, fp8=self._fp8).seconds + floors.projector(fp8=self._fp8)

    def _step(self, question: Question, metrics: Metrics, streams: int) -> float:
        """Return the least seconds of a decode step; places need no language head, and their own heads are left out."""
        size, words = self._bench.options.dtype.itemsize, question.skill == "answer"
        return self._bench.floors.decode(streams, metrics.prompt_tokens, kv_bytes=size, head=words)


def _clients(options: Options) -> int:
    return 4 if options.tiny else CLIENTS


def serve_clients(bench: Bench, network: MoondreamModel, reference: Mapping[str, float], rows: list[list[str]]) -> None:
    """Run the rows of one engine in bfloat16."""
    parts = bench.options.only
    end = EndToEnd(bench, network, rows, fp8=False)
    try:
        for question in (DETECT, ANSWER, POINT):
            if question.skill in parts:
                bench.attempt(question.what, partial(end.one_client, question, reference))
        for threads in (False, True):
            if ("threads" if threads else "clients") in parts:
                bench.attempt("clients", partial(end.clients, ANSWER, threads=threads))
    finally:
        end.close()


def serve_fp8(bench: Bench, network: MoondreamModel, rows: list[list[str]]) -> None:
    """Run answers, of one client and of many, on an engine with FP8 linears."""
    end = EndToEnd(bench, network, rows, fp8=True)
    try:
        if "answer" in bench.options.only:
            bench.attempt(f"{ANSWER.what}, FP8 linears", partial(end.one_client, ANSWER, {}))
        if "clients" in bench.options.only:
            bench.attempt("clients, FP8 linears", partial(end.clients, ANSWER, threads=False))
    finally:
        end.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parse("bench.e2e", __doc__, PARTS, arguments)
    bench = Bench("End to end", options, bound="floor, or ceiling of a rate")
    bench.attempt("ceilings", lambda: bench.floors)
    reference = bench.reference(("detect", "answer", "point")) if "reference" in options.only else {}
    network = bench.attempt("model", lambda: endless_model(bench.config, options.where, options.dtype))
    rows: list[list[str]] = []
    if network is not None:
        bench.attempt("engine", partial(serve_clients, bench, network, reference, rows))
        if "fp8" in options.only:
            bench.attempt("engine, FP8 linears", partial(serve_fp8, bench, network, rows))
    return bench.finish(NOTES)


if __name__ == "__main__":
    show_log()
    sys.exit(main())
