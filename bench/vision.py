"""From decoded pixels to a prefilled prompt: `python -m bench.vision --device cuda`.

Encoder and prefill are launches of the whole engine on images it has not seen, timed by events on its compute stream.
Preprocessing is the engine's own path of an image, timed by itself.

For the shapes of Qwen-VL (`--shape qwen3-vl-2b`) it times the vision tower instead: see bench/gpu/towers.py.

Floors: the model's own products and its attention, each timed alone in the same run (see bench/gpu/floors.py); for
preprocessing the image's bytes over the bandwidth of copies from page-locked memory.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import torch
from PIL import Image

from bench.bubble.report import table
from bench.gpu import towers
from bench.gpu.clock import WARM_UP
from bench.gpu.command import Bench, parse, show_log
from bench.gpu.figures import Figure
from bench.gpu.models import crop_spec, endless_model, make_images, prompts_of, question_of, serve, size_with_crops
from bench.gpu.preprocessing import Preprocessing, upload_bandwidth
from bench.gpu.samples import Sample
from bench.shapes import IN_PARTS, SHAPES
from photonlite.api import VisionModel
from photonlite.config import EngineConfig
from photonlite.models.moondream.model import MoondreamModel

NOTES = """\
- Vision encoder: one encode launch of the engine, from decoded crops to embeddings: patches, blocks, and the projection
  into the decoder's space; on a card also the resizing of the image. Floor: its products and attention.
- Encoder alone: the blocks without projection and resizing, on random crops, in a CUDA graph.
- Prefill: BOS, image and question of one sequence, one launch, without the choice of the first token.
- Preprocessing: from a decoded PIL image until its crops are on the device: checks, hash, packing, copy, resize. On a
  CPU: until they are cut. "Equal to Pillow" is checked on the device's crops, bit by bit, in this run.
- Reference: its encoder alone, and its `prepare_crops`, in a process of its own on the same machine."""

AIMS = {1: 1.8e-3, 9: 11.0e-3, 13: 15.5e-3}
PREFILL, PREFILL_AIM = 740, 3.5e-3
IMAGES = {(640, 480): 0.5e-3, (1920, 1080): 1.0e-3}
SHARE = 0.80
Ask = Callable[[VisionModel, Image.Image], float]
"""Asks about an image, and gives the seconds that are wanted."""

PARTS = ("encoder", "prefill", "preprocessing", "fp8", "reference")


class Launches:
    """One engine whose encode and prefill launches are timed.

    Args:
        bench: The run.
        network: The model.
        fp8: Whether linear layers multiply e4m3 numbers.
    """

    def __init__(self, bench: Bench, network: MoondreamModel, *, fp8: bool) -> None:
        self._bench = bench
        self._network = network
        self._fp8 = fp8
        options = bench.options
        config = EngineConfig(
            max_batch=4,
            graph_sizes=(1,),
            fp8_linears=fp8,
            kv_cache_bytes=(1 << 32) if options.cuda else (1 << 24),
        )
        self._model = serve(network, options.where, options.dtype, config)
        self._suffix = ", FP8 linears" if fp8 else ""
        self._shares: list[list[str]] = []
        with torch.inference_mode():
            self._encoder = network.crop_encoder(fp8=fp8)

    def close(self) -> None:
        """Free the engine."""
        self._model.close()

    def encoder(self, crops: int, reference: Mapping[str, float]) -> None:
        """Time encode launches of one image with this number of crops."""
        bench = self._bench
        source = make_images(*size_with_crops(self._network.crop_spec, crops))
        sample = self._timed(source, lambda model, image: model.encode_image(image).metrics.encode_s)
        stage = bench.floors.encoder(crops, fp8=self._fp8)
        projector = bench.floors.projector(fp8=self._fp8)
        figure = Figure(
            f"vision encoder, {crops} crop{'s' * (crops > 1)}{self._suffix}",
            sample,
            None if self._fp8 else AIMS[crops],
            bound=stage.seconds + projector,
            reference=reference.get(f"vision {crops}"),
        )
        bench.figure(figure)
        times = (sample.median, self._alone(crops), stage.products_s, stage.attention_s, projector)
        self._shares.append(
            [
                str(crops),
                *(f"{1e3 * seconds:.2f}" for seconds in times),
                f"{figure.share:.0%}",
                "reached" if figure.share >= SHARE else "MISSED",
                stage.backend,
            ]
        )
        head = ["crops", "launch (ms)", "encoder alone", "products", "attention", "projection", "share"]
        head += [f"at least {SHARE:.0%}", "fastest attention"]
        bench.section(f"Encoder and its ceilings{self._suffix}", table(head, self._shares))

    def prefill(self) -> None:
        """Time the prefill launch of one image and a question."""
        prompts = prompts_of(self._bench.config)
        prefix = self._bench.config.prefix_length
        wanted = PREFILL if prefix < PREFILL < prefix + 64 else prefix + 10
        question = question_of(prompts, wanted - prefix)
        tokens = prefix + len(prompts.query(question, reasoning=False, refs=()))
        source = make_images(*size_with_crops(self._network.crop_spec, 1))

        def ask(model: VisionModel, image: Image.Image) -> float:
            answer = model.query(image, question, settings={"max_tokens": 1})
            if answer.metrics is None or answer.metrics.prompt_tokens != tokens:
                raise AssertionError(f"a prompt of {tokens} tokens came out as {answer.metrics}")
            return answer.metrics.prefill_s

        stage = self._bench.floors.prefill(tokens, fp8=self._fp8)
        what = f"prefill of {tokens} tokens{self._suffix}"
        aim = None if self._fp8 else PREFILL_AIM
        self._bench.figure(Figure(what, self._timed(source, ask), aim, bound=stage.seconds))

    def _timed(self, source: Iterator[Image.Image], ask: Ask) -> Sample:
        count = self._bench.options.rounds
        for image in islice(source, WARM_UP):
            ask(self._model, image)
        return Sample.of(ask(self._model, image) for image in islice(source, count))

    def _alone(self, crops: int) -> float:
        """Time the encoder by itself, in seconds."""
        size, where = self._network.crop_spec.crop_size, self._bench.options.where
        pixels = torch.randint(0, 256, (crops, size, size, 3), device=where, dtype=torch.uint8)
        return self._bench.clock.measure(partial(self._encoder.encode, pixels), graphed=self._bench.options.cuda).median


def preprocess(bench: Bench, reference: Mapping[str, float]) -> None:
    """Time the way of decoded images to the device, and compare their crops with Pillow's."""
    bandwidth = upload_bandwidth(bench.clock)
    bench.section("Copies", f"From page-locked memory to the device: {bandwidth / 1e9:.1f} GB/s.")
    with Preprocessing(bench.clock, crop_spec(bench.config)) as path:
        for (width, height), aim in IMAGES.items():
            images = list(islice(make_images(width, height), WARM_UP + 4 * bench.options.rounds))
            sample = bench.clock.measure_call(partial(_next_crops, path, iter(images)), rounds=4 * bench.options.rounds)
            equal = "equal to Pillow" if path.equal(images[0]) else "NOT EQUAL to Pillow"
            own = reference.get(f"preprocessing {width}x{height}")
            what = f"preprocessing {width}x{height}, {equal}"
            bench.figure(Figure(what, sample, aim, bound=3 * width * height / bandwidth, reference=own))


