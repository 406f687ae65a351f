"""The period of pipelined decoding: `python -m bench.decode --device cuda`, `--shape moondream3` for other models.

Sequences are handed in together, prefilled together and decoded to their ends by the whole engine, as in
`bench.bubble`; a period goes from one commit to the next while the batch is full. Engines differ in one setting each:
keys and values in FP8, or plain PyTorch operations in the same CUDA graphs instead of fused kernels.

Floor: the bytes of the decoder's matrices, of the language head, and of the keys and values of all sequences, over the
read bandwidth of the same run. Of experts it counts as many as even routes would meet; the report says how many random
words really do.
"""

import dataclasses
import shutil
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.bubble.figures import STEP_HEAD, steady, step_cells, typical
from bench.bubble.report import many, table
from bench.bubble.rounds import Rig, Round
from bench.bubble.subjects import PROMPT, SPREAD, STOP, Subject, Workload, engine_config, prompt_lengths, requests
from bench.gpu.command import Bench, parse, say, show_log
from bench.gpu.figures import Figure
from bench.gpu.models import divide, endless_model, prompts_of
from bench.gpu.routes import random_routes, routes_row, routes_table
from bench.gpu.samples import Sample
from bench.shapes import SHAPES
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.precisions import Precisions
from photonlite.models.quantised import QuantisedLinear, quantise_layers
from photonlite.observe.trace import Tracer

NOTES = """\
- Period: from one commit to the next at full batch, median of means over three steps in each round; then the median of
  rounds that were not traced. Context: from 800 to 909 positions, about 850 on average.
- Words need the language head in every step; boxes need it in one step of three, and the heads of places and sizes.
- Forward, finalize and idle are medians of steady decoding on the device, host tick is the host's work in a period; all
  four from one more round that was traced, and tracing costs the host some time.
- Reference: one step of its own loop at a context of 850, one sequence, until the host has read the token."""


@dataclass(frozen=True, slots=True)
class Variant:
    """An engine and its workload.

    Attributes:
        what: How rows call it.
        workload: Words or boxes.
        settings: Of the engine, where they are not the defaults.
        streams: Sequences at a time.
        aims: Of the period in seconds, by streams.
        weight_aims: The same with the decoder's weights in 8 or 4 bits, by precision.
    """

    what: str
    workload: Workload = "text"
    settings: Mapping[str, Any] = field(default_factory=dict)
    streams: tuple[int, ...] = (1, 8, 32, 64)
    aims: Mapping[int, float] = field(default_factory=dict)
    weight_aims: Mapping[str, Mapping[int, float]] = field(default_factory=dict)


VARIANTS = {
    "bf16": Variant(
        "words",
        aims={1: 0.80e-3, 8: 1.15e-3, 32: 2.15e-3},
        weight_aims={"fp8": {1: 0.62e-3, 8: 0.95e-3, 32: 1.95e-3}, "int4": {1: 0.52e-3, 8: 0.88e-3}},
    ),
    "boxes": Variant("boxes", "detect", streams=(1, 8, 32)),
    "fp8_kv": Variant(
        "words, FP8 KV",
        settings={"kv_dtype": "fp8"},
        streams=(32, 64),
        aims={32: 1.6e-3, 64: 2.4e-3},
        weight_aims={"fp8": {32: 1.55e-3, 64: 2.4e-3}},
    ),
    "plain": Variant("words, plain operations", settings={"fused": False}),
}
PARTS = (*VARIANTS, "reference")
REFERENCE = {"decode": "eager", "decode_compiled": "after its own `compile()`"}


