"""Train the nano checkpoint: `torchrun --nproc-per-node 2 -m bench.nano.training --minutes 16 --out DIR`.

The run is measured in minutes: learning rate and curriculum follow the clock, so it ends where it should on any card.
It writes weights (float16, the public key names), a log of JSON lines, and sample images. `--resume` continues an
interrupted run at the minute of its last checkpoint; `--initial FILE` begins a run with a checkpoint's weights, also
for another crop or a longer vocabulary. With both, the same command begins and continues. Without torchrun it trains on
one card.
"""

import argparse
import copy
import dataclasses
import json
import math
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from bench.nano.questions.maker import QuestionMaker
from bench.nano.questions.mix import ROOM
from bench.nano.questions.tokenizer import TOKENIZER_JSON, load_answer_tokenizer, load_tokenizer
from bench.nano.scenes.batched.compose import Composer, Scenes, steady_hues
from bench.nano.scenes.batched.layouts import Difficulty
from bench.nano.scenes.objects import load_objects
from bench.nano.scenes.sprites import SHEET, load_sheet
from bench.nano.training.batches import BatchSource, Tiling, sheet_size, tiling_shares
from bench.nano.training.config import Shape, config_dict, initialise
from bench.nano.training.graphs import Graphed
from bench.nano.training.loss import Learner, PackedAttention, Weights
from bench.nano.training.muon import BatchedMuon
from bench.nano.training.probe import f1
from bench.nano.training.ranks import Ranks
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.model import MoondreamModel

T = TypeVar("T", Shape, Weights)

_EMA = 0.9995
_WARM_STEPS = 400
_AGREE_EVERY = 10  # steps between two looks at the clock
_MODEL, _RAW, _PROGRESS = "model.safetensors", "raw.safetensors", "progress.json"


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in the folder")
    weights = "weights to begin with, such as assets/nano/model.safetensors"
    parser.add_argument("--initial", dest="start", type=Path, help=weights)
    parser.add_argument("--sheet", type=Path, default=SHEET)
    parser.add_argument("--batch", type=int, default=192, help="scenes a step on each card")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="muon")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ramp", type=float, default=0.2, help="share of the run that the curriculum takes")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eval-minutes", type=float, default=5.0)
    for name, of in (("shape", "config.Shape"), ("weights", "loss.Weights")):
        parser.add_argument(f"--{name}", nargs="*", default=[], metavar="NAME=VALUE", help=f"fields of {of}")
    return parser


def main() -> None:
    options = arguments().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    ranks = Ranks(options.device)
    Trainer(options, ranks).run()
    ranks.close()


