"""Latency of a caller beside a greedy one, and the fate of accepted requests under overload.

```sh
python -m bench.serve.shares --output bench/results/serve-shares.md
```

The shipped checkpoint on the CPU, served by `photonlite serve` with two keys. One client with one key asks for one
answer after the other, alone and beside forty with the other key, alternately. Then captions are asked for at ten times
the rate at which one client gets them, with a deadline that is reached.
"""

import argparse
import asyncio
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.bubble.report import table
from bench.serve.images import Stock, jpegs, raw_request
from bench.serve.load import play
from bench.serve.server import child, wait_for
from bench.serve.wire import Client

HOST: Final = "127.0.0.1"
KEYS: Final = {"light": "light-0123456789abcdef", "greedy": "greedy-0123456789abcdef"}
GREEDY_CLIENTS: Final = 40
PATIENCE_S: Final = 180.0


def keyed(path: str, images: list[bytes], key: str) -> Stock:
    """Return requests of one key, one about each image."""
    head = f"HTTP/1.1\r\nX-Moondream-Auth: {KEYS[key]}\r\n".encode()
    return Stock([raw_request(path, image).replace(b"HTTP/1.1\r\n", head, 1) for image in images])


async def closed_loop(port: int, stock: Stock, clients: int, seconds: float) -> list[float]:
    """Let clients ask one after the other; returns the seconds that answers took."""
    waits: list[float] = []
    connection, until = Client(HOST, port), time.perf_counter() + seconds

    async def client() -> None:
        while time.perf_counter() < until:
            request = stock.take()
            reply = await connection.ask(request)
            stock.give_back(request, answered=reply.status == 200)
            if reply.status == 200:
                waits.append(reply.ended - reply.began)
            else:
                await asyncio.sleep(1)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    connection.close()
    return waits


async def shares(port: int, rounds: int, seconds: float) -> list[list[str]]:
    """Measure the light caller alone and beside the greedy one; returns a row for each round."""
    images = jpegs((640, 480), 1200)
    light = keyed("/v1/detect?object=banana", images[:400], "light")
    greedy = keyed("/v1/detect?object=banana", images[400:], "greedy")
    rows = []
    for number in range(rounds):
        alone = await closed_loop(port, light, 1, seconds)
        crowd = asyncio.create_task(closed_loop(port, greedy, GREEDY_CLIENTS, seconds))
        await asyncio.sleep(1)
        beside = await closed_loop(port, light, 1, seconds - 1)
        done = await crowd
        medians = [statistics.median(waits) for waits in (alone, beside)]
        rates = [len(alone) / seconds, len(beside) / (seconds - 1), len(done) / seconds]
        ratio = f"{medians[1] / medians[0]:.2f}"
        times = [f"{1e3 * one:.0f}" for one in medians]
        rows.append([str(number + 1), *times, ratio, *(f"{one:.1f}" for one in rates)])
    return rows


async def overload(port: int, seconds: float) -> list[str]:
    """Ask for captions at ten times the rate of one client; returns a row."""
    images = jpegs((640, 480), 700, 1 << 17)
    path = "/v1/caption?length=long"
    alone = await closed_loop(port, keyed(path, images[:200], "light"), 1, 10.0)
    rate = 10 * len(alone) / 10.0
    client = Client(HOST, port)
    level = await play(client, keyed(path, images[200:], "light"), rate, settle_s=10.0, seconds=seconds, seed=7)
    client.close()
    late = sum(visit.status == 504 for visit in level.counted)
    accepted = len(level.answered) + late
    share = f"{late / max(1, accepted):.1%}"
    return [f"{rate:.0f}", f"{len(level.counted)}", f"{accepted}", f"{late}", share, f"{len(level.refused)}"]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.serve.shares", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run")
    parser.add_argument("--deadline", type=float, default=8.0, help="seconds, of the overload")
    parser.add_argument("--output", type=Path, help="markdown file to write")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("\n".join(KEYS.values()))
        keys.chmod(0o600)
        serve = ["-m", "photonlite.cli", "serve", "--port", "0", "--device", "cpu", "--api-key-file", str(keys)]
        with child(serve, PATIENCE_S) as lines:
            port = int(wait_for(lines, "listening", PATIENCE_S)["port"])
            rows = asyncio.run(shares(port, options.rounds, options.seconds))
        with child([*serve, "--deadline-seconds", str(options.deadline)], PATIENCE_S) as lines:
            port = int(wait_for(lines, "listening", PATIENCE_S)["port"])
            row = asyncio.run(overload(port, 3 * options.seconds))
    command = ["python", "-m", "bench.serve.shares", *sys.argv[1:]]
    head = ["round", "p50 alone (ms)", "beside (ms)", "ratio", "answers/s alone", "beside", "of the greedy one"]
    over = ["captions/s offered", "counted", "accepted", "ended in 504", "share", "refused at once"]
    page = "\n\n".join(
        (
            "# Serving: shares of callers",
            f"{time.strftime('%Y-%m-%d')}, CPU, the shipped checkpoint. Made by `{shlex.join(command)}`.",
            f"## One client beside {GREEDY_CLIENTS} of another key (detect, new images of 640x480)",
            table(head, rows),
            f"## Ten times as many long captions as one client gets, with a deadline of {options.deadline:g} s",
            table(over, [row]),
        )
    )
    print(page)
    if options.output is not None:
        options.output.write_text(page + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