def _next_crops(path: Preprocessing, images: Iterator[Image.Image]) -> torch.Tensor:
    return path.crops(next(images))


def launch(bench: Bench, network: MoondreamModel, reference: Mapping[str, float], *, fp8: bool) -> None:
    """Time the launches of one engine."""
    parts = bench.options.only
    launches = Launches(bench, network, fp8=fp8)
    try:
        if "encoder" in parts:
            for crops in AIMS:
                bench.attempt(f"encoder, {crops} crops", partial(launches.encoder, crops, reference))
        if "prefill" in parts:
            bench.attempt("prefill", launches.prefill)
    finally:
        launches.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parse("bench.vision", __doc__, PARTS, arguments, IN_PARTS)
    bench = Bench("From pixels to a prefilled prompt", options)
    if SHAPES[options.shape].family == "qwen":
        bench.attempt("tower", partial(towers.measure_towers, bench))
        return bench.finish(towers.NOTES)
    bench.attempt("ceilings", lambda: bench.floors)
    reference = bench.reference(("vision", "preprocessing", "encode_image")) if "reference" in options.only else {}
    if "encode_image" in reference:
        whole = (
            f"`encode_image` of a decoded 640x480 image, prefill included: {1e3 * reference['encode_image']:.1f} ms."
        )
        bench.section("Reference", whole)
    if {"encoder", "prefill"} & set(options.only):
        network = bench.attempt("model", lambda: endless_model(bench.config, options.where, options.dtype))
        for fp8 in (False, True) if "fp8" in options.only else (False,):
            if network is not None:
                name = "FP8 linears" if fp8 else "engine"
                bench.attempt(name, partial(launch, bench, network, reference, fp8=fp8))
    if "preprocessing" in options.only:
        bench.attempt("preprocessing", partial(preprocess, bench, reference))
    return bench.finish(NOTES)


if __name__ == "__main__":
    show_log()
    sys.exit(main())
