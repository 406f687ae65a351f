"""Measure what weights in 8 and 4 bits cost and gain: `python -m bench.quantised --scenes 2000 --workers 2`.

The shipped checkpoint answers questions about held-out scenes in every precision; with `--records FOLDER` a run that
was stopped goes on, and the page has what there is after each part. On a card `--part` is large, because each
part starts processes that load the model: `--device cuda --workers 8 --part 500`. A model of Moondream 2's shape with
random weights computes logits and decode steps on the CPU; for steps on a card see `bench.decode --weights`.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch

from bench.gpu.machine import describe
from bench.gpu.page import Page
from bench.nano.evaluation.evaluate import FIRST_SEED
from bench.nano.evaluation.records import SKILLS, Skill
from bench.quantised.answers import ask_in_parts, choices_of, write_answers
from bench.quantised.logits import compare_logits, time_steps
from bench.quantised.models import full_model
from bench.quantised.products import time_products
from photonlite.device.names import resolve_device

RESULTS = Path(__file__).parents[1] / "results" / "quantised.md"
PARTS = ("answers", "logits", "products", "steps")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.quantised", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS, help="parts")
    parser.add_argument("--device", default="cpu", help="that answers questions: auto, cpu or cuda")
    parser.add_argument("--scenes", type=int, default=2000, help="that questions are asked about")
    parser.add_argument("--skills", nargs="+", default=list(SKILLS), choices=get_args(Skill), help="of the questions")
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="of the first scene")
    parser.add_argument("--part", type=int, default=20, help="scenes that all precisions are asked about before others")
    parser.add_argument("--workers", type=int, default=0, help="processes of one thread each; 0: this process")
    parser.add_argument("--records", type=Path, help="folder of answers; a run that was stopped goes on from there")
    parser.add_argument("--folder", help="int4 checkpoint of `photonlite quantize`, asked instead of all precisions")
    parser.add_argument("--words", type=int, default=128, help="whose logits are compared")
    parser.add_argument("--rounds", type=int, default=5, help="decode steps of each variant")
    parser.add_argument("--layers", type=int, default=24, help="of the decoder; 24 take 20 GB of memory")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape: a rehearsal")
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d"), help="date of the page")
    parser.add_argument("--output", type=Path, default=RESULTS, help="markdown file to write")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurement and write the page."""
    options = parse(arguments)
    page = Page("What weights in 8 and 4 bits cost and gain", options.output)
    machine = describe(resolve_device(options.device))
    page.put("", f"{options.date}, {machine}. Made by `python -m bench.quantised`.\n\n{NOTES}")
    if "products" in options.only:
        shapes = (((128, 64),), (1, 5)) if options.tiny else ()
        page.put("Products on the CPU, one thread", time_products(options.rounds, *shapes))
    if "logits" in options.only or "steps" in options.only:
        model = full_model(options.layers, tiny=options.tiny)
        shape = "A tiny shape" if options.tiny else f"Moondream 2's shape, {options.layers} layers"
        if "logits" in options.only:
            page.put(
                f"{shape}, random weights: logits behind {options.words} words", compare_logits(model, options.words)
            )
        if "steps" in options.only:
            cores = torch.get_num_threads()
            page.put(f"{shape}: decode steps of one stream, {cores} cores", time_steps(model, options.rounds))
        del model
    if "answers" in options.only:
        given = options.scenes, options.seed, options.device, options.workers, options.skills, options.records
        for records in ask_in_parts(*given, options.part, choices_of(options.folder)):
            page.put("The shipped checkpoint", write_answers(records))
    print(page)


NOTES = """\
- int8 and fp8 (e4m3): a scale for each output; int4: scale and shift for each group of 128 inputs. Rounded to the
  nearest. Of the decoder's linear layers and its head; of the image encoder where a column says so.
- Logits: KL divergence and greedy tokens against float32 on the same random weights. A step: one position at a context
  of 850, with the language head, without an engine around it."""


if __name__ == "__main__":
    main()
