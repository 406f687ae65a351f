"""Requests from the call to the answer: `python -m bench.e2e --device cuda`.

Everything goes through the public face of the package, on images that were decoded before and that the engine has
not seen: caching helps none of them. Random weights never end an answer, so that limits give each its length.

Floor of a request: its products, its attention, and the bytes of its later tokens, as in `bench.vision` and
`bench.decode`, one after the other and measured in the same run. For many clients it is a ceiling of requests per
second, with prompts prefilled four and answers decoded 32 together. Qwen-VL and PaliGemma 2 have no floors here.

`--shape` measures other families: `answer`, `clients` and `steps`, each also in plain PyTorch operations (`plain`) in
the same CUDA graphs. Detect and point are of the Moondream families alone: random weights end lists of the others.
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from bench.bubble.figures import STEP_HEAD, steady, step_cells
from bench.bubble.report import many, table
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
from bench.gpu.models import crop_spec, load_endless, make_images
from bench.gpu.samples import Sample, window_rates
from bench.shapes import SHAPES
from photonlite.api import VisionModel
from photonlite.api.tasks import ImageInput
from photonlite.config import EngineConfig, ImageLimits
from photonlite.images.crops import select_tiling
from photonlite.models.checkpoint import LoadedModel
from photonlite.observe import Recording
from photonlite.request import RequestSettings
from photonlite.results import Metrics

NOTES = """\
- One client asks again as soon as it has its answer: median / 99th percentile of what it waits. Many clients do so at
  once; answers per second in windows of equally many answers, without the first and the last answer of each client.
- Where a request's time goes: medians of requests of one client, from one more run that was traced. "Prepared after" is
  part of the first stage: checks, hash, and packing or cutting. Then upload and the engine's tick. Gaps are idle time
  of the device between decode steps; "until the caller" is from the device's last work to the return of the call.
- Under load: work on each stream of the device and on the engine thread ("host"), from one more run that was traced.
  Times and numbers of spans are divided by the number of requests.
- Steps: decode steps of long answers about one image, from a traced round, while all clients' answers were decoded
  together. Medians per step of the forward pass, of finalize (heads, masks, sampling), of the device's idle time and of
  the host's work; "busy" is the share of the time in which the device worked.
