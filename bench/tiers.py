"""What a second question about an image takes from each tier: `python -m bench.tiers`.

```
tiers     a second question from the device's prefix cache, from host memory, from the disk, and computed anew; whether
          what the policy chose was the quickest of what it could have chosen
prefixes  the same of a second turn about an image inside a prompt (Qwen-VL)
restart   `photonlite detect FOLDER banana`, then `key` by a new process, with its store and without
chats     conversations of five rounds about an image, while others evict it: what the encoder is spared (Qwen-VL)
cost      images that are asked about once, with all tiers and without
```

On a card: `--device cuda --model path/to/moondream2`; prefixes and conversations have random weights of `--shape`.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

import photonlite
from bench.bubble.report import table
from bench.gpu.machine import describe
from bench.gpu.qwen import random_qwen
from bench.shapes import CONTEXT, SHAPES
from photonlite.api import VisionModel
from photonlite.cache.store.disk import entries
from photonlite.cache.store.memory import MemoryTier
from photonlite.cache.store.policy import Kind, Tier
from photonlite.config import EngineConfig
from photonlite.device.names import resolve_device, resolve_dtype
from photonlite.errors import SettingsError
from photonlite.models.qwen.config import QwenConfig

PARTS = ("tiers", "prefixes", "restart", "chats", "cost")
CHOICES: dict[str, set[Kind]] = {"anew": set(), "embeddings": {"embeddings"}, "pages": {"embeddings", "pages"}}
TIE = 1.05
"""A choice counts as the quickest up to this ratio of medians."""

REPEATS = 3
"""Of each question: on a card times of one question differ by a tenth from one time to the next."""

_MEMORY = 2**30
_CHECK_S = 0.2  # seconds between two looks at whether the engine has failed
_NAMES = ("banana", "key")


def make_images(count: int) -> list[Image.Image]:
    """Make pictures that all differ, of the size of the shipped one."""
    picture = Image.open("assets/desk.png").convert("RGB")
    found = []
    for number in range(count):
        picture.putpixel((0, 0), (number % 256, number // 256, 7))
        found.append(picture.copy())
    return found


def load(options: argparse.Namespace, **engine: Any) -> VisionModel:
    settings: Any = {"embedding_cache_bytes": _MEMORY} | engine
    if options.device.type != "cpu":
        settings["kv_cache_bytes"] = _MEMORY  # several models share the card
    return photonlite.load(options.model, device=options.device, engine=settings)


def evict(model: VisionModel) -> None:
    """Evict every prefix on the device, as soon as no step carries its sequence; raises why the engine has failed."""
    cache, loop = model._session.engine._core.scheduler.cache, model._session.engine._loop

    def on_engine(done: Event) -> None:
        cache.prefix.evict(cache.prefix.idle_pages)
        done.set()

    while cache.pages.free < cache.pages.usable:
        done = Event()
        loop.post(lambda done=done: on_engine(done))  # type: ignore[misc]
        while not done.wait(_CHECK_S):
            loop.check()  # an engine that has failed does not run what is posted


def forget_memory(model: VisionModel, folder: Path) -> None:
    """Leave what is stored on the disk alone, and out of the system's cache of files."""
    store = model._session._store
    assert store is not None
    assert store._disk is not None
    wait_for_copies(model)
    store._memory = MemoryTier(_MEMORY)
    os.sync()
    for entry in entries(folder):
        with entry.path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def forced(model: VisionModel, kinds: set[Kind] | None) -> Iterator[None]:
    """Let the policy take exactly these; None for what it chooses itself."""
    store = model._session._store
    assert store is not None
    own = store.policy.pays
    if kinds is not None:
        store.policy.pays = lambda kind, tier: kind in kinds  # type: ignore[method-assign]
    try:
        yield
    finally:
        store.policy.pays = own  # type: ignore[method-assign]


def ask(model: VisionModel, image: Image.Image, name: str = _NAMES[1]) -> float:
    begun = time.perf_counter()
    model.detect(image, name)
    return time.perf_counter() - begun


def ask_turn(model: VisionModel, image: Image.Image, name: str) -> float:
    """Ask a question about an image, or as a second turn behind it."""
    turns: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image", "image": image}, f"Is there a {_NAMES[0]}?"]},
    ]
    if name != _NAMES[0]:
        turns += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"And a {name}?"}]
    begun = time.perf_counter()
    model.chat(turns, settings={"max_tokens": 1})
    return time.perf_counter() - begun


def chosen_by(model: VisionModel, tier: Tier) -> str:
    store = model._session._store
    assert store is not None
    if not store.policy.pays("embeddings", tier):
        return "anew"
    return "pages" if store.policy.pays("pages", tier) else "embeddings"


