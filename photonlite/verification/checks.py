"""The comparisons of `verify`, as rows of a table.

```
another implementation   preprocessing, features of images, logits, greedy tokens     where its family has one
one step at a time       answers of the pipelined engine and of one that waits
operations of PyTorch    answers of fused kernels and of plain operations             on CUDA
```
"""

import dataclasses
import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from photonlite.api import VisionModel
from photonlite.config import EngineConfig
from photonlite.device.names import resolve_device, resolve_dtype
from photonlite.models.checkpoint import LoadedModel, load_files
from photonlite.models.families import Oracle, oracle_of
from photonlite.models.loading import resolve
from photonlite.verification.answers import Answer, ask, compare, in_words

SIZES: Final = ((640, 480), (333, 500), (97, 31))
"""Width and height of the built-in pictures."""

_ITSELF: Final = "itself"
_EXACT, _CLOSE, _ROUNDED = 1e-6, 1e-4, 4e-2  # relative: of pixels, of float32, and of half precision


@dataclass(frozen=True)
class Row:
    """A comparison; `passed` is whether the difference is within the limit."""

    check: str
    against: str
    difference: str
    limit: str
    passed: bool

    @property
    def against_itself(self) -> bool:
        """Whether the same implementation was run another way: that finds faults of the engine, none of the model."""
        return self.against.startswith(_ITSELF)


def verify(
    model: str | os.PathLike[str] | None = None,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
) -> Iterator[Row]:
    """Compare what a checkpoint computes on built-in pictures; takes and raises what :func:`photonlite.load` does.

    Rows come as they are found. The pipelined engine, asked many questions at once, must answer as one that waits for
    every step of one request, and on CUDA with fused kernels as with operations of PyTorch. Texts may part where either
    token is as good; probabilities may differ by 0.001 in float32 and 0.1 in half precision.

    Where the family has another implementation (Qwen-VL: transformers), pixels must be equal to 1e-6, features and
    logits to 1e-4 in float32 and to 4 % in half precision (as relative distances), and every token of the engines'
    answers must be the best one there, or as good. Other families, such as Moondream, and quantised files are compared
    with themselves only: that finds faults of the engine and of kernels, not of the model.

    Both implementations read the same files: damage that leaves names and shapes as they were, such as swapped tensors,
    is not seen (compare checksums). Rounding in half precision hides faults below 4 %: float32 shows them.

    The other implementation is loaded beside this one, after the engines are closed: the device needs room for the
    weights twice. Where it has not, compare with `device="cpu"`.

    Raises:
        CheckpointError: The other implementation cannot load the files of this checkpoint.
        CapacityError: The device has no room for both.
    """
    where = resolve_device(device)
    kind = resolve_dtype(dtype, where)
    files = resolve(model, revision=revision)
    config = EngineConfig.from_env()
    loaded = load_files(files, device=where, dtype=kind, max_context=config.max_context)
    exact, pictures = kind in (torch.float32, torch.float64) and not loaded.precisions, built_in_pictures()

    checked = _Engines(loaded, where, kind, pictures, exact)
    checked.run(dataclasses.replace(config, depth=2))
    blocking = dataclasses.replace(config, depth=1, max_batch=1)
    yield checked.run(blocking, "answers, pipelined", "one step at a time")
    if has_fused_kernels(where, config):
        plain = dataclasses.replace(config, fused=False, fp8_linears=False)
        yield checked.run(plain, "answers, fused", "operations of PyTorch")
    gc.collect()
    if where.type == "cuda":
        torch.cuda.empty_cache()
    oracle = None if loaded.precisions else oracle_of(files.family, files.weights, loaded.model)
    if oracle is not None:
        yield from _with_oracle(oracle, checked.answers, pictures, exact=exact)


def has_fused_kernels(device: torch.device, config: EngineConfig) -> bool:
    return device.type == "cuda" and config.fused


