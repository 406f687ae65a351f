"""How much of an outline the image tokens tell: a linear fit from tokens to vertices, on composed scenes.

`python -m bench.nano.evaluation.outline_fit --scenes 240` prints, for each vertex, the mean error on scenes that were
not fitted, and the spread of the vertices, which is the error of a fit that knows nothing. Lengths are shares of the
object's visible box. What the tokens do not tell the text decoder can only remember.
"""

import argparse

import torch
from torch import Tensor
from torch.nn import functional

from bench.nano.evaluation.evaluate import find_sprites
from bench.nano.scenes.batched.compose import Composer, Scenes, steady_hues
from bench.nano.scenes.batched.layouts import Difficulty
from bench.nano.scenes.batched.truth import TOLD
from bench.nano.scenes.objects import load_objects
from bench.nano.training.loss import image_tokens
from photonlite.models.checkpoint import load_checkpoint
from photonlite.models.moondream.model import MoondreamModel

_MOST_OBJECTS = 14  # of a scene: more are small, and small ones are left out
_LEAST_SIDE = 0.1  # of the image, of a box
_RIDGE = 1.0
_FITTED = 0.8  # of the scenes


def samples(model: MoondreamModel, scenes: Scenes, classes: int) -> tuple[Tensor, Tensor]:
    """Return tokens [n, dim + 1], the last column 1, and outlines [n, 2 * TOLD] of all patches of large objects."""
    with torch.inference_mode():
        tokens = image_tokens(model, scenes.pixels)
    large = (scenes.patches.boxes[..., 2:].amax(-1) >= _LEAST_SIDE) & (scenes.patches.outlines[..., 0] >= 0)
    large &= scenes.patches.labels < classes
    found = functional.layer_norm(tokens, tokens.shape[-1:])[large]
    return functional.pad(found, (0, 1), value=1.0), scenes.patches.outlines[large]


def fit_errors(given: Tensor, wanted: Tensor, fitted: Tensor) -> list[float]:
    """Return the mean error of each vertex where `fitted`, bool [n], is False; NaN where none has so many."""
    errors = []
    for column in range(wanted.shape[1]):
        there = wanted[:, column] >= 0
        known, asked = given[there & fitted], given[there & ~fitted]
        gram = known.T @ known + _RIDGE * torch.eye(given.shape[1])
        weights = torch.linalg.solve(gram, known.T @ wanted[there & fitted, column])
        errors.append(float((asked @ weights - wanted[there & ~fitted, column]).abs().mean()))
    return [(x + y) / 2 for x, y in zip(errors[::2], errors[1::2], strict=True)]


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.nano.evaluation.outline_fit", description=__doc__)
    parser.add_argument("--model", help="folder of a checkpoint; the shipped one by default")
    parser.add_argument("--scenes", type=int, default=240, help="to compose, four fifths of which are fitted")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    device, objects = torch.device("cpu"), load_objects()
    model = load_checkpoint(options.model, device=device, dtype=torch.float32).model
    if not isinstance(model, MoondreamModel):
        parser.error("--model must be a checkpoint of the nano shape")
    vision = model.config.vision
    compose = Composer(
        torch.from_numpy(find_sprites()),
        (vision.crop_size, vision.crop_size),
        vision.crop_size // vision.enc_patch_size,
        device,
        steady=steady_hues(objects),
        most=_MOST_OBJECTS,
    )
    found = [samples(model, compose(1, Difficulty().tensor(device)), len(objects)) for _ in range(options.scenes)]
    fitted = [torch.full((len(given),), number < _FITTED * len(found)) for number, (given, _) in enumerate(found)]
    given, wanted = (torch.cat(column) for column in zip(*found, strict=True))
    spread = [float((column[column >= 0] - column[column >= 0].mean()).abs().mean()) for column in wanted.T]
    print(f"{len(given):,} patches of {options.scenes} scenes; vertices are spread by {sum(spread) / len(spread):.2f}")
    for number, error in enumerate(fit_errors(given, wanted, torch.cat(fitted)), 1):
        print(f"vertex {number:2d} of {TOLD}  {error:.3f}")


if __name__ == "__main__":
    main()
