"""Turn a training run into the shipped checkpoint: `python -m bench.nano.training.publish RUN [--margin 0.5]`.

Training weighs missed and invented objects alike, but users mind invented ones more. `--margin` is subtracted from the
bias of the coordinate id, so that the model continues with another object only when its logit exceeds that of the end
by the margin. Weights of a short run need one; choose it on scenes from seed 30,000,000, which the evaluation does not
use. After a long run nothing is invented, and the default is 0.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bench.nano.questions.layout import COORD
from bench.nano.questions.tokenizer import TOKENIZER_JSON

ASSETS = TOKENIZER_JSON.parent
LIMIT = 16_000_000
MARGIN = 0.0


def with_margin(weights: dict[str, Tensor], margin: float) -> dict[str, Tensor]:
    """Return the weights with `margin` logits taken from the bias of the coordinate id."""
    bias = weights["model.text.lm_head.bias"].float()
    bias[COORD] -= margin
    return weights | {"model.text.lm_head.bias": bias.to(torch.float16)}


def publish(run: Path, folder: Path, margin: float) -> int:
    """Write config, tokenizer and weights to `folder`; returns the size of the weights in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "model.safetensors"
    save_file(with_margin(load_file(run / "model.safetensors"), margin), target, metadata={"format": "pt"})
    target.chmod(0o644)
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    if folder != ASSETS:
        shutil.copy(TOKENIZER_JSON, folder)
    size = target.stat().st_size
    if size > LIMIT:
        raise ValueError(f"{target} has {size} bytes, over the limit of {LIMIT}: make the model smaller")
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder that training wrote")
    parser.add_argument("--folder", type=Path, default=ASSETS)
    parser.add_argument("--margin", type=float, default=MARGIN)
    options = parser.parse_args()
    print(f"{publish(options.run, options.folder, options.margin):,} bytes")


if __name__ == "__main__":
    main()
