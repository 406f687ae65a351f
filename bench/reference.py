"""The reference implementation, vikhyat/moondream (Apache-2.0), measured in a process of its own.

It is fetched for the run and no part of this repository: a folder that holds its `moondream/torch`. The process writes
one line for each figure, so that what was measured before a failure or the end of patience is kept:

    python -m bench.reference FOLDER --device cuda --parts decode vision

Weights are random, the end id is never chosen, and the tokenizer is that of the shipped checkpoint: nothing is
downloaded.
"""

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import tokenizers
import torch

from bench.bubble.subjects import fill_randomly
from bench.gpu.clock import WARM_UP, Clock
from bench.gpu.models import NEVER, make_images
from photonlite.models.loading import resolve

PARTS = ("decode", "vision", "preprocessing", "encode_image", "detect", "answer", "point", "decode_compiled")

CONTEXT = 850
ROOT = Path(__file__).resolve().parents[1]

_TINY = {
    "text": {"dim": 128, "ff_dim": 128, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2},
    # Its code takes the number of layers for the side of the grid.
    "vision": {"enc_dim": 16, "enc_ff_dim": 16, "enc_n_heads": 1, "proj_out_dim": 128, "proj_inner_dim": 16},
    "region": {"dim": 128, "coord_feat_dim": 8, "size_feat_dim": 8, "inner_dim": 16},
}


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured.

    Attributes:
        medians: In seconds, by name.
        failures: What each part that failed has raised.
    """

    medians: dict[str, float]
    failures: dict[str, str]


class Reference:
    """The reference's model with random weights.

    Args:
        folder: Holds `moondream/torch`.
        device: Where it runs.
        tiny: Whether it is as small as its code allows.
        rounds: Measurements of each figure.
    """

    def __init__(self, folder: Path, device: torch.device, *, tiny: bool, rounds: int) -> None:
        sys.path.insert(0, str(folder.resolve()))
        module = importlib.import_module("moondream.torch.moondream")
        module.Tokenizer = _LocalTokenizer  # type: ignore[attr-defined]
        self._vision = importlib.import_module("moondream.torch.vision")
        self._text = importlib.import_module("moondream.torch.text")
        self._device = device
        self._clock = Clock(device)
        self._rounds = rounds
        self._tiny = tiny
        self._config = module.MoondreamConfig.from_dict(_TINY if tiny else {})
        with torch.device(device):
            self._model: Any = module.MoondreamModel(self._config)
        self._model.requires_grad_(False).eval()
        fill_randomly(self._model, seed=0)
        self._model.text["lm_head"].bias[self._config.tokenizer.eos_id] = NEVER

    def decode(self) -> Iterator[tuple[str, float]]:
        """Time one decode step of its own loop at a context of about 850."""
        yield "decode", self._decode_step()

    def decode_compiled(self) -> Iterator[tuple[str, float]]:
        """The same after its own `compile()`; nothing else runs after it."""
        self._model.compile()
        yield "decode_compiled", self._decode_step()

    def vision(self) -> Iterator[tuple[str, float]]:
        """Time the vision encoder alone."""
        size = self._config.vision.crop_size
        for crops in (1, 2) if self._tiny else (1, 9, 13):
            pixels = torch.zeros(crops, 3, size, size, device=self._device, dtype=torch.bfloat16)
            yield (
                f"vision {crops}",
                self._clock.measure(partial(self._model._vis_enc, pixels), rounds=self._rounds).median,
            )

    def preprocessing(self) -> Iterator[tuple[str, float]]:
        """Time decoded images until their crops are on the device."""

        def prepare(source: Iterator[Any]) -> None:
            self._vision.prepare_crops(next(source), self._config.vision, self._device)

        for width, height in ((640, 480), (1920, 1080)):
            seconds = self._call_time(partial(prepare, self._images(width, height)))
            yield f"preprocessing {width}x{height}", seconds

    def encode_image(self) -> Iterator[tuple[str, float]]:
        """Time an image of 640 x 480 until its prefix is in the cache."""
        source = self._images(640, 480)
        yield "encode_image", self._call_time(lambda: self._model.encode_image(next(source)))

    def detect(self) -> Iterator[tuple[str, float]]:
        """Time three boxes on an image of 640 x 480."""
        source = self._images(640, 480)

        def ask() -> None:
            encoded = self._model.encode_image(next(source))
            found = self._model.detect(encoded, "mug", settings={"max_objects": 3})["objects"]
            if len(found) != 3:
                raise RuntimeError(f"the reference found {len(found)} objects, not 3")

        yield "detect", self._call_time(ask)

    def answer(self) -> Iterator[tuple[str, float]]:
        """Time an answer of three tokens on an image of 850 x 600."""
        source = self._images(850, 600)

        def ask() -> None:
            encoded = self._model.encode_image(next(source))
            self._model.query(encoded, "what is it", settings={"max_tokens": 3, "temperature": 0})

        yield "answer", self._call_time(ask)

    def point(self) -> Iterator[tuple[str, float]]:
        """Time one point on a frame of 378 x 378."""
        source = self._images(378, 378)

        def ask() -> None:
            encoded = self._model.encode_image(next(source))
            self._model.point(encoded, "mug", settings={"max_objects": 1})

        yield "point", self._call_time(ask)

    def _decode_step(self) -> float:
        """Embed, decode, choose and read the choice, as its loop does for every token."""
        device, position = self._device, CONTEXT
        mask = torch.zeros(1, 1, self._config.text.max_context, device=device, dtype=torch.bool)
        mask[:, :, : position + 1] = 1
        pos_ids = torch.tensor([position], device=device, dtype=torch.long)
        token = torch.tensor([[7]], device=device)

        def step() -> None:
            with torch.inference_mode():
                embedded = self._text.text_encoder(token, self._model.text)
                logits, _ = self._model._decode_one_tok(embedded, mask, pos_ids, None)
                torch.argmax(logits, dim=-1).item()

        return self._call_time(step)

    def _images(self, width: int, height: int) -> Iterator[Any]:
        """Return as many images as one figure takes, made beforehand; small ones in a rehearsal."""
        size = (378, 378) if self._tiny else (width, height)
        return iter(list(islice(make_images(*size), self._rounds + WARM_UP)))

    def _call_time(self, work: Callable[[], object]) -> float:
        return self._clock.measure_call(work, rounds=self._rounds).median


class _LocalTokenizer:
    """Stands for the class from which the reference fetches its tokenizer."""

    @staticmethod
    def from_pretrained(name: str) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_file(str(resolve(None).tokenizer))


def ask(folder: Path, device: torch.device, parts: Sequence[str], *, tiny: bool, patience_s: float) -> Found:
    """Measure the reference in a process of its own.

    Args:
        folder: Holds `moondream/torch`.
        device: Where it runs.
        parts: Of `PARTS`, in the order in which they run.
        tiny: Whether the model is as small as the reference's code allows.
        patience_s: Seconds after which the process is ended.

    Raises:
        RuntimeError: Nothing was measured.
    """
    command = [sys.executable, "-m", "bench.reference", str(folder), "--device", device.type, "--parts", *parts]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            [*command, *["--tiny"] * tiny],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        failures = {}
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            failures["the rest"] = f"ended after {patience_s:.0f} s"
        finally:
            process.kill()
            process.wait()
        out.seek(0)
        text = out.read()
    lines = list(_read(text))
    failures |= {line["name"]: line["error"] for line in lines if "error" in line}
    medians = {line["name"]: float(line["seconds"]) for line in lines if "seconds" in line}
    if not medians and not failures:
        raise RuntimeError(f"the reference measured nothing: {text[-600:]}")
    return Found(medians, failures)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.reference", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="holds moondream/torch")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(arguments)
    begun = time.perf_counter()
    reference = Reference(options.folder, torch.device(options.device), tiny=options.tiny, rounds=options.rounds)
    _write({"name": "start", "note": f"{time.perf_counter() - begun:.1f} s"})
    for part in options.parts:
        try:
            for name, seconds in getattr(reference, part)():
                _write({"name": name, "seconds": seconds})
        except Exception as error:  # the other parts may still run
            _write({"name": part, "error": " ".join(f"{type(error).__name__}: {error}".split())[:2000]})
    return 0


def _read(text: str) -> Iterator[dict[str, Any]]:
    """Return the lines of results among other output; the last one may be incomplete."""
    for line in text.splitlines():
        if line.startswith('{"name"'):
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def _write(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
