"""What the size of the shipped model costs on a CPU: the time of a detect on 640x480 over that of the first weights.

`python -m bench.nano.evaluation.latency` asks the shipped weights as they are, and cut to the shape of the first: a
crop of 384 pixels, and feed-forward layers of the text blocks 400 wide. They take turns, each time with an image of
which one pixel has changed. The weights were not trained for that shape: both answers are cut to two boxes, so that
they have the same length.
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
from bench.nano import ROOT
from bench.nano.training.train import resized_positions

ASSETS = ROOT / "assets"
OBJECTS = 2
_POSITIONS = "model.vision.pos_emb"


def cut(source: Path, crop: int, width: int, folder: Path) -> Path:
    """Write a checkpoint of another crop size and narrower feed-forward layers of the text blocks into a folder."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["vision"]["crop_size"], config["text"]["ff_dim"] = crop, width
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shutil.copy(source / "tokenizer.json", folder)
    weights = load_file(source / "model.safetensors")
    patches = (crop // config["vision"]["enc_patch_size"]) ** 2
    weights[_POSITIONS] = resized_positions(weights[_POSITIONS].float(), patches).contiguous()
    for name in [name for name in weights if name.startswith("model.text.blocks.")]:
        if ".mlp.fc1." in name:
            weights[name] = weights[name][:width].contiguous()
        elif name.endswith(".mlp.fc2.weight"):
            weights[name] = weights[name][:, :width].contiguous()
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
    parser.add_argument("--width", type=int, default=400, help="of the baseline's feed-forward layers")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    image = Image.open(ASSETS / "desk.png").convert("RGB").resize((640, 480))
    with tempfile.TemporaryDirectory() as folder:
        baseline = photonlite.load(cut(ASSETS / "nano", options.crop, options.width, Path(folder)), device="cpu")
        with baseline, photonlite.load(device="cpu") as shipped:
            pairs = [(seconds(baseline, image, n), seconds(shipped, image, n)) for n in range(options.rounds + 3)][3:]
    ratios = sorted(own / before for before, own in pairs)
    low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
    print(f"detect on 640x480, CPU, {torch.get_num_threads()} threads, {len(ratios)} rounds")
    print(f"shipped against a crop of {options.crop} and a width of {options.width}: {statistics.median(ratios):.2f} x")
    print(f"the middle half of the rounds: {low:.2f} to {high:.2f} x")


if __name__ == "__main__":
    main()