- Plain operations: the model's own, in the same CUDA graphs where it has any.
- Reference: the same image sizes and lengths, one client, in a process of its own on the same machine; it ends an
  answer of three tokens with a fourth forward pass."""

TOKENS, OBJECTS, POINTS = 3, 3, 1
LONG = 100  # tokens of answers whose steps are looked at
_TRIES = 50  # rounds until all streams decode together: on a busy machine one may end before another begins
CLIENTS = 64
STREAMS = (1, 8, 32)
PARTS = ("detect", "answer", "point", "clients", "threads", "steps", "plain", "fp8", "reference")
FOR_MOONDREAM = {"detect", "point", "fp8", "reference"}


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

    def ask(self, model: VisionModel, image: ImageInput) -> Metrics:
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

    async def ask_later(self, model: VisionModel, image: ImageInput) -> Metrics:
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


@dataclass(slots=True)
class Tables:
    """Rows of tables that all engines add to."""

    stages: list[list[str]] = field(default_factory=list)
    steps: list[list[str]] = field(default_factory=list)


class EndToEnd:
    """Clients of one engine.

    Args:
        bench: The run.
        loaded: The model.
        tables: Take rows of requests and of steps.
        fp8: Whether linear layers multiply e4m3 numbers.
        plain: Whether the model runs in operations of PyTorch.
    """

    def __init__(
        self, bench: Bench, loaded: LoadedModel, tables: Tables, *, fp8: bool = False, plain: bool = False
    ) -> None:
        options = bench.options
        self._bench = bench
        self._fp8 = fp8
        self._suffix = ", FP8 linears" if fp8 else ", plain operations" if plain else ""
        self._has_aims = options.shape == "moondream2" and not plain
        self._tables = tables
        memory = 24 << 30 if options.cuda else 1 << 25
        config = EngineConfig(fp8_linears=fp8, fused=not plain, kv_cache_bytes=memory)
        self._model = VisionModel(loaded, options.where, options.dtype, ImageLimits(), config)

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
            question.aim if self._has_aims and not self._fp8 else None,
            question.aim_p99 if self._has_aims and not self._fp8 else None,
            bound=self._floor(question, visits),
            reference=reference.get(question.skill),
            latency=question.aim_p99 is not None,
        )
        self._bench.figure(figure)
        self._tables.stages.append(stages_row(figure.what, traced, recording.spans))
        self._bench.section("Where a request's time goes", stages_table(self._tables.stages))

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
        aim = RATES[self._fp8] if self._has_aims else None
        self._bench.figure(Figure(what, rates, aim, bound=ceiling, rate=True))
        steady = sorted(visits, key=lambda one: one.ended)[count:-count]
        waits = Sample.of(one.seconds for one in steady)
        self._bench.figure(Figure(f"{what}: what each waits", waits, latency=True))
        traced, recording = self._traced(f"{kind}-{count}", lambda: run(2))
        self._bench.section(f"Under load: {what}", load_table(traced, recording.spans))

    def steps(self, streams: int) -> None:
        """Let as many clients as streams ask for long answers about one image at once, and look at the steps."""
        question = dataclasses.replace(ANSWER, length=12 if self._bench.options.tiny else LONG)
        image = self._model.encode_image(next(make_images(*question.size)))

        def run() -> list[Visit]:
            return visit_with_threads(self._model, question.ask, [image] * streams, streams)

        run()
        for _ in range(_TRIES):
            visits, recording = self._traced(f"steps-{streams}", run)
            ends = [span.end_s for span in recording.spans if span.track == "compute" and span.name == "prefill"]
            first, last = max(ends), min(one.ended for one in visits)
            found = steady([span for span in recording.spans if span.start_s >= first and span.end_s <= last])
            if found.idle_s and found.tick_s:
                break
        else:
            raise AssertionError(f"{many(streams)} were not decoded together in {_TRIES} rounds")
        self._tables.steps.append([f"{many(streams)}{self._suffix}", *step_cells(found)])
        self._bench.section("Steps", table(STEP_HEAD, self._tables.steps))

    def _traced(self, name: str, work: Callable[[], list[Visit]]) -> tuple[list[Visit], Recording]:
        with self._model.trace() as recording:
            visits = work()
        folder = self._bench.options.trace
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            recording.save(folder / f"e2e-{name}{self._suffix.replace(', ', '-').replace(' ', '_')}.json.gz")
        return visits, recording

    def _floor(self, question: Question, visits: Sequence[Visit]) -> float | None:
        """Return the least seconds of a request by itself."""
        if not is_moondream(self._bench):
            return None
        floors, metrics = self._bench.floors, visits[-1].metrics
        first = floors.prefill(metrics.prompt_tokens, fp8=self._fp8).seconds
        return self._image(question) + first + (metrics.output_tokens - 1) * self._step(question, metrics, 1)

    def _ceiling(self, question: Question, visits: Sequence[Visit]) -> float | None:
        """Return the most requests per second where many come together."""
        if not is_moondream(self._bench):
            return None
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


def is_moondream(bench: Bench) -> bool:
    """Whether the shape is one of a Moondream family, whose requests have floors."""
    return SHAPES[bench.options.shape].family == "moondream"


def serve_clients(bench: Bench, loaded: LoadedModel, reference: Mapping[str, float], tables: Tables) -> None:
    """Run the rows of one engine in the model's own type."""
    parts = bench.options.only
    with closing(EndToEnd(bench, loaded, tables)) as end:
        for question in (DETECT, ANSWER, POINT):
            if question.skill in parts:
                bench.attempt(question.what, partial(end.one_client, question, reference))
        for threads in (False, True):
            if ("threads" if threads else "clients") in parts:
                bench.attempt("clients", partial(end.clients, ANSWER, threads=threads))
        look_at_steps(bench, end)


def serve_variant(bench: Bench, loaded: LoadedModel, tables: Tables, *, fp8: bool = False, plain: bool = False) -> None:
    """Run answers, of one client and of many, on an engine with FP8 linears or with plain operations."""
    parts, what = bench.options.only, "FP8 linears" if fp8 else "plain operations"
    with closing(EndToEnd(bench, loaded, tables, fp8=fp8, plain=plain)) as end:
        if "answer" in parts:
            bench.attempt(f"{ANSWER.what}, {what}", partial(end.one_client, ANSWER, {}))
        if "clients" in parts:
            bench.attempt(f"clients, {what}", partial(end.clients, ANSWER, threads=False))
        if plain:
            look_at_steps(bench, end)


def look_at_steps(bench: Bench, end: EndToEnd) -> None:
    """Look at the decode steps of each number of streams."""
    for streams in (1, 2) if bench.options.tiny else STREAMS:
        if "steps" in bench.options.only:
            bench.attempt(f"steps, {many(streams)}", partial(end.steps, streams))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parse("bench.e2e", __doc__, PARTS, arguments, list(SHAPES))
    bench = Bench("End to end", options, bound="floor, or ceiling of a rate")
    if is_moondream(bench):
        bench.attempt("ceilings", lambda: bench.floors)
    else:
        options.only = [part for part in options.only if part not in FOR_MOONDREAM]
    reference = bench.reference(("detect", "answer", "point")) if "reference" in options.only else {}
    make = partial(load_endless, options.shape, options.where, options.dtype, tiny=options.tiny)
    loaded, tables = bench.attempt("model", make), Tables()
    if loaded is not None:
        bench.attempt("engine", partial(serve_clients, bench, loaded, reference, tables))
        for name in ("plain", "fp8"):
            if name in options.only:
                bench.attempt(f"engine, {name}", partial(serve_variant, bench, loaded, tables, **{name: True}))
    return bench.finish(NOTES)


if __name__ == "__main__":
    show_log()
    sys.exit(main())