class Decoding:
    """Runs variants and writes their rows.

    Args:
        bench: The run.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        options, config = bench.options, bench.config
        self._ranks = options.tensor_parallel
        model: Any = endless_model(config, options.where, options.dtype)
        self._matrices: int | None = None
        if options.weights != "auto":
            quantise_layers(model, Precisions(options.weights))
            self._matrices = quantised_bytes(model)
        if self._ranks > 1:
            folder = Path(tempfile.mkdtemp())
            weakref.finalize(self, shutil.rmtree, folder)  # each engine's ranks read it
            model = divide(model, self._ranks, options.where, options.dtype, folder)
        prompt, spread, stop = (40, 5, 60) if options.tiny else (PROMPT, SPREAD, STOP)
        vocabulary = prompts_of(config).vocabulary
        name = "random weights"
        self._subject = Subject(name, model, vocabulary, options.where, options.dtype, stop, prompt, spread)
        self._steps: list[list[str]] = []
        self._routes: list[list[str]] = []
        self._model = model

    def run(self, name: str, reference: Mapping[str, float]) -> None:
        """Measure a variant with each number of streams on one engine."""
        variant, tiny = VARIANTS[name], self._bench.options.tiny
        streams = (1, 2) if tiny else variant.streams
        settings = {**variant.settings, "tensor_parallel": self._ranks}
        config = dataclasses.replace(engine_config(self._subject, streams, depth=2), **settings)
        rig = Rig(self._subject, config, reason="length")
        try:
            if rig.graphs is not None:
                say(f"{variant.what}: {rig.graphs.graphs} graphs in {rig.graphs.seconds:.0f} s")
            for count in streams:
                what = f"{variant.what}, {many(count)}"
                self._bench.attempt(what, partial(self._measure, rig, variant, count, reference))
        finally:
            rig.close()

    def _measure(self, rig: Rig, variant: Variant, streams: int, reference: Mapping[str, float]) -> None:
        rounds = self._bench.options.rounds
        self._round(rig, variant, streams, 0)
        plain = [self._round(rig, variant, streams, seed) for seed in range(rounds)]
        traced = self._round(rig, variant, streams, rounds, traced=True)
        sample = Sample.of(typical([end - start for start, end in pairwise(one.commits)]) for one in plain)
        what = f"{variant.what}, {many(streams)}"
        self._show_routes(streams)
        own = min(reference.values(), default=None) if streams == 1 and variant.workload == "text" else None
        self._bench.figure(
            Figure(what, sample, self._aim(variant, streams), bound=self._floor(variant, streams), reference=own)
        )
        self._steps.append([what, *step_cells(steady(traced.steady_spans))])
        self._bench.section("A step on device and host", table(STEP_HEAD, self._steps))
        self._save(traced, what, rig.tracer)

    def _round(self, rig: Rig, variant: Variant, streams: int, seed: int, *, traced: bool = False) -> Round:
        return rig.run(requests(self._subject, variant.workload, streams, seed, bounded=True), traced=traced)

    def _floor(self, variant: Variant, streams: int) -> float | None:
        """Return the time floor of text tokens, on each of several ranks; boxes need other heads in every step."""
        if variant.workload != "text":
            return None
        longest = max(prompt_lengths(self._subject, streams, 0))
        context = self._subject.prompt + (self._subject.stop - longest) / 2
        fp8 = variant.settings.get("kv_dtype") == "fp8"
        floor = self._bench.floors.decode(
            streams, context, kv_bytes=1 if fp8 else self._subject.dtype.itemsize, matrices=self._matrices
        )
        return floor / self._ranks

    def _aim(self, variant: Variant, streams: int) -> float | None:
        """Return the aim of the period: those of variants are of Moondream 2, other shapes have one of words.

        All are of one card.
        """
        weights, name = self._bench.options.weights, self._bench.options.shape
        if self._ranks > 1:
            return None
        if name == "moondream2":
            aims = variant.aims if weights == "auto" else variant.weight_aims.get(weights, {})
            return aims.get(streams)
        return SHAPES[name].step_aims.get(streams) if weights == "auto" and variant is VARIANTS["bf16"] else None

    def _show_routes(self, streams: int) -> None:
        """Add to the report how many experts random words of as many sequences meet."""
        moe = self._bench.config.text.moe
        if moe is None or any(row[0] == str(streams) for row in self._routes):
            return
        counts = random_routes(self._model, streams)
        if counts:
            self._routes.append(routes_row(streams, moe.num_experts, moe.experts_per_token, counts))
            self._bench.section("Different experts of a step, for random words", routes_table(self._routes))

    def _save(self, traced: Round, what: str, tracer: Tracer) -> None:
        folder = self._bench.options.trace
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            tracer.save(folder / f"decode-{what.replace(', ', '-').replace(' ', '_')}.json.gz")


def quantised_bytes(model: MoondreamModel) -> int:
    """Count the bytes of a decoder's quantised matrices, with their scales and shifts."""
    layers = [layer for layer in model.text.modules() if isinstance(layer, QuantisedLinear)]
    return sum(value.nbytes for layer in layers for value in layer.parameters() if value is not layer.bias)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parse("bench.decode", __doc__, PARTS, arguments, ranks=True, weights=True)
    bench = Bench("Decoding: the period of a step", options)
    bench.attempt("ceilings", lambda: bench.floors)
    found = bench.reference(tuple(REFERENCE)) if "reference" in options.only else {}
    reference = {name: seconds for name, seconds in found.items() if name in REFERENCE}
    if reference:
        rows = [[REFERENCE[name], f"{1e3 * seconds:.2f}"] for name, seconds in reference.items()]
        bench.section("Reference", table(["one step", "ms"], rows))
    decoding = bench.attempt("model", lambda: Decoding(bench))
    for name in VARIANTS:
        if decoding is not None and name in options.only:
            bench.attempt(name, partial(decoding.run, name, reference))
    return bench.finish(NOTES)


if __name__ == "__main__":
    show_log()
    sys.exit(main())
