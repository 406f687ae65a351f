"""What adapters cost: `python -m bench.adapters --device cuda`.

Decoding: the mean time between two tokens of a request where all run together: without adapters, with several of them,
and with one row of all that has one. These take turns on one engine. Loading: when the first token of a request comes
whose adapter is in a slot, in host memory, or on disk alone; and, by turns, how long a token of streams without
adapters takes while such requests come, against requests without adapters at the same times.

Weights are random, adapters adapt all linear layers of the text blocks; `--tiny` is a rehearsal for machines without a
card, whose figures mean nothing.
"""

import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from bench.bubble.report import table
from bench.gpu.command import Options, parse
from bench.gpu.machine import describe
from bench.gpu.models import endless_model, prompts_of
from bench.shapes import SHAPES
from photonlite.api import VisionModel
from photonlite.config import EngineConfig, ImageLimits
from photonlite.models.checkpoint import LoadedModel
from photonlite.models.moondream import checkpoint
from photonlite.models.moondream.config import MoondreamConfig

RANK, ADAPTERS = 16, 8
STREAMS = ((8, 8, 1.12), (32, 8, 1.08))  # streams, adapters among them, and the aim against none
BESIDE = 8  # streams that decode while adapters are loaded
PLACES: tuple[tuple[str, dict[str, int], float | None], ...] = (
    ("in its slot", {"adapter_slots": ADAPTERS}, None),
    ("in host memory", {"adapter_slots": 1}, 0.005),
    ("on disk", {"adapter_slots": 1, "adapter_bytes": 0}, 0.060),
)
"""Where an adapter is, engine settings that keep it there, and the aim for how much later the first token comes."""

_PAUSE_S = 0.02
PARTS = ("decode", "load")


def write_adapter(network: nn.Module, folder: Path, seed: int, rank: int) -> Path:
    """Write a random adapter of the text blocks as PEFT does; its terms are small, so that nothing overflows."""
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, layer in network.named_modules():
        if name.startswith("text.blocks.") and isinstance(layer, nn.Linear):
            sizes = {"A": (rank, layer.in_features), "B": (layer.out_features, rank)}
            for half, size in sizes.items():
                value = torch.randn(size, generator=draw) * 0.02
                tensors[f"base_model.model.{name}.lora_{half}.weight"] = value.bfloat16()
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))
    return folder