def run_tiers(options: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory() as name, load(options, store=name) as model:
        return time_tiers(model, Path(name), options.images, ask)


def run_prefixes(options: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory() as name, chat_model(options, store=name, embedding_cache_bytes=_MEMORY) as model:
        return time_tiers(model, Path(name), options.images, ask_turn)


def time_tiers(
    model: VisionModel, folder: Path, count: int, ask: Callable[[VisionModel, Image.Image, str], float]
) -> str:
    """Time second questions of each image from each tier, in an order that changes from image to image."""
    images, times = make_images(count), dict[str, list[float]]()
    first, second = _NAMES
    right = cases = 0
    ask(model, images[-1], second)  # the first question pays for what is only done once
    for image in images[:-1]:
        with forced(model, {"embeddings", "pages"}):
            ask(model, image, first)
            times.setdefault("device", []).append(ask(model, image, second))
        for tier in ("memory", "disk"):
            found: dict[str, list[float]] = {}
            for way, kinds in [*CHOICES.items()] * REPEATS:
                evict(model)
                if tier == "disk":
                    forget_memory(model, folder)
                with forced(model, kinds):
                    found.setdefault(way, []).append(ask(model, image, second))
                times.setdefault(f"{tier}: {way}" if kinds else "anew", []).append(found[way][-1])
            middles = {way: statistics.median(taken) for way, taken in found.items()}
            cases += 1
            right += middles[chosen_by(model, tier)] <= TIE * min(middles.values())
    choices = {tier: chosen_by(model, tier) for tier in ("memory", "disk")}
    rates = {tier: f"{rate / 1e9:.2f} GB/s" for tier, rate in model._session._store.policy.rates.items()}  # type: ignore[union-attr]
    anew = statistics.median(times["anew"])
    rows = [
        [where, f"{1e3 * (middle := statistics.median(taken)):.1f}", f"{anew / middle:.2f}", str(len(taken))]
        for where, taken in sorted(times.items(), key=lambda one: statistics.median(one[1]))
    ]
    share = f"The policy chose {choices} at {rates}; that was the quickest in {right} of {cases} cases."
    return f"{table(('second question from', 'ms, median', 'times as quick', 'asked'), rows)}\n\n{share}"


def run_restart(options: argparse.Namespace) -> str:
    """Ask about a folder by new processes; time from the start, and from the first line of the answer to the last."""
    rows, whole = [], dict[str, float]()
    with tempfile.TemporaryDirectory() as name:
        photos, store = Path(name) / "photos", Path(name) / "store"
        photos.mkdir()
        for number, image in enumerate(make_images(options.images)):
            image.save(photos / f"{number:03}.png")
        asked = [("first", _NAMES[0], "--store"), ("second, stored", _NAMES[1], "--store"), ("second", _NAMES[1], "")]
        for what, word, flag in asked:
            model = [] if options.model is None else ["--model", options.model]
            flags = [flag, str(store)] if flag else ["--no-store"]
            command = [sys.executable, "-m", "photonlite.cli", "detect", str(photos), word, *flags, *model]
            begun, lines = time.perf_counter(), list[float]()
            with subprocess.Popen([*command, "--device", str(options.device)], stdout=subprocess.PIPE) as process:
                lines += [time.perf_counter() for _ in process.stdout or ()]
            whole[what] = time.perf_counter() - begun
            each = (lines[-1] - lines[0]) / max(1, len(lines) - 1)
            rows.append([f"{what}: {word}", f"{whole[what]:.1f}", f"{1e3 * each:.0f}"])
            whole[f"{what}, each"] = each
    ratio = whole["second, each"] / whole["second, stored, each"]
    total = whole["second"] / whole["second, stored"]
    text = f"The second question is {ratio:.1f} times as quick an image, {total:.1f} times with start and loading."
    return f"{table(('question about a folder', 's, whole process', 'ms an image'), rows)}\n\n{text}"


def chat_model(options: argparse.Namespace, **engine: Any) -> VisionModel:
    shape = SHAPES[options.shape]
    raw = dict(shape.tiny if options.device.type == "cpu" else shape.raw)
    raw["text_config"] = raw["text_config"] | {"max_position_embeddings": CONTEXT}
    dtype = resolve_dtype("auto", options.device)
    loaded = random_qwen(QwenConfig.from_dict(raw), options.device, dtype)
    # A store asks what the weights are: those of a seed follow from the configuration.
    files: Any = SimpleNamespace(config=raw, weights=())
    return VisionModel(replace(loaded, files=files), options.device, dtype, engine=EngineConfig(**engine))


def run_chats(options: argparse.Namespace) -> str:
    """Hold conversations of five rounds in turn; all pages are evicted between two rounds."""
    images, rows = make_images(options.chats), list[list[str]]()
    spent: dict[bool, tuple[int, float]] = {}
    for stored in (False, True):
        with chat_model(options, embedding_cache_bytes=_MEMORY if stored else 0) as model:
            talks: list[list[Any]] = [[] for _ in images]
            begun = time.perf_counter()
            for number in range(5):
                for talk, image in zip(talks, images, strict=True):
                    what = f"Round {number}: what else is there?"
                    parts = [{"type": "image", "image": image}, what] if number == 0 else what
                    talk.append({"role": "user", "content": parts})
                    answer = model.chat(talk, settings={"max_tokens": 8})["answer"]
                    talk.append({"role": "assistant", "content": answer})
                    evict(model)
            seconds = time.perf_counter() - begun
            counters = model.metrics()["counters"]
        spent[stored] = counters["crops_encoded"], seconds
        way = "with host memory" if stored else "without"
        counted = (counters[name] for name in ("crops_encoded", "images_restored", "pages_restored"))
        rows.append([way, *map(str, counted)])
    encoder, clock = (spent[False][place] / spent[True][place] for place in (0, 1))
    text = f"The encoder computes {encoder:.2f} times less."
    if options.device.type != "cpu":  # where the model is tiny: its times say nothing
        text += f" The conversations take {clock:.2f} times less."
    head = ("5 rounds about an image", "crops encoded", "images restored", "pages restored")
    return f"{table(head, rows)}\n\n{text}"


def wait_for_copies(model: VisionModel) -> None:
    """Wait until what is being kept is in its tiers."""
    keeper, store = model._session.engine._keeper, model._session._store
    disk = None if store is None else store._disk
    for owner in (keeper, disk):
        if owner is not None and owner._thread is not None:
            owner._thread.submit(lambda: None).result()


def run_cost(options: argparse.Namespace) -> str:
    """Ask about new images, alternating between no tier and several; the second keeps every image."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        none: dict[str, Any] = {"store": None, "embedding_cache_bytes": 0}
        settings = {
            "none": none,
            "host memory": {"store": None},
            "host memory, all kept": {"store": None},
            "host memory and disk": {"store": name},
        }
        models = {way: stack.enter_context(load(options, **given)) for way, given in settings.items()}
        models["host memory, all kept"]._session._store._budget = None  # type: ignore[union-attr]
        taken: dict[str, list[tuple[float, float]]] = {way: [] for way in models}  # seconds, and those of CPU time
        for number, image in enumerate(make_images(len(models) * options.images + 1)):
            ways, first = list(models), number % len(models)
            for way in ways[first:] + ways[:first]:
                busy = time.process_time()
                seconds = ask(models[way], image)
                wait_for_copies(models[way])  # which would delay the next one
                if number:
                    taken[way].append((seconds, time.process_time() - busy))
    rows = []
    for way in list(models)[1:]:
        ratios = np.divide(taken[way], taken["none"])
        low, middle, high = np.percentile(ratios[:, 0], (25, 50, 75)) - 1
        spent = np.median(ratios[:, 1]) - 1
        rows.append([way, f"{middle:+.1%}", f"{low:+.1%} to {high:+.1%}", f"{spent:+.1%}", str(len(ratios))])
    head = ("tiers that never help", "time a question, median", "quartiles", "CPU time", "images")
    return table(head, rows)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.tiers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="auto, cpu or cuda")
    parser.add_argument("--model", help="a checkpoint; the shipped one by default")
    parser.add_argument("--shape", default="qwen3-vl-2b", help="of the conversations' model, tiny on a CPU")
    parser.add_argument("--images", type=int, default=11, help="pictures of each part, the one to warm up included")
    parser.add_argument("--chats", type=int, default=4, help="conversations")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="parts to run")
    parser.add_argument("--output", type=Path, help="markdown file to write")
    options = parser.parse_args(arguments)
    try:
        options.device = resolve_device(options.device)
    except SettingsError as error:
        parser.error(str(error))
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts and print them."""
    options = parse(arguments)
    runs = {"tiers": run_tiers, "prefixes": run_prefixes, "restart": run_restart, "chats": run_chats, "cost": run_cost}
    sections = [f"# What a second question about an image takes\n\n{describe(options.device)}"]
    for part in options.only:
        sections.append(f"## {part}\n\n{runs[part](options)}")
        print(sections[-1], flush=True)
    if options.output is not None:
        options.output.write_text("\n\n".join(sections) + "\n")


if __name__ == "__main__":
    main()
