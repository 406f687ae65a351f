"""Evaluate a checkpoint on held-out scenes through the public interface.

`python -m bench.nano.evaluation --scenes 2000 --workers 2` prints the figures beside their targets; with `--out` it
writes figures.json, records.json and failures.html too.
"""

import argparse
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from tqdm import tqdm

import photonlite
from bench.nano.evaluation.examine import examine
from bench.nano.evaluation.failures import write_failures
from bench.nano.evaluation.figures.calibration import draw_reliability
from bench.nano.evaluation.figures.summary import format_table, summarize
from bench.nano.evaluation.records import SKILLS, SceneRecord, Skill
from bench.nano.evaluation.scoring import Figures
from bench.nano.scenes.held_out.scene import make_scene
from bench.nano.scenes.objects import load_objects
from bench.nano.scenes.sprites import FONT, Sprites, load_sheet, render_sprites
from photonlite.config import EngineSettings, KvDtype, VisionWeights, Weights

FIRST_SEED = 10_000_000
SHARED_CACHE_BYTES = 2**30
"""KV cache of one worker on a card: 64 longest requests of the shipped checkpoint need a third of it."""

_GRAMMAR_LIMIT_S = 60.0


@dataclass(frozen=True)
class Job:
    model: str | None  # As `photonlite.load` takes it
    device: str  # Likewise
    dtype: str  # Likewise
    skills: tuple[Skill, ...]  # What to ask for
    kv_dtype: KvDtype = "auto"  # Of keys and values
    kv_cache_bytes: int | None = None  # For keys and values; None for what the engine takes by itself
    weights: Weights = "auto"  # Of the decoder, as `photonlite.load` takes it
    vision_weights: VisionWeights = "auto"  # Likewise


class Examiner:
    """A loaded model with the sprites, ready to be asked about scenes by their seeds."""

    def __init__(self, job: Job) -> None:
        # Where workers share few cores, a schema may take longer than a user would wait for it.
        engine: EngineSettings = {
            "kv_dtype": job.kv_dtype,
            "kv_cache_bytes": job.kv_cache_bytes,
            "grammar_limit_s": _GRAMMAR_LIMIT_S,
        }
        precisions: dict[str, Any] = {"weights": job.weights, "vision_weights": job.vision_weights}
        self.model = photonlite.load(job.model, device=job.device, dtype=job.dtype, engine=engine, **precisions)
        self.skills = job.skills
        self.sprites = find_sprites()

    def __call__(self, seed: int) -> SceneRecord:
        return examine(self.model, make_scene(seed, load_objects(), self.sprites), seed, self.skills)


def find_sprites() -> Sprites:
    """Take the sprites from the sheet of an earlier run, or draw them where the font is installed."""
    # The sizes are equal, so that the scenes of a seed are the same on every machine.
    return render_sprites(load_objects()) if FONT.exists() else load_sheet()[0]


_examiner: Examiner | None = None


def _start_worker(job: Job) -> None:
    global _examiner
    torch.set_num_threads(1)
    _examiner = Examiner(job)


def _ask(seed: int) -> SceneRecord:
    if _examiner is None:
        raise RuntimeError("the worker was not started by _start_worker")
    return _examiner(seed)


def cache_bytes(device: str, workers: int) -> int | None:
    """Return the KV cache of each worker: of several on a card each would else take most of its memory."""
    return SHARED_CACHE_BYTES if workers > 1 and device != "cpu" else None


def collect(job: Job, seeds: Sequence[int], workers: int) -> Iterator[SceneRecord]:
    """Return the records of scenes in the order of their seeds, from this process or `workers` of one thread each."""
    if not workers:
        yield from map(Examiner(job), seeds)
        return
    # A forked process would inherit torch's threads and, on a GPU, a context that it cannot use.
    context = multiprocessing.get_context("spawn")
    # Unlike `multiprocessing.Pool`, which waits for ever, it raises where a worker was killed.
    with ProcessPoolExecutor(workers, context, _start_worker, (job,)) as pool:
        yield from pool.map(_ask, seeds, chunksize=2)


def evaluate(
    job: Job, scenes: int, seed: int = FIRST_SEED, workers: int = 0, progress: bool = True
) -> list[SceneRecord]:
    """Return the records of scenes seed, seed + 1, ..."""
    seeds = range(seed, seed + scenes)
    return list(tqdm(collect(job, seeds, workers), total=scenes, unit="scene", disable=not progress))


def write_report(folder: Path, records: Sequence[SceneRecord], figures: Figures) -> None:
    """Write figures.json, records.json, failures.html and, where boxes were asked for, reliability.png."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "figures.json").write_text(json.dumps(figures, indent=2), encoding="utf-8")
    (folder / "records.json").write_text(json.dumps([asdict(record) for record in records]), encoding="utf-8")
    if any(record.detections for record in records):
        draw_reliability(records, folder / "reliability.png")
    objects, sprites = load_objects(), find_sprites()
    write_failures(folder, records, lambda seed: make_scene(seed, objects, sprites))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.nano.evaluation", description=__doc__)
    parser.add_argument("--model", help="folder, file or Hub id; the shipped checkpoint by default")
    parser.add_argument("--scenes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="of the first scene")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--kv-dtype", default="auto", choices=get_args(KvDtype), help="of keys and values")
    parser.add_argument("--weights", default="auto", choices=get_args(Weights), help="of the decoder")
    parser.add_argument("--vision-weights", default="auto", choices=get_args(VisionWeights), help="of the encoder")
    parser.add_argument("--skills", nargs="+", default=list(SKILLS), choices=get_args(Skill))
    parser.add_argument("--workers", type=int, default=0, help="processes of one thread each; 0: this process")
    parser.add_argument("--out", type=Path, help="folder for figures.json, records.json and failures.html")
    options = parser.parse_args(arguments)
    cache = cache_bytes(options.device, options.workers)
    precisions = options.weights, options.vision_weights
    job = Job(options.model, options.device, options.dtype, tuple(options.skills), options.kv_dtype, cache, *precisions)
    records = evaluate(job, options.scenes, options.seed, options.workers)
    figures = summarize(records)
    print(format_table(figures))
    if options.out:
        write_report(options.out, records, figures)
        print(f"\nwhat went wrong: {options.out / 'failures.html'}")


if __name__ == "__main__":
    main()