class Adapted:
    """A model with random weights and several adapters."""

    def __init__(self, options: Options, folder: Path, **engine: Any) -> None:
        shape = SHAPES[options.shape]
        config = MoondreamConfig.from_dict(shape.tiny if options.tiny else shape.raw)
        self.network = endless_model(config, options.where, options.dtype)
        self.tokens = 40 if options.tiny else 300
        self.prompts = prompts_of(config)
        loaded = LoadedModel("random weights", self.network, self.prompts, family=checkpoint)
        rows, memory = (64, 16 << 30) if options.cuda else (32, None)
        settings = EngineConfig(max_batch=rows, kv_cache_bytes=memory, adapter_rank=RANK, **engine)
        self.model = VisionModel(loaded, options.where, options.dtype, ImageLimits(), settings)
        self.names = [f"adapter-{seed}" for seed in range(ADAPTERS)]
        for seed, name in enumerate(self.names):
            self.model.load_adapter(write_adapter(self.network, folder / name, seed, RANK), name=name)

    def ask(self, adapters: Sequence[str | None], tokens: int) -> list[Any]:
        settings: Any = {"max_tokens": tokens}
        tasks = [
            {
                "skill": "query",
                "question": f"a {index}",
                "settings": settings,
                "adapter": name,
                "cache_salt": f"{index}",
            }
            for index, name in enumerate(adapters)
        ]
        return self.model.batch(tasks, errors="raise")

    def period(self, adapters: Sequence[str | None]) -> float:
        """Return the mean seconds between tokens where all sequences run together.

        A long round less a short one: both have the same pauses, in which prompts of others are computed.
        """
        marks = [self._gaps()]
        for tokens in (self.tokens // 4, self.tokens):
            self.ask(adapters, tokens)
            marks.append(self._gaps())
        (short_s, short), (long_s, long) = (
            (end[0] - start[0], end[1] - start[1]) for start, end in itertools.pairwise(marks)
        )
        return (long_s - short_s) / max(1, long - short)

    def period_beside(self, adapters: Sequence[str | None]) -> float:
        """Return it with the pauses, of streams without adapters, while requests for a token come that have these."""
        names, ended = itertools.cycle(adapters), threading.Event()

        def come() -> None:
            while not ended.wait(_PAUSE_S):
                self.first_token(next(names))

        others = threading.Thread(target=come)
        others.start()
        try:
            before = self._gaps()
            self.ask([None] * BESIDE, self.tokens)
            after = self._gaps()
        finally:
            ended.set()
            others.join()
        return (after[0] - before[0]) / max(1, after[1] - before[1])

    def first_token(self, adapter: str | None) -> float:
        (found,) = self.ask([adapter], 1)
        return float(found.metrics.time_to_first_token_s)

    def _gaps(self) -> tuple[float, int]:
        histogram = self.model.metrics()["histograms"]["token_s"]
        return histogram["sum"], histogram["count"]


def decoding(adapted: Adapted, rounds: int) -> list[list[str]]:
    rows = []
    for streams, count, aim in STREAMS:
        cases: dict[str, list[str | None]] = {
            "none": [None] * streams,
            "adapters": [adapted.names[index % count] for index in range(streams)],
            "one row of all": [adapted.names[0], *[None] * (streams - 1)],
        }
        found: dict[str, list[float]] = {name: [] for name in cases}
        for turn in range(rounds + 1):
            for name, adapters in cases.items():
                seconds = adapted.period(adapters)
                if turn:  # the first one warms up
                    found[name].append(seconds)
        base = statistics.median(found["none"])
        for name, times in found.items():
            middle = statistics.median(times)
            spread = f"{1e3 * min(times):.3f} to {1e3 * max(times):.3f}"
            wanted = f"{aim} x" if name == "adapters" else ""
            ratio = f"{middle / base:.3f} x"
            rows.append([f"{streams} streams, {name}", f"{1e3 * middle:.3f}", spread, ratio, wanted])
    return rows


def loading(options: Options, folder: Path) -> list[list[str]]:
    """Measure first tokens of adapters in turn: each was pushed out of the only slot, or of host memory too."""
    rows: list[list[str]] = []
    base = 0.0
    for what, engine, aim in PLACES:
        adapted = Adapted(options, folder / what.replace(" ", "-"), **engine)
        order = adapted.names * (options.rounds + 1)
        seconds = [adapted.first_token(name) for name in order][len(adapted.names) :]
        middle = statistics.median(seconds)
        base = base or middle
        later = ["", ""] if aim is None else [f"{1e3 * (middle - base):.2f}", f"{1e3 * aim:.0f}"]
        times = [f"{1e3 * middle:.2f}", f"{1e3 * max(seconds):.2f}"]
        rows.append([what, *times, *later, *beside(adapted, options.rounds)])
        adapted.model.close()
    return rows


def beside(adapted: Adapted, rounds: int) -> list[str]:
    """Return the period of streams beside requests without adapters, with them, and the median of ratios."""
    pairs = [(adapted.period_beside([None]), adapted.period_beside(adapted.names)) for _ in range(rounds + 1)][1:]
    periods = [f"{1e3 * statistics.median(times):.3f}" for times in zip(*pairs, strict=True)]
    return [*periods, f"{statistics.median(own / plain for plain, own in pairs):.3f} x"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parse("bench.adapters", __doc__, PARTS, arguments)
    parts = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "decode" in options.only:
            adapted = Adapted(options, folder / "decode")
            head = ["period of decoding", "ms", "rounds (ms)", "against none", "aim"]
            parts.append(table(head, decoding(adapted, options.rounds)))
            adapted.model.close()
        if "load" in options.only:
            head = ["first token, adapter", "median (ms)", "slowest", "later", "aim"]
            head += ["others' period beside none (ms)", "beside these", "ratio"]
            parts.append(table(head, loading(options, folder / "load")))
    made = f"{time.strftime('%Y-%m-%d')}, {describe(options.where)}. Made by `{options.command}`."
    text = "\n\n".join([made, *parts]) + "\n"
    print(text)
    if options.output is not None:
        options.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