def built_in_pictures() -> list[Image.Image]:
    """Return pictures of coloured shapes on a gradient; the same on every machine."""
    pictures = []
    for width, height in SIZES:
        across, down = (Image.linear_gradient("L").rotate(angle).resize((width, height)) for angle in (90, 0))
        image = Image.merge("RGB", (across, down, Image.new("L", (width, height), 128)))
        draw = ImageDraw.Draw(image)
        for place, (left, right) in enumerate(pairwise(range(width // 8, width, width // 4))):
            shape = draw.ellipse if place % 2 else draw.rectangle
            shape((left, height // 4, right - width // 16, 3 * height // 4), fill=("red", "white", "blue")[place % 3])
        pictures.append(image)
    return pictures


@dataclass
class _Engines:
    """Starts engines one after the other and compares each one's answers with those of the first."""

    loaded: LoadedModel
    device: torch.device
    dtype: torch.dtype
    pictures: Sequence[Image.Image]
    exact: bool
    answers: list[dict[str, Answer]] = dataclasses.field(default_factory=list)  # of each engine, by name

    def run(self, config: EngineConfig, check: str = "answers", way: str = "") -> Row:
        with VisionModel(self.loaded, self.device, self.dtype, engine=config, thumbnails=False) as model:
            self.answers.append(ask(model, self.pictures, together=config.max_batch != 1))
            first, last = self.answers[0], self.answers[-1]
            verdicts = {name: compare(model, first[name], last[name], exact=self.exact) for name in first}
        differing = [name for name, verdict in verdicts.items() if verdict == "differs"]
        ties = sum(verdict == "tie" for verdict in verdicts.values())
        shown = _listed(differing, ties)
        return Row(f"{len(first)} {check}", f"{_ITSELF}, {way}", shown, "ties only", not differing)


def _listed(differing: Sequence[str], ties: int) -> str:
    shown = [f"in {', '.join(differing)}"] if differing else []
    shown += [f"{ties} at a tie"] if ties else []
    return "; ".join(shown) or "none"


def _with_oracle(
    oracle: Oracle, engines: Sequence[Mapping[str, Answer]], pictures: list[Image.Image], *, exact: bool
) -> Iterator[Row]:
    limit = _CLOSE if exact else _ROUNDED
    pairs = [oracle.preprocessing(picture) for picture in pictures]
    yield _relative(f"preprocessing of {len(pictures)} pictures", oracle.name, pairs, _EXACT)
    yield _relative("features of pictures", oracle.name, [oracle.features(pictures)], limit)
    asked: dict[object, tuple[str, Answer]] = {}
    for answers in engines:  # which mostly answer alike
        for name, answer in in_words(answers).items():
            asked[name, answer.request.prompt, answer.ids] = name, answer
    pairs, differing, ties = [], [], 0
    for name, answer in asked.values():
        own, theirs = oracle.logits(answer.request.prompt, answer.images, answer.ids)
        pairs.append((own, theirs))
        gaps, allowed = _gaps(theirs, answer.ids, limit)
        ties += int(((gaps > 0) & (gaps <= allowed)).sum())
        if not bool((gaps <= allowed).all()):
            differing.append(name)
    yield _relative(f"logits of {sum(len(own) for own, _ in pairs)} tokens", oracle.name, pairs, limit)
    shown = _listed(list(dict.fromkeys(differing)), ties)
    yield Row(f"greedy tokens of {len(pairs)} answers", oracle.name, shown, "ties only", not differing)


def _gaps(logits: Tensor, ids: Sequence[int], limit: float) -> tuple[Tensor, float]:
    """Return by how much the best logit of each step is above that of the chosen token, and by how much it may be.

    The engine's tokens lead from step to step: after a tie the other implementation goes on where the engine does.
    """
    wide = logits.float()
    chosen = torch.tensor(ids[: len(wide)], device=wide.device)[:, None]
    rounding = torch.finfo(logits.dtype).eps * float(wide.abs().max())
    return wide.amax(dim=-1) - wide.gather(1, chosen)[:, 0], limit * float(wide.std()) + rounding


def _relative(check: str, against: str, pairs: Sequence[tuple[Tensor, Tensor]], limit: float) -> Row:
    """Compare by the largest relative distance, ``norm(ours - theirs) / norm(theirs)``; NaN fails."""
    distances = [(a.float().cpu() - b.float().cpu()).norm() / b.float().cpu().norm() for a, b in pairs]
    difference = float(torch.stack(distances).max())  # unlike Python's `max`, of NaN it is NaN
    return Row(check, against, f"{difference:.1e} relative", f"{limit:g}", difference <= limit)
