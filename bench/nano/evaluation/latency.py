"""What the size of the crop costs on a CPU: time of a detect on 640x480, as a ratio to a smaller crop.

`python -m bench.nano.evaluation.latency` asks the shipped weights with their own crop and with one of 384 pixels (the
size before crowds), in turns, each time about an image with one pixel changed. Embeddings of positions are resized to
the smaller crop, for which the weights were not trained: both answers are cut to two boxes, so that they have the same
length.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import photonlite
from bench.nano.training.train import resized_positions

ASSETS = Path(__file__).resolve().parents[2] / "assets"
OBJECTS = 2
_POSITIONS = "model.vision.pos_emb"


def with_crop(source: Path, crop: int, folder: Path) -> Path:
    """Write a checkpoint of another crop size into a folder."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["vision"]["crop_size"] = crop
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shutil.copy(source / "tokenizer.json", folder)
    weights = load_file(source / "model.safetensors")
    patches = (crop // config["vision"]["enc_patch_size"]) ** 2
    weights[_POSITIONS] = resized_positions(weights[_POSITIONS].float(), patches).contiguous()
    save_file(weights, folder / "model.safetensors")
    return folder


def seconds(model: photonlite.VisionModel, image: Image.Image, number: int) -> float:
    image.putpixel((0, 0), (number % 256, number // 256, 0))
    begun = time.perf_counter()
    found = model.detect(image, "banana", settings={"max_objects": OBJECTS})
    assert len(found.objects) == OBJECTS, "answers of different lengths say nothing about the crop"
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.nano.evaluation.latency", description=__doc__)
    parser.add_argument("--crop", type=int, default=384, help="pixels of a side of the baseline's crop")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    image = Image.open(ASSETS / "desk.png").convert("RGB").resize((640, 480))
    with tempfile.TemporaryDirectory() as folder:
        baseline = photonlite.load(with_crop(ASSETS / "nano", options.crop, Path(folder)), device="cpu")
        with baseline, photonlite.load(device="cpu") as shipped:
            pairs = [(seconds(baseline, image, n), seconds(shipped, image, n)) for n in range(options.rounds + 3)][3:]
    ratios = sorted(own / before for before, own in pairs)
    low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
    print(f"detect on 640x480, CPU, {torch.get_num_threads()} threads, {len(ratios)} rounds")
    print(f"crop of the shipped checkpoint against {options.crop}: {statistics.median(ratios):.2f} x")
    print(f"the middle half of the rounds: {low:.2f} to {high:.2f} x")


if __name__ == "__main__":
    main()
