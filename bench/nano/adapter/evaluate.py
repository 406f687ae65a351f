"""How well the adapter finds what it was trained for, and what the checkpoint does alone.

`python -m bench.nano.adapter.evaluate --scenes 100` draws scenes that training never draws, and counts boxes with an
intersection over union of at least 0.5.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import photonlite
from bench.nano.adapter.data import SceneMaker
from bench.nano.adapter.train import OUT
from bench.nano.evaluation.scoring import iou
from photonlite.models.checkpoint import load_checkpoint

FIRST_SEED = 10_000_000  # training counts from 0

Box = tuple[float, float, float, float]


def tasks_of(maker: SceneMaker, scenes: int, *, new: bool) -> list[tuple[dict[str, Any], list[Box]]]:
    """Return questions about the new objects of scenes, or about the known ones, and the boxes that are right."""
    found = []
    for seed in range(FIRST_SEED, FIRST_SEED + scenes):
        scene, objects = maker.scene(seed)
        for index in sorted({placed.index for placed in scene.objects}):
            if (objects[index] in maker.objects) == new:
                task = {"skill": "detect", "image": scene.image, "object": objects[index].name}
                found.append((task, [placed.box for placed in scene.objects if placed.index == index]))
    return found


def matches(found: Sequence[Box], truth: Sequence[Box]) -> int:
    left = list(truth)
    for box in found:
        best = max(left, key=lambda other: iou(box, other), default=None)
        if best is not None and iou(box, best) >= 0.5:
            left.remove(best)
    return len(truth) - len(left)


def f1(model: photonlite.VisionModel, asked: Sequence[tuple[dict[str, Any], list[Box]]], adapter: str | None) -> float:
    results = model.batch([task | {"adapter": adapter} for task, _ in asked], errors="raise")
    right = total = 0
    for result, (_, truth) in zip(results, asked, strict=True):
        boxes = [(one.x_min, one.y_min, one.x_max, one.y_max) for one in result.objects]
        right += matches(boxes, truth)
        total += len(boxes) + len(truth)
    return 2 * right / max(1, total)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure an adapter on scenes that it was not trained on.")
    parser.add_argument("--adapter", type=Path, default=OUT)
    parser.add_argument("--scenes", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    with photonlite.load(device=args.device, dtype="float32") as model:
        network: Any = load_checkpoint(None, device=model.device, dtype=model.dtype)
        maker = SceneMaker(network.prompts, network.model.crop_spec, network.model.config.prefix_length)
        model.load_adapter(args.adapter, name="adapter")
        for new, what in ((True, "new objects"), (False, "known objects beside them")):
            asked = tasks_of(maker, args.scenes, new=new)
            alone, adapted = (f1(model, asked, name) for name in (None, "adapter"))
            print(
                f"{what}: {len(asked)} questions, F1 {alone:.3f} without the adapter, {adapted:.3f} with it", flush=True
            )


if __name__ == "__main__":
    main()
