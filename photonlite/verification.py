"""`verify`: what a checkpoint computes on this machine, beside other ways to compute the same.

```
another implementation   preprocessing, features of images, logits, greedy tokens     where its family has one
one step at a time       answers of the pipelined engine and of one that waits
operations of PyTorch    answers of fused kernels and of plain operations             on CUDA
```
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from photonlite.api import VisionModel
from photonlite.config import EngineConfig
from photonlite.device.names import resolve_device, resolve_dtype
from photonlite.grammar.prompts import Prompts
from photonlite.models.checkpoint import LoadedModel, load_checkpoint
from photonlite.models.families import Oracle, oracle_of
from photonlite.models.loading import resolve
from photonlite.request import Token, Turn

STEPS: Final = 20
"""Greedy tokens that are compared."""

QUESTIONS: Final = ("Describe this image.", "How many objects are there?")
CHOICES: Final = ["yes", "no"]
SIZES: Final = ((640, 480), (333, 500), (97, 31))
"""Width and height of the built-in pictures."""

_EXACT, _CLOSE, _ROUNDED = 1e-6, 1e-4, 4e-2  # relative: of pixels, of float32, and of half precision
_PROBABILITY: Final = {True: 1e-3, False: 0.05}  # in float32, and in half precision


@dataclass(frozen=True)
class Row:
    """A comparison; `passed` is whether the difference is within the limit."""

    check: str
    against: str
    difference: str
    limit: str
    passed: bool


def verify(
    model: str | os.PathLike[str] | None = None,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
) -> Iterator[Row]:
    """Compare what a checkpoint computes on built-in pictures; takes and raises what :func:`photonlite.load` does.

    Rows come as they are found. Answers of the pipelined engine must be those of one that waits for every step. On CUDA
    fused kernels are compared with operations of PyTorch. Where the family has another implementation, which may have
    to be installed, pixels must be equal to 1e-6, features and logits to 1e-4 in float32 and to 4 % in half precision
    (as relative distances), and greedy tokens may differ only where that implementation is as good as undecided.
    """
    where = resolve_device(device)
    kind = resolve_dtype(dtype, where)
    files = resolve(model, revision=revision)
    config = EngineConfig.from_env()
    options: dict[str, Any] = {"revision": revision, "max_context": config.max_context}
    loaded = load_checkpoint(model, device=where, dtype=kind, **options)
    exact, pictures = kind in (torch.float32, torch.float64), built_in_pictures()

    answers = _answers(loaded, where, kind, config, pictures)
    blocking = dataclasses.replace(config, depth=1, max_batch=1)
    waited = _answers(loaded, where, kind, blocking, pictures)
    yield _same("answers, pipelined", "one step at a time", answers, waited, exact=exact)
    if where.type == "cuda" and config.fused:
        plain = dataclasses.replace(config, fused=False, fp8_linears=False)
        yield from _near(answers, _answers(loaded, where, kind, plain, pictures), exact=exact)
    with torch.inference_mode():
        oracle = oracle_of(files.family, files.weights[0].parent, loaded.model)
        if oracle is not None:
            yield from _with_oracle(oracle, loaded.prompts, answers, pictures, exact=exact)


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


def _answers(
    loaded: LoadedModel, device: torch.device, dtype: torch.dtype, config: EngineConfig, pictures: list[Image.Image]
) -> dict[str, Any]:
    """Ask every skill about every picture, one after the other; returns the answers by what was asked."""
    settings: Any = {"max_tokens": STEPS, "max_objects": 4}
    with VisionModel(loaded, device, dtype, engine=config, thumbnails=False) as model:
        asks: dict[str, Callable[[Image.Image], Any]] = {
            "caption": lambda image: model.caption(image, "short", settings=settings)["caption"],
            "query": lambda image: [model.query(image, text, settings=settings)["answer"] for text in QUESTIONS],
            "detect": lambda image: model.detect(image, "circle", settings=settings)["objects"],
            "point": lambda image: model.point(image, "circle", settings=settings)["points"],
            "segment": lambda image: model.segment(image, "circle", settings=settings)["segments"],
        }
        found = {
            f"{skill} {place}": asks[skill](image)
            for place, image in enumerate(pictures)
            for skill in model.skills
            if skill in asks
        }
        if "query" in model.skills:
            scores = [model.query(image, "Is it red?", choices=CHOICES)["scores"] for image in pictures]
            found["choices"] = [score[CHOICES[0]] for score in scores]
    return found


def _same(check: str, against: str, one: dict[str, Any], other: dict[str, Any], *, exact: bool) -> Row:
    differing = [name for name in one if name != "choices" and one[name] != other[name]]
    if _apart(one, other) > _PROBABILITY[exact]:  # they are scored in batches of several sizes, which round otherwise
        differing.append("choices")
    shown = f"in {', '.join(differing)}" if differing else "none"
    return Row(f"{len(one)} {check}", against, shown, "none", not differing)


def _near(one: dict[str, Any], other: dict[str, Any], *, exact: bool) -> Iterator[Row]:
    """Compare answers of kernels that round otherwise: only probabilities must be close in half precision."""
    against = "operations of PyTorch"
    equal = sum(one[name] == other[name] for name in one if name != "choices")
    total = len(one) - ("choices" in one)
    yield Row(f"{total} answers, fused", against, f"{equal} are the same", "texts may part at a tie", passed=True)
    difference, limit = _apart(one, other), _PROBABILITY[exact]
    yield Row("probabilities, fused", against, f"{difference:.1e}", f"{limit:g}", difference <= limit)


def _apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest difference of a choice's probability; 0 where there are no choices."""
    pairs = zip(one.get("choices", ()), other.get("choices", ()), strict=True)
    return max((abs(a - b) for a, b in pairs), default=0.0)


