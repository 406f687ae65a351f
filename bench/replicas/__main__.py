"""Replicas on Ray Serve: `python -m bench.replicas`, with `--only hits` for the simulation alone, which needs no Ray.

Hits of the prefix cache with affinity, without it, and of one big cache, on simulated replicas; then a real service of
the shipped checkpoint on the CPU: its hits, its throughput with four replicas and with one, and a killed replica.
"""

import argparse
import asyncio
import random
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Final

from tqdm import tqdm

from bench.bubble.report import table
from bench.gpu.page import Page
from bench.replicas.cluster import SMALL, Cluster, cluster, wait_until
from bench.replicas.hits import Choose, Outcome, Traffic, affinity, least_load, round_robin, simulate
from bench.serve.images import Stock, jpegs, padded, raw_request
from bench.serve.shares import closed_loop
from bench.serve.wire import Client
from photonlite.ray.placement import Placement
from photonlite.ray.settings import RaySettings

HOST: Final = "127.0.0.1"
REPLICAS: Final = 4
ASKED: Final = "/v1/detect?object=banana"
CLIENTS: Final = 8
PARTS: Final = ("hits", "service")
SIZE, BYTES = (320, 240), 60_000
"""Images of the service: pixels, and bytes of their files where these must differ although the pixels are the same."""


def simulated(images_each: int, traffic: Traffic, seeds: Sequence[int]) -> list[list[str]]:
    """Compare policies where each replica's cache holds so many images; returns a row for each."""
    factor, together = RaySettings().load_factor, traffic.together

    def run(choose: Choose, load_factor: float = factor) -> list[Outcome]:
        placed = partial(Placement, load_factor, together)
        return [simulate(traffic, REPLICAS, images_each, choose, placed(), seed) for seed in seeds]

    whole = Traffic(requests=traffic.requests, together=REPLICAS * together)
    # The same room in all for images beside those being answered.
    big = [simulate(whole, 1, REPLICAS * images_each, affinity, Placement(factor, together), seed) for seed in seeds]
    turns = run(round_robin())
    base, most = (mean(one.hits for one in found) for found in (turns, big))
    cases = {
        "affinity, bounded load": run(affinity),
        "affinity without a bound": run(affinity, load_factor=1e9),
        "least load": run(least_load),
        "round robin": turns,
        "one big cache": big,
    }
    return [[f"{images_each}, {name}", *_figures(found, base, most)] for name, found in cases.items()]


def _figures(found: Sequence[Outcome], base: float, most: float) -> list[str]:
    hits = mean(one.hits for one in found)
    busiest = mean(one.busiest for one in found)
    return [f"{100 * hits:.1f}%", f"{hits / base:.2f}", f"{100 * (hits - most):+.1f}", f"{busiest:.2f}"]


