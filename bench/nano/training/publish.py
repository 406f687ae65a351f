"""Turn a training run into the shipped checkpoint: `python -m bench.nano.training.publish RUN`."""

import argparse
import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from bench.nano.questions.tokenizer import TOKENIZER_JSON

ASSETS = TOKENIZER_JSON.parent
LIMIT = 16_000_000


def publish(run: Path, folder: Path) -> int:
    """Write config, tokenizer and weights to `folder`; returns the size of the weights in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "model.safetensors"
    save_file(load_file(run / "model.safetensors"), target, metadata={"format": "pt"})
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
    options = parser.parse_args()
    print(f"{publish(options.run, options.folder):,} bytes")


if __name__ == "__main__":
    main()