def _with_oracle(
    oracle: Oracle, prompts: Prompts, answers: dict[str, Any], pictures: list[Image.Image], *, exact: bool
) -> Iterator[Row]:
    limit = _CLOSE if exact else _ROUNDED
    pairs = [oracle.preprocessing(picture) for picture in pictures]
    yield _relative(f"preprocessing of {len(pictures)} pictures", oracle.name, pairs, _EXACT)
    yield _relative("features of pictures", oracle.name, [oracle.features(pictures)], limit)
    asks = _asks(prompts, pictures)
    ties, off, pairs = 0, 0, []
    for name, (prompt, images) in asks.items():
        own, theirs, chosen = oracle.logits(prompt, images, STEPS)
        pairs.append((own, theirs))
        spread = float(theirs.float().std())
        for step, token in enumerate(chosen):
            ours = int(own[step].argmax())
            if ours != token:
                near = float(theirs[step, token] - theirs[step, ours]) <= limit * spread
                ties, off = ties + near, off + (not near)
        if name in answers:
            off += not ties and prompts.decode(chosen) != answers[name][0]
    yield _relative(f"logits of {sum(len(one) for one, _ in pairs)} tokens", oracle.name, pairs, limit)
    shown = "none" if not ties + off else f"{off} differ, {ties} at a tie"
    yield Row(f"greedy tokens of {len(asks)} answers", oracle.name, shown, "ties only", not off)


def _asks(
    prompts: Prompts, pictures: Sequence[Image.Image]
) -> dict[str, tuple[Sequence[Token], Sequence[Image.Image]]]:
    """Return what the other implementation is asked: the questions of `_answers`, and several pictures or turns."""
    question = prompts.query(QUESTIONS[0], reasoning=False, refs=())
    asks: dict[str, tuple[Sequence[Token], Sequence[Image.Image]]] = {
        f"query {place}": (question, [picture]) for place, picture in enumerate(pictures)
    }
    if prompts.conversations is None:
        return asks
    chat = prompts.conversations.chat
    several = [Turn("user", (*[None] * len(pictures), QUESTIONS[1]))]
    turns = [Turn("user", (None, QUESTIONS[0])), Turn("assistant", ("Shapes.",))]
    turns.append(Turn("user", ("Compare it with", None, "please.")))
    asks["words"] = chat([Turn("user", (QUESTIONS[1],))]), []
    return asks | {"several": (chat(several), pictures), "turns": (chat(turns), pictures[:2])}


def _relative(check: str, against: str, pairs: Sequence[tuple[Tensor, Tensor]], limit: float) -> Row:
    """Compare by the largest relative distance, ``norm(ours - theirs) / norm(theirs)``."""
    distances = [float((a.float().cpu() - b.float().cpu()).norm() / b.float().cpu().norm()) for a, b in pairs]
    difference = max(distances)
    return Row(check, against, f"{difference:.1e} relative", f"{limit:g}", difference <= limit)
