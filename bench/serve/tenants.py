"""Whether one tenant can tell by the time to the first token what another one has asked.

```sh
python -m bench.serve.tenants --output tenants.md
```

The shipped or another checkpoint is served by `photonlite serve` with two keys. In each trial a first tenant asks about
an image. Then a second tenant asks about the same image or, at random, about one that was never asked about. The area
under the ROC curve (AUC) is the probability that an answer of the first kind comes sooner than one of the second: 0.5
tells nothing, 1 everything. As a control, the second tenant takes the place of the first one too.
"""

import argparse
import asyncio
import math
import random
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from bench.bubble.report import table
from bench.serve.images import jpegs, json_request
from bench.serve.server import child, wait_for
from bench.serve.wire import Client

HOST: Final = "127.0.0.1"
KEYS: Final = {"first": "first-0123456789abcdef", "second": "second-0123456789abcdef"}
AIM: Final = (0.45, 0.55)
PATIENCE_S: Final = 180.0
_WARMUP: Final = 20
_QUESTION: Final = {"question": "How many bananas are there?", "stream": True, "settings": {"max_tokens": 2}}


def auc(known: Sequence[float], unknown: Sequence[float]) -> float:
    """Return the share of pairs in which the first value is smaller; equal ones count half."""
    ordered = np.sort(unknown)
    larger = len(ordered) - np.searchsorted(ordered, known, "right")
    equal = np.searchsorted(ordered, known, "right") - np.searchsorted(ordered, known, "left")
    return float(np.mean((larger + equal / 2) / len(ordered)))


def error_of(known: int, unknown: int) -> float:
    """Return the standard deviation of an AUC where there is no difference (of the Mann-Whitney U statistic)."""
    return math.sqrt((known + unknown + 1) / (12 * known * unknown))


def request(image: bytes, who: str) -> bytes:
    head = f"HTTP/1.1\r\nX-Moondream-Auth: {KEYS[who]}\r\n".encode()
    return json_request("/v1/query", image, _QUESTION).replace(b"HTTP/1.1\r\n", head, 1)


async def first_token_s(client: Client, image: bytes, who: str) -> float:
    reply = await client.ask(request(image, who))
    if reply.status != 200:
        raise RuntimeError(f"the server answered {reply.status}: {reply.body[:200]!r}")
    return reply.first - reply.began


async def trials(port: int, images: Sequence[bytes], before: str, seed: int) -> tuple[list[float], list[float]]:
    """Return the seconds to the first tokens about images that `before` has asked about, and about others.

    Two images make a trial; as many are known as unknown, in random order.
    """
    pairs = list(zip(images[::2], images[1::2], strict=True))
    coins = [number % 2 == 0 for number in range(len(pairs))]
    random.Random(seed).shuffle(coins)
    client = Client(HOST, port)
    found: dict[bool, list[float]] = {True: [], False: []}
    for number, ((first, second), known) in enumerate(zip(pairs, coins, strict=True)):
        await first_token_s(client, first, before)
        seconds = await first_token_s(client, first if known else second, "second")
        if number >= _WARMUP:
            found[known].append(seconds)
    client.close()
    return found[True], found[False]


def row_of(asked: str, known: Sequence[float], unknown: Sequence[float], aim: str, *, reached: bool) -> list[str]:
    medians = [f"{1e3 * statistics.median(times):.2f}" for times in (known, unknown)]
    found = f"{auc(known, unknown):.3f} ± {error_of(len(known), len(unknown)):.3f}"
    verdict = f"{aim}: {'reached' if reached else 'MISSED'}"
    return [asked, str(len(known)), str(len(unknown)), *medians, found, verdict]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 1 if an aim is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.serve.tenants", description=__doc__)
    parser.add_argument("--trials", type=int, default=1200, help="of each tenant, at least 100")
    parser.add_argument("--size", type=int, nargs=2, default=(320, 240), metavar=("W", "H"), help="of images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", help="a checkpoint; the shipped one by default")
    parser.add_argument("--output", type=Path, help="markdown file to write")
    options = parser.parse_args(arguments)
    if options.trials < 100:
        parser.error("fewer than 100 trials tell nothing")
    rows, reached = [], []
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("\n".join(KEYS.values()))
        keys.chmod(0o600)
        serve = ["-m", "photonlite.cli", "serve", "--port", "0", "--device", options.device]
        serve += [] if options.model is None else ["--model", options.model]
        with child([*serve, "--api-key-file", str(keys)], PATIENCE_S) as lines:
            port = int(wait_for(lines, "listening", PATIENCE_S)["port"])
            for number, (before, asked) in enumerate((("first", "another tenant"), ("second", "the same tenant"))):
                count = options.trials if before == "first" else max(100, options.trials // 6)
                images = jpegs(tuple(options.size), 2 * count, number << 18)
                known, unknown = asyncio.run(trials(port, images, before, options.seed + number))
                value = auc(known, unknown)
                reached.append(AIM[0] <= value <= AIM[1] if before == "first" else value > 0.9)
                aim = f"{AIM[0]} to {AIM[1]}" if before == "first" else "over 0.9"
                rows.append(row_of(asked, known, unknown, aim, reached=reached[-1]))
    command = shlex.join(["python", "-m", "bench.serve.tenants", *(sys.argv[1:] if arguments is None else arguments)])
    head = ["asked before by", "known", "unknown", "first token, known (ms)", "unknown (ms)", "AUC ± its error", "aim"]
    page = "\n\n".join(
        (
            "# Serving: what one tenant learns about another",
            f"{time.strftime('%Y-%m-%d')}, {options.device}, {options.model or 'the shipped checkpoint'}, images of "
            f"{options.size[0]}x{options.size[1]}. Made by `{command}`.",
            table(head, rows),
            "The AUC is the chance that an image which was asked about before has its first token sooner; its error is "
            "one standard deviation where there is no difference. The first row is to tell nothing, the second one "
            "shows that these times would.",
        )
    )
    print(page)
    if options.output is not None:
        options.output.write_text(page + "\n")
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
