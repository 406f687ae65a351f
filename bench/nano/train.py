"""Train the nano checkpoint: ``python -m bench.nano.train --minutes 24 --out DIR [--start WEIGHTS]``.

The run is measured in minutes: learning rate and curriculum follow the clock, so it ends where it should on any card.
It writes weights (float16, the public key names), a log of JSON lines, and pictures of what it was shown.
"""

import argparse
import copy
import json
import math
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bench.nano.compose import Composer, Difficulty, Scenes
from bench.nano.config import config_dict, initialise
from bench.nano.loss import Learner, PackedAttention, Weights, dense_targets, pack
from bench.nano.probe import f1
from bench.nano.questions import QuestionMaker
from bench.nano.sprites import SHEET, load_sheet
from bench.nano.tokenizer import TOKENIZER_JSON, load_answer_tokenizer, load_tokenizer
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.model import MoondreamModel

_EMA = 0.9995
_GROUNDING_QUESTIONS = 4


def main() -> None:
    """Parse arguments and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="weights to start from (a warm restart; no curriculum)")
    parser.add_argument("--sheet", type=Path, default=SHEET)
    parser.add_argument("--batch", type=int, default=192)
    parser.add_argument("--rate", type=float, default=8e-4, help="peak learning rate")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ramp", type=float, default=0.35, help="share of the run that the curriculum takes")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eval-minutes", type=float, default=3.0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    Trainer(options).run()


class Feed:
    """Makes scenes and questions; on a GPU by replaying captured graphs, so that the host has nothing to launch.

    What the host draws (sizes of spoiled pictures) is frozen in a graph: there are several, taken at random.

    Args:
        composer: draws scenes.
        maker: asks about them.
        batch: scenes at a time.
        graphs: how many to capture.
    """

    def __init__(self, composer: Composer, maker: QuestionMaker, batch: int, graphs: int = 5) -> None:
        self.composer, self.maker, self.batch = composer, maker, batch
        self.difficulty = Difficulty().tensor(composer.device)
        self.graphs: list[tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]] = []
        if composer.device.type == "cuda":
            for _ in range(3):
                self._make()
            torch.cuda.synchronize()
            for _ in range(graphs):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self.graphs[0][0].pool() if self.graphs else None):
                    made = self._make()
                self.graphs.append((graph, made))

    def __call__(self, difficulty: Difficulty) -> tuple[Tensor, ...]:
        """Give the arguments of :meth:`Learner.forward`; they are overwritten by the next call."""
        self.difficulty.copy_(difficulty.tensor(self.difficulty.device))
        if not self.graphs:
            return self._make()
        graph, made = random.choice(self.graphs)
        graph.replay()
        return made

    @torch.no_grad()
    def _make(self) -> tuple[Tensor, ...]:
        scenes = self.composer(self.batch, self.difficulty)
        return (scenes.pixels, *dense_targets(scenes), *pack(self.maker(scenes)))


class Trainer:
    """One run: scenes in, weights out."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.device = options, torch.device(options.device)
        torch.manual_seed(options.seed)
        random.seed(options.seed)
        torch.set_float32_matmul_precision("high")
        tokenizer = load_tokenizer()
        self.raw_config = config_dict(tokenizer)
        config = MoondreamConfig.from_dict(self.raw_config)
        self.maker = QuestionMaker(tokenizer, load_answer_tokenizer(), self.device, options.seed)
        sprites = torch.from_numpy(load_sheet(options.sheet))
        self.composer = Composer(sprites, config.vision.crop_size, config.vision.enc_patch_size, self.device)
        self.model = MoondreamModel(config)
        with torch.no_grad():
            self._start()
        self.model.to(self.device)
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        lengths = [q.ids.shape[1] for q in self.maker(self.composer(24, Difficulty().tensor(self.device)))]
        attention = PackedAttention(config.prefix_length, lengths, self.device)
        grounding = sum(lengths[:_GROUNDING_QUESTIONS])
        self.learner = Learner(self.model, self.composer.classes, grounding, attention).to(self.device)
        self.forward = torch.compile(self.learner) if self.device.type == "cuda" else self.learner
        self.optimizers = list(self._optimizers())
        self.held_out = self._held_out()
        self.steps = 0
        self.feed = Feed(self.composer, self.maker, options.batch)
        self.log = options.out / "log.jsonl"
        self.log.write_text("")

    def _start(self) -> None:
        if self.options.start:
            weights = {k.removeprefix("model."): v for k, v in load_file(self.options.start).items()}
            self.model.load_state_dict(weights)
        else:
            initialise(self.model)

    def _held_out(self) -> Scenes:
        """Scenes of another seed, the full range of difficulty."""
        torch.manual_seed(987_654_321)
        scenes = self.composer(256, Difficulty().tensor(self.device))
        torch.manual_seed(self.options.seed + 1)
        return scenes

    def _optimizers(self) -> Iterator[torch.optim.Optimizer]:
        """AdamW for all, or Muon for the matrices inside blocks and AdamW for the rest."""
        named = list(self.learner.named_parameters())
        inner = {n for n, p in named if ".blocks." in n and p.ndim == 2} if self.options.optimizer == "muon" else set()
        rate = self.options.rate
        # Frequencies and embeddings are no maps to be kept small: decay would only pull them together.
        tables = ("_features", "wte", "pos_emb")
        matrices = [p for n, p in named if n not in inner and p.ndim >= 2 and not n.endswith(tables)]
        vectors = [p for n, p in named if p.ndim < 2 or n.endswith(tables)]
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": 0.05},
            {"params": vectors, "weight_decay": 0.0},
        ]
        yield torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=self.device.type == "cuda")
        if inner:
            yield torch.optim.Muon(
                [p for n, p in named if n in inner], lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"
            )

    def run(self) -> None:
        """Train until the time is up."""
        self._save_samples()
        start, step, scenes, next_eval = time.monotonic(), 0, 0, self.options.eval_minutes
        parts: dict[str, Tensor] = {}
        while (minutes := (time.monotonic() - start) / 60) < self.options.minutes:
            progress = minutes / self.options.minutes
            ramp = 0.0 if self.options.start else self.options.ramp
            difficulty = Difficulty.at(progress, ramp) if ramp else Difficulty()
            parts = self._step(difficulty, self._rate(progress, step))
            step, scenes = step + 1, scenes + self.options.batch
            if step == 1:  # Compilation is not training time.
                torch.cuda.synchronize() if self.device.type == "cuda" else None
                start = time.monotonic()
            if step % 100 == 0:
                self._report({"step": step, "minutes": round(minutes, 2), "scenes": scenes}, parts)
            if minutes > next_eval:
                next_eval += self.options.eval_minutes
                self._evaluate(step, minutes)
        self._evaluate(step, self.options.minutes)

    def _rate(self, progress: float, step: int) -> float:
        warm = min(1.0, (step + 1) / 400)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        return float(self.options.rate) * warm * (0.01 + 0.99 * cosine)

    def _step(self, difficulty: Difficulty, rate: float) -> dict[str, Tensor]:
        batch = self.feed(difficulty)
        with torch.autocast(self.device.type, torch.bfloat16):
            parts = self.forward(*batch)
            loss = sum(getattr(Weights(), name) * value for name, value in parts.items())
        loss.backward()
        nn.utils.clip_grad_norm_(self.learner.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            # Early on the average forgets faster: it must not drag the random start along.
            keep = min(_EMA, (1 + self.steps) / (10 + self.steps))
            torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 1 - keep)
        self.steps += 1
        return {name: value.detach() for name, value in parts.items()}

    def _report(self, line: dict[str, Any], parts: dict[str, Tensor]) -> None:
        line |= {name: round(float(value), 4) for name, value in parts.items()}
        with self.log.open("a") as log:
            print(json.dumps(line), file=log)
        if line.get("step", 0) % 500 == 0 or "f1" in line:
            print(json.dumps(line), flush=True)

    def _evaluate(self, step: int, minutes: float) -> None:
        scores = f1(self.average, self.held_out, self.maker)
        self._report({"step": step, "minutes": round(minutes, 2), **{k: round(v, 4) for k, v in scores.items()}}, {})
        self._save()

    def _save(self) -> None:
        weights = {f"model.{k}": v.half().contiguous() for k, v in self.average.state_dict().items()}
        save_file(weights, self.options.out / "model.safetensors")
        (self.options.out / "config.json").write_text(json.dumps(self.raw_config, indent=1) + "\n")
        shutil.copy(TOKENIZER_JSON, self.options.out)

    def _save_samples(self) -> None:
        scenes = self.composer(24, Difficulty().tensor(self.device)).pixels.cpu().numpy()
        sheet = Image.new("RGB", (6 * scenes.shape[2], 4 * scenes.shape[1]))
        for i, scene in enumerate(scenes):
            sheet.paste(Image.fromarray(scene), (i % 6 * scenes.shape[2], i // 6 * scenes.shape[1]))
        sheet.save(self.options.out / "samples.jpg", quality=80)


if __name__ == "__main__":
    main()
