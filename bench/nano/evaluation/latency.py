"""Latency of one detect call with the model loaded, and of the command line from a cold start.

`python -m bench.nano.evaluation.latency` prints JSON. Times of one machine mean little on another, so each comes with
its ratio to a multiplication of two 2048 x 2048 float32 matrices, measured in the same run on the same threads.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import photonlite
from bench.nano.evaluation.evaluate import FIRST_SEED, find_sprites
from bench.nano.scenes.held_out.scene import Scene, make_scene
from bench.nano.scenes.objects import load_objects

SIZE = (640, 480)
_MATRIX = 2048
_STAGES = ("preprocess_s", "encode_s", "prefill_s", "decode_s", "time_to_first_token_s")


def sample_times(work: Callable[[], object], runs: int, warm_up: int = 3) -> list[float]:
    """Time a function `runs` times, in seconds, after `warm_up` calls that do not count."""
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times


def spread(times: Sequence[float]) -> dict[str, float]:
    """Return median and 90th percentile of at least two times, in milliseconds."""
    return {
        "median_ms": 1e3 * statistics.median(times),
        "p90_ms": 1e3 * statistics.quantiles(times, n=10, method="inclusive")[-1],
    }


def measure_detect(model: Any, scene: Scene, runs: int) -> dict[str, Any]:
    """Time detect of the scene's first object, with the median of each stage."""
    name = load_objects()[scene.objects[0].index].name
    results: list[Any] = []
    times = sample_times(lambda: results.append(model.detect(scene.image, name)), runs)
    metrics = [result.metrics for result in results[-runs:]]
    stages = {stage: 1e3 * statistics.median(getattr(entry, stage) for entry in metrics) for stage in _STAGES}
    return {
        **spread(times),
        "stages_ms": {stage.removesuffix("_s"): value for stage, value in stages.items()},
        "prompt_tokens": metrics[-1].prompt_tokens,
        "output_tokens": metrics[-1].output_tokens,
        "objects": len(results[-1]["objects"]),
    }


def measure_matmul(runs: int) -> dict[str, float]:
    """Time the yardstick: one product of two 2048 x 2048 float32 matrices."""
    a, b = torch.rand(2, _MATRIX, _MATRIX).unbind()
    return spread(sample_times(lambda: a @ b, runs))


def measure_cold_shell(scene: Scene, model: str | None, threads: int, runs: int = 3) -> float:
    """Median seconds of `photonlite detect` as a fresh process, from start to exit."""
    name = load_objects()[scene.objects[0].index].name
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "scene.jpg"
        image.write_bytes(scene.jpeg)
        command = [sys.executable, "-m", "photonlite.cli", "detect", str(image), name, "--device", "cpu"]
        command += ["--model", model] if model else []
        work = sample_times(
            lambda: subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL), runs, warm_up=0
        )
    return statistics.median(work)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.nano.evaluation.latency", description=__doc__)
    parser.add_argument("--model", help="folder, file or Hub id; the shipped checkpoint by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--skip-shell", action="store_true", help="leave the cold start of the command line out")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    scene = make_scene(FIRST_SEED, load_objects(), find_sprites(), background="wood", size=SIZE, count=5)
    # Every detect is to read its image: else all but the first would find it in the prefix cache.
    model = photonlite.load(options.model, device="cpu", engine={"prefix_caching": False})
    detect = measure_detect(model, scene, options.runs)
    yardstick = measure_matmul(options.runs)
    figures: dict[str, Any] = {
        "threads": options.threads,
        "picture": list(SIZE),
        "detect": detect,
        "matmul_2048": yardstick,
        "detect_in_matmuls": detect["median_ms"] / yardstick["median_ms"],
    }
    if not options.skip_shell:
        figures["cold_shell_s"] = measure_cold_shell(scene, options.model, options.threads)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
