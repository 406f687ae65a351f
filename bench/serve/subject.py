"""The process with the model: measures the baseline, and serves models with random weights.

It prints one line of JSON, the baseline, and goes on to serve if it is told to: see `bench.serve.server`.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import torch

import photonlite
from bench.gpu.machine import describe
from bench.gpu.models import endless_model, serve
from bench.gpu.samples import median_of
from bench.serve.images import jpegs
from bench.shapes import MOONDREAM2, TINY
from photonlite.api import VisionModel
from photonlite.config import EngineConfig
from photonlite.device.names import resolve_device
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.results import Answer, Metrics
from photonlite.server.config import ServerConfig
from photonlite.server.run import serve as serve_http

SHAPES: Final[dict[str, dict[str, Any]]] = {"moondream2": MOONDREAM2, "tiny": TINY}
"""Shapes of models with random weights, which never end an answer: limits set the length."""

ASKED: Final[dict[str, dict[str, Any]]] = {
    "detect": {"object": "banana", "settings": {"max_objects": 3}},
    "query": {"question": "What is in the image?", "settings": {"max_tokens": 32}},
}
"""Arguments of each skill, for methods and for requests."""

_OWN_IMAGES: Final = 1 << 19
"""Number of the baseline's first image: the server must not have seen its images."""
_POOL: Final = 512
_ALONE: Final = 20

Ask = Callable[[bytes], Awaitable[Metrics | None]]


def asker(model: VisionModel, skill: str) -> Ask:
    """Return a function that asks a model about an image and reads the answer to its end; queries are streamed."""

    async def detect(image: bytes) -> Metrics | None:
        return (await model.adetect(image, **ASKED["detect"])).metrics

    async def query(image: bytes) -> Metrics | None:
        answer: Answer[Any, Any] = await model.aquery(image, **ASKED["query"], stream=True)
        async for _ in answer["answer"]:
            pass
        return answer.metrics

    return {"detect": detect, "query": query}[skill]


async def closed_loop(ask: Ask, images: Iterator[bytes], clients: int, seconds: float) -> dict[str, float]:
    """Run concurrent clients that ask again as soon as they have their answer.

    Measures at least so many seconds after as many answers as there are clients, and at least twice as many answers.

    Returns:
        Answers per second, and the median latency in seconds.
    """
    ends: list[tuple[float, float]] = []
    warm = asyncio.Event()
    least, until = 3 * clients, float("inf")

    async def client() -> None:
        while (began := time.perf_counter()) < until or len(ends) < least:
            await ask(next(images))
            ends.append((began, time.perf_counter()))
            if len(ends) >= clients:
                warm.set()

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
        await warm.wait()
        start = time.perf_counter()
        until = start + seconds
    until = max(until, ends[least - 1][1])
    counted = [(began, end) for began, end in ends if start < end <= until]
    # Until the last answer: answers come in batches, and a fixed end would leave a random gap.
    length = max(end for _, end in counted) - start
    return {"rate": len(counted) / length, "p50_s": median_of(end - began for began, end in counted)}


async def hand_over(ask: Ask, images: Iterator[bytes], times: int, pause_s: float) -> float:
    """Return the median seconds of a call beyond the engine's own time, without the first fifth; see `overhead`."""
    rests = []
    for _ in range(times):
        await asyncio.sleep(pause_s)
        began = time.perf_counter()
        metrics = await ask(next(images))
        ended = time.perf_counter()
        if metrics is not None:
            rests.append(ended - began - metrics.time_to_first_token_s - metrics.decode_s)
    return median_of(rests[times // 5 :])


async def baseline(model: VisionModel, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the model without a server; returns what `Baseline.of` reads."""
    images = _endless(jpegs(tuple(options.size), _POOL, _OWN_IMAGES))
    found = {
        skill: await closed_loop(asker(model, skill), images, options.clients, options.seconds)
        for skill in options.skills
    }
    rest = await hand_over(asker(model, "detect"), images, _ALONE, options.pause)
    where = resolve_device(options.device)
    machine = f"{describe(where)}, {os.cpu_count()} cores"
    dtype = str(model.dtype).removeprefix("torch.")
    return {"machine": machine, "model": f"{model.name}, {dtype}", "in_process": found, "hand_over_s": rest}


def load(options: argparse.Namespace) -> VisionModel:
    """Load the shipped checkpoint, or build a model with random weights."""
    where = resolve_device(options.device)
    if options.shape == "shipped":
        return photonlite.load(options.model, device=where)
    config = MoondreamConfig.from_dict(SHAPES[options.shape])
    dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
    memory = 24 << 30 if where.type == "cuda" else 1 << 25
    return serve(endless_model(config, where, dtype), where, dtype, EngineConfig(kv_cache_bytes=memory))


def main() -> int:
    """Print the baseline, and serve with `--serve`."""
    parser = argparse.ArgumentParser(prog="python -m bench.serve.subject")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--shape", choices=("shipped", *SHAPES), default="shipped")
    parser.add_argument("--model")
    parser.add_argument("--skills", nargs="*", choices=tuple(ASKED), default=[])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--pause", type=float, default=0.03)
    parser.add_argument("--size", type=int, nargs=2, default=(640, 480))
    parser.add_argument("--serve", type=int, metavar="MAX_OPEN", default=0)
    options = parser.parse_args()
    model = load(options)
    print(json.dumps({"event": "baseline", **asyncio.run(baseline(model, options))}), flush=True)
    if options.serve:
        return serve_http(model, ServerConfig(port=0, max_open=options.serve))
    model.close()
    return 0


def _endless(images: list[bytes]) -> Iterator[bytes]:
    while True:
        yield from images


if __name__ == "__main__":
    sys.exit(main())
