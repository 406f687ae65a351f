"""Measure what keys and values in FP8 cost in accuracy: `python -m bench.kv_fp8`.

The shipped checkpoint answers questions about held-out scenes with `kv_dtype` "auto" and "fp8". Rounding errors are
given layer by layer, and on a CUDA card also for a model of Moondream 2's shape with random weights, with its logits.
No figure is a time.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bench.bubble.report import table
from bench.bubble.subjects import random_model
from bench.gpu.machine import describe
from bench.gpu.page import Page
from bench.kv_fp8.answers import Comparison, compare_answers
from bench.kv_fp8.rounding import LayerFigures, LogitFigures, Prompt, compare_logits, watch_layers
from bench.nano.evaluation.evaluate import FIRST_SEED, find_sprites
from bench.nano.scenes.held_out.scene import make_scene
from bench.nano.scenes.objects import load_objects
from photonlite.device.names import resolve_device, resolve_dtype
from photonlite.errors import SettingsError
from photonlite.images.crops import ImageCrops, cut_crops
from photonlite.models.checkpoint import load_checkpoint
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.model import MoondreamModel

RESULTS = Path(__file__).parents[1] / "results"
WORDS = 512
"""Random words behind a random image: as many greedy choices are compared."""

_CONTROL_IDS = 21  # in every family


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.kv_fp8", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="auto, cpu or cuda")
    parser.add_argument("--scenes", type=int, default=150, help="that questions are asked about; 0 leaves answers out")
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="of the first scene")
    parser.add_argument("--workers", type=int, default=0, help="processes of one thread each; 0: this process")
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d"), help="date of the page")
    parser.add_argument("--output", type=Path, help="markdown file to write; bench/results/kv_fp8.md on a CPU")
    options = parser.parse_args(arguments)
    try:
        options.device = resolve_device(options.device)
    except SettingsError as error:
        parser.error(str(error))
    options.output = options.output or RESULTS / ("kv_fp8.md" if options.device.type == "cpu" else "kv_fp8-cuda.md")
    return options


def write_answers(found: Comparison, scenes: int) -> str:
    """Write how the answers changed."""
    lost, gained = found.found_by_one
    agreement = [
        [skill, f"{one.asked:,}", f"{one.as_many / one.asked:.1%}", f"{one.same / one.asked:.1%}"]
        for skill, one in found.agreement.items()
    ]
    return "\n\n".join(
        [
            f"{scenes} held-out scenes, {found.auto['detect']['boxes']} true boxes, greedy.",
            table(["shipped checkpoint", "auto", "FP8", "difference"], found.rows()),
            f"True boxes found only without FP8: {lost}; only with FP8: {gained}. FP8 would be worse beyond chance if "
            "the difference were more than twice the root of the sum.",
            table(["answers", "asked", "as many boxes or points", "the same to the last bin"], agreement),
        ]
    )


def write_layers(found: Sequence[LayerFigures]) -> str:
    """Write what rounding does to each layer."""
    head = ["layer"]
    head += [f"{what}: {name}" for what in ("K", "V") for name in ("RMS predicted", "seen", "largest / scale", "error")]
    rows = []
    for number, layer in enumerate(found):
        cells = [str(number)]
        for one in (layer.keys, layer.values):
            cells += [f"{one.predicted:.3g}", f"{one.observed:.3g}", f"{one.largest:.1f}", f"{one.error:.2%}"]
        rows.append([*cells, f"{layer.attention:.2%}"])
    return table([*head, "attention: error"], rows)


def write_logits(found: dict[str, LogitFigures]) -> str:
    """Write what rounding does to logits."""
    head = ["run", "error / deviation", "same greedy token", "margin, median", "largest margin lost"]
    return table(
        head,
        [
            [name, f"{one.error:.4f}", f"{one.agree:.1%}", f"{one.margin:.4f}", f"{one.lost:.4f}"]
            for name, one in found.items()
        ],
    )


def shipped_layers(device: torch.device, seed: int) -> list[LayerFigures]:
    """Record the shipped checkpoint while it runs a prompt with a scene and a question."""
    loaded = load_checkpoint(None, device=device, dtype=resolve_dtype("auto", device))
    if not isinstance(loaded.model, MoondreamModel):
        raise AssertionError(f"the shipped checkpoint is a {type(loaded.model).__name__}")
    scene = make_scene(seed, load_objects(), find_sprites())
    ids = [token.id for token in loaded.prompts.caption("short")]
    return watch_layers(loaded.model, Prompt(cut_crops(scene.image, loaded.model.crop_spec), ids))


def random_prompt(model: MoondreamModel, words: int) -> Prompt:
    """Draw an image of one crop and words."""
    side, rng = model.crop_spec.crop_size, np.random.default_rng(0)
    pixels = rng.integers(0, 256, (1, side, side, 3), np.uint8)
    return Prompt(ImageCrops(pixels, (1, 1)), rng.integers(_CONTROL_IDS, model.shape.vocab_size, words).tolist())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurement and write the page."""
    options = parse(arguments)
    page = Page("What keys and values in FP8 cost in accuracy", options.output)
    page.put("", f"{options.date}, {describe(options.device)}. Made by `python -m bench.kv_fp8`.\n\n{NOTES}")
    page.put("The shipped checkpoint, layer by layer", write_layers(shipped_layers(options.device, options.seed)))
    if options.device.type == "cuda":
        model = random_model(MoondreamConfig.from_dict({"model_type": "moondream2"}), options.device)
        prompt = random_prompt(model, WORDS)
        page.put("Moondream 2's shape, random weights, layer by layer", write_layers(watch_layers(model, prompt)))
        logits = compare_logits(model, prompt, torch.bfloat16)
        text = f"{LOGIT_NOTES}\n\n{write_logits(logits)}"
        page.put(f"Moondream 2's shape, random weights: logits of {WORDS} positions against float32", text)
    if options.scenes:
        found = compare_answers(options.scenes, options.seed, str(options.device), options.workers)
        page.put("Answers of the shipped checkpoint", write_answers(found, options.scenes))
    print(page)


NOTES = """\
- Keys and values are divided by a power of two, one for the keys and one for the values of a layer, and rounded to e4m3
  (4 bits of significand, at most 448). The scale comes from the weights: it brings the predicted root mean square (RMS)
  into [2, 4).
- RMS predicted: from the weights; seen: of a prompt with an image. Largest / scale: what is above 448 would be cut.
  Error: RMS of the rounding error over the RMS of what was rounded; about 2.6 % is what 4 bits give.
- Attention: RMS of the change of its output over that of the output, when the keys and values of this layer alone are
  rounded."""

LOGIT_NOTES = """\
Difference from float32 over the standard deviation of a position's logits, RMS. Margin: the largest logit less the
second, in standard deviations; a greedy token changes where the margin is about the size of the error."""


if __name__ == "__main__":
    main()