def samples(page: str, name: str) -> float:
    """Return the sum of a metric over all replicas."""
    lines = [line for line in page.splitlines() if line.partition("{")[0].partition(" ")[0] == name]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def page_of(port: int) -> str:
    client = Client(HOST, port)
    reply = await client.ask(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    client.close()
    return reply.body.decode(errors="replace")


async def real_hits(port: int, images: Sequence[bytes], *, scattered: bool, count: int, seed: int) -> tuple[float, int]:
    """Ask about images by Zipf's law; returns the share of hits and how many images were asked about.

    Scattered: no two files are alike, so that requests about the same pixels go anywhere.
    """
    chance = random.Random(seed)
    chosen = chance.choices(range(len(images)), [1 / (rank + 1) for rank in range(len(images))], k=count)
    files = [padded(images[one], BYTES + turn) if scattered else images[one] for turn, one in enumerate(chosen)]
    before = await page_of(port)
    todo, client = iter(files), Client(HOST, port)

    async def ask() -> None:
        for file in todo:
            reply = await client.ask(raw_request(ASKED, file))
            if reply.status != 200:
                raise RuntimeError(f"a request was answered with {reply.status}")

    await asyncio.gather(*(ask() for _ in range(CLIENTS)))
    client.close()
    after = await page_of(port)
    names = [f"photonlite_engine_prefix_{what}_total" for what in ("hits", "misses")]
    hits, misses = (samples(after, name) - samples(before, name) for name in names)
    return hits / (hits + misses), len(set(chosen))


async def replies(port: int, images: Sequence[bytes], until: "asyncio.Event") -> Counter[int]:
    """Ask until told to stop; returns how many replies there were of each status."""
    client, statuses, number = Client(HOST, port), Counter[int](), iter(range(1 << 30))

    async def ask() -> None:
        while not until.is_set():
            reply = await client.ask(raw_request(ASKED, images[next(number) % len(images)]))
            statuses[reply.status] += 1

    await asyncio.gather(*(ask() for _ in range(CLIENTS)))
    client.close()
    return statuses


async def killed(service: Cluster, images: Sequence[bytes]) -> tuple[Counter[int], float, float]:
    """Kill a replica under load; returns the statuses, and the seconds until the first answer and until it is back."""
    stop = asyncio.Event()
    load = asyncio.create_task(replies(service.port, images, stop))
    await asyncio.sleep(3)
    victim = service.replicas[0]
    begun = time.monotonic()
    victim.kill()
    client = Client(HOST, service.port)
    while (await client.ask(raw_request(ASKED, images[0]))).status != 200:
        pass
    answered = time.monotonic() - begun
    client.close()

    def back() -> bool:
        page = asyncio.run(page_of(service.port))
        return len({line for line in page.splitlines() if line.startswith("photonlite_engine_alive{")}) == REPLICAS

    await asyncio.to_thread(wait_until, lambda: victim.pid not in [one.pid for one in service.replicas], "it is gone")
    await asyncio.to_thread(wait_until, back, "all replicas answer")
    seconds = time.monotonic() - begun
    stop.set()
    return await load, answered, seconds


def serviced(page: Page, seconds: float) -> None:
    settings: dict[str, Any] = {**SMALL, "replicas": REPLICAS, "deadline_s": 300, "drain_s": 120}
    images = jpegs(SIZE, 2400)
    with cluster(**settings) as service:
        rows = []
        for what, scattered, first in (("affinity", False, 0), ("scattered", True, 60)):
            asked = real_hits(service.port, images[first : first + 60], scattered=scattered, count=300, seed=1)
            hits, distinct = asyncio.run(asked)
            rows.append([what, f"{100 * hits:.1f}%", f"{100 * (1 - distinct / 300):.1f}%"])
        page.put("Hits of a real service", table(["300 requests about 60 images", "hits", "one big cache"], rows))
        statuses, answered, back = asyncio.run(killed(service, images[200:400]))
        row = [f"{statuses[200]}", f"{statuses[503]}", f"{statuses.total() - statuses[200] - statuses[503]}"]
        row += [f"{answered:.1f}", f"{back:.0f}"]
        head = [f"{CLIENTS} clients", "answered", "503", "other", "next answer (s)", "all replicas back (s)"]
        page.put("A replica killed under load", table(head, [["one of four", *row]]))
        rates = {REPLICAS: rate(service, images[400:1400], seconds)}
        service.update(**{**settings, "replicas": 1})
        wait_until(lambda: len(service.replicas) == 1, "one replica is left")
        rates[1] = rate(service, images[1400:2400], seconds)
    rows = [[str(count), f"{found:.2f}", f"{found / rates[1]:.2f}"] for count, found in rates.items()]
    page.put("Throughput", table(["replicas", "answers/s", "relative to one"], rows))


def rate(service: Cluster, images: Sequence[bytes], seconds: float) -> float:
    stock = Stock([raw_request(ASKED, image) for image in images])
    asyncio.run(closed_loop(service.port, stock, CLIENTS, 5))  # the first ones warm up
    return len(asyncio.run(closed_loop(service.port, stock, CLIENTS, seconds))) / seconds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.replicas", description=__doc__)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--each", type=int, nargs="+", default=[10, 25, 50], help="images that a cache holds")
    parser.add_argument("--requests", type=int, default=8000, help="of a simulated run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=20.0, help="of a measurement of throughput")
    parser.add_argument("--output", type=Path, help="file for the report")
    options = parser.parse_args(arguments)
    page = Page("Replicas", options.output)
    command = shlex.join(["python", "-m", "bench.replicas", *(sys.argv[1:] if arguments is None else arguments)])
    page.put("", f"{time.strftime('%Y-%m-%d')}. Made by `{command}`.")
    if "hits" in options.only:
        rows: list[list[str]] = []
        for each in tqdm(options.each, desc="simulated caches", disable=None):
            rows += simulated(each, Traffic(requests=options.requests), options.seeds)
        head = ["images a cache holds, policy", "hits", "x round robin", "points to one big cache", "busiest replica"]
        page.put("Hits of simulated replicas", table(head, rows))
    if "service" in options.only:
        serviced(page, options.seconds)
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