class Trainer:
    """One training run, shared by the processes of `ranks`."""

    def __init__(self, options: argparse.Namespace, ranks: Ranks) -> None:
        self.options, self.ranks, self.device = options, ranks, ranks.device
        torch.set_float32_matmul_precision("high")
        self._seed(0)
        tokenizer = load_tokenizer()
        self.raw_config = config_dict(tokenizer, changed(Shape(), options.shape))
        self.weights = changed(Weights(), options.weights)
        config = MoondreamConfig.from_dict(self.raw_config)
        self.maker = QuestionMaker(tokenizer, load_answer_tokenizer(), self.device, options.seed)
        self.model = MoondreamModel(config)
        with torch.no_grad():
            initialise(self.model)
        self.model.to(self.device)
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        self.minutes, self.steps, self.scenes = 0.0, 0, 0
        if options.resume and (not options.start or (options.out / _PROGRESS).exists()):
            self._resume()
        elif options.start:
            for module in (self.model, self.average):
                load_weights(module, options.start)
        self.composers = self._composers()
        self.shares = tiling_shares(self.model.crop_spec)
        self.held_out = self._held_out()
        self._seed(1 + ranks.rank + 1000 * self.steps)
        self.sources = {
            tiling: BatchSource(composer, self.maker, options.batch) for tiling, composer in self.composers.items()
        }
        self.learner = self._learner(config)
        self.forward = torch.compile(self.learner, dynamic=False) if self.device.type == "cuda" else self.learner
        self.rate = torch.zeros((), device=self.device)
        self.optimizers = list(self._optimizers())
        # Gradients of one tiling have one place; between both graphs the ranks exchange them.
        graphed = self.device if len(self.shares) == 1 else torch.device("cpu")
        self.backward, self.update = Graphed(self._backward, graphed), Graphed(self._update, graphed)
        self.log = options.out / "log.jsonl"

    def _seed(self, offset: int) -> None:
        """Seed everything that draws: the same on all ranks for weights, another on each for scenes."""
        torch.manual_seed(1_000_003 * self.options.seed + offset)
        random.seed(1_000_003 * self.options.seed + offset)

    def _composers(self) -> dict[Tiling, Composer]:
        (sprites, distractors), spec = map(torch.from_numpy, load_sheet(self.options.sheet)), self.model.crop_spec
        sizes = {tiling: sheet_size(spec, tiling) for tiling in tiling_shares(spec)}
        # The largest comes first: its backgrounds serve all.
        largest = Composer(
            sprites,
            max(sizes.values()),
            spec.grid,
            self.device,
            distractors=distractors,
            steady=steady_hues(load_objects()),
        )
        return {tiling: largest.resized(size) for tiling, size in sizes.items()}

    def _learner(self, config: MoondreamConfig) -> Learner:
        rows = self.options.batch, ROOM, max(self.maker.lengths)
        attention = PackedAttention(config.prefix_length, *rows, self.device)
        return Learner(self.model, next(iter(self.composers.values())).classes, attention).to(self.device)

    def _held_out(self) -> Scenes:
        """Scenes of another seed, the full range of difficulty, in the commonest tiling."""
        torch.manual_seed(987_654_321)
        commonest = max(self.shares, key=lambda tiling: self.shares[tiling])
        return self.composers[commonest](192, Difficulty().tensor(self.device))

    def _resume(self) -> None:
        """Load the last checkpoint; the optimizers' moments start from zero."""
        out = self.options.out
        for module, file in ((self.model, _RAW), (self.average, _MODEL)):
            load_weights(module, out / file)
        progress = json.loads((out / _PROGRESS).read_text())
        self.minutes, self.steps, self.scenes = progress["minutes"], progress["steps"], progress["scenes"]

    def _optimizers(self) -> Iterator[torch.optim.Optimizer]:
        """AdamW for all, or Muon for the matrices inside blocks and AdamW for the rest."""
        named = list(self.learner.named_parameters())
        inner = {n for n, p in named if ".blocks." in n and p.ndim == 2} if self.options.optimizer == "muon" else set()
        # Frequencies and embeddings are no maps to be kept small: decay would only pull them together.
        tables = ("_features", "wte", "pos_emb")
        matrices = [p for n, p in named if n not in inner and p.ndim >= 2 and not n.endswith(tables)]
        vectors = [p for n, p in named if p.ndim < 2 or n.endswith(tables)]
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": 0.05},
            {"params": vectors, "weight_decay": 0.0},
        ]
        on_card = self.device.type == "cuda"
        yield torch.optim.AdamW(groups, lr=self.rate, betas=(0.9, 0.98), fused=on_card, capturable=on_card)
        if inner:
            yield BatchedMuon([p for n, p in named if n in inner], lr=self.rate, weight_decay=0.05)

    def run(self) -> None:
        if self.ranks.is_first:
            self._save_samples()
        self._warm_up()
        begun, began_steps, minutes = self.minutes, self.steps, self.minutes
        start, next_eval = time.monotonic(), self.minutes + self.options.eval_minutes
        while minutes < self.options.minutes:
            progress = minutes / self.options.minutes
            rate = self._rate(progress, self.steps - began_steps)
            parts = self._step(Difficulty.at(progress, self.options.ramp), rate)
            if self.steps % _AGREE_EVERY == 0:
                minutes = self.minutes = self.ranks.broadcast(begun + (time.monotonic() - start) / 60)
            if self.steps % 100 == 0:
                self._report({}, parts)
            if minutes > next_eval:
                next_eval += self.options.eval_minutes
                self._evaluate()
        self._evaluate()

    def _warm_up(self) -> None:
        """Compile for every tiling, which is not training time, and wait for the other ranks."""
        for feed in self.sources.values():
            self.backward(*feed(Difficulty()))
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.ranks.wait()

    def _rate(self, progress: float, step: int) -> float:
        warm = min(1.0, (step + 1) / _WARM_STEPS)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        return float(self.options.rate) * warm * (0.01 + 0.99 * cosine)

    def _step(self, difficulty: Difficulty, rate: float) -> dict[str, Tensor]:
        # The same draw on every rank: a step's work is the same for all.
        tiling = random.Random(self.steps).choices([*self.shares], [*self.shares.values()])[0]
        parts = self.backward(*self.sources[tiling](difficulty))
        self.ranks.average([p.grad for p in self.learner.parameters() if p.grad is not None])
        self.rate.fill_(rate)
        self.update()
        with torch.no_grad():
            # Early on the average forgets faster: it must not drag the random start along.
            keep = min(_EMA, (1 + self.steps) / (10 + self.steps))
            torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 1 - keep)
        self.steps, self.scenes = self.steps + 1, self.scenes + self.ranks.count * self.options.batch
        return parts

    def _backward(self, *batch: Tensor) -> dict[str, Tensor]:
        """Compute gradients of a batch, and return the parts of its loss."""
        *arguments, start = batch
        self.learner.attention.show(start)
        self.learner.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16):
            parts: dict[str, Tensor] = self.forward(*arguments)
            weighted = [getattr(self.weights, name) * value for name, value in parts.items()]
            loss = torch.stack(weighted).sum()
        torch.autograd.backward(loss)
        return {name: value.detach() for name, value in parts.items()}

    def _update(self) -> None:
        """Move all weights at `rate` along gradients of bounded length."""
        nn.utils.clip_grad_norm_(self.learner.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()

    def _report(self, line: dict[str, Any], parts: dict[str, Tensor]) -> None:
        if not self.ranks.is_first:
            return
        line = {"step": self.steps, "minutes": round(self.minutes, 2), "scenes": self.scenes} | line
        line |= {name: round(float(value), 4) for name, value in parts.items()}
        with self.log.open("a") as log:
            print(json.dumps(line), file=log)
        if self.steps % 500 == 0 or "f1" in line:
            print(json.dumps(line), flush=True)

    def _evaluate(self) -> None:
        """Evaluate and save; the other ranks continue and wait in the next step."""
        if self.ranks.is_first:
            self._save()
            scores = f1(self.average, self.held_out, self.maker)
            self._report({k: round(v, 4) for k, v in scores.items()}, {})

    def _save(self) -> None:
        for module, name in ((self.average, _MODEL), (self.model, _RAW)):
            weights = {f"model.{k}": v.detach().half().contiguous() for k, v in module.state_dict().items()}
            save_file(weights, self.options.out / f"new-{name}")
        progress = {"minutes": self.minutes, "steps": self.steps, "scenes": self.scenes}
        (self.options.out / f"new-{_PROGRESS}").write_text(json.dumps(progress) + "\n")
        # A checkpoint is replaced only by a whole one.
        for name in (_MODEL, _RAW, _PROGRESS):
            (self.options.out / f"new-{name}").replace(self.options.out / name)
        (self.options.out / "config.json").write_text(json.dumps(self.raw_config, indent=1) + "\n")
        shutil.copy(TOKENIZER_JSON, self.options.out)

    def _save_samples(self) -> None:
        scenes = self.held_out.pixels[:24].cpu().numpy()
        sheet = Image.new("RGB", (6 * scenes.shape[2], 4 * scenes.shape[1]))
        for i, scene in enumerate(scenes):
            sheet.paste(Image.fromarray(scene), (i % 6 * scenes.shape[2], i // 6 * scenes.shape[1]))
        sheet.save(self.options.out / "samples.jpg", quality=80)


def load_weights(module: nn.Module, path: Path) -> None:
    """Load a checkpoint's weights.

    Embeddings of positions are resized to the module's grid of patches. Where the module has more tokens, those that
    the checkpoint lacks stay as they are; where its feed-forward layers are wider, the model stays the same function.
    """
    own, weights = module.state_dict(), dict[str, Tensor]()
    for key, value in load_file(path).items():
        name = key.removeprefix("model.")
        weights[name], wanted = value, own.get(name, value)
        if name.endswith("pos_emb"):
            weights[name] = resized_positions(value.float(), wanted.shape[-2])
        elif value.shape[1:] == wanted.shape[1:] and len(value) < len(wanted):
            fresh = wanted[len(value) :]
            if name.endswith("fc1.weight"):
                fresh = fresh * (value.std() / fresh.std())
            weights[name] = torch.cat((value.to(wanted), fresh))
        elif name.endswith("fc2.weight") and len(value) == len(wanted) and value.shape[1] < wanted.shape[1]:
            weights[name] = functional.pad(value.to(wanted), (0, wanted.shape[1] - value.shape[1]))
    module.load_state_dict(weights)


def resized_positions(table: Tensor, places: int) -> Tensor:
    """Interpolate the embeddings of a square grid of patches [..., P, dim] to a square grid of `places`."""
    if table.shape[-2] == places:
        return table
    grid = table.view(-1, math.isqrt(table.shape[-2]), math.isqrt(table.shape[-2]), table.shape[-1]).permute(0, 3, 1, 2)
    side = math.isqrt(places)
    made = functional.interpolate(grid, size=(side, side), mode="bicubic", align_corners=False)
    return made.flatten(2).transpose(1, 2).reshape(*table.shape[:-2], places, table.shape[-1])


def changed(defaults: T, assignments: list[str]) -> T:
    """Change fields of a dataclass by texts such as "text_layers=6"."""
    kinds = {field.name: type(getattr(defaults, field.name)) for field in dataclasses.fields(defaults)}
    values = {}
    for name, _, value in (assignment.partition("=") for assignment in assignments):
        if name not in kinds:
            raise ValueError(f"{name!r} is none of {', '.join(kinds)}")
        values[name] = kinds[name](value)
    return dataclasses.replace(defaults, **values)


if __name__ == "__main__":
    main()
