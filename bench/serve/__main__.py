"""The server under load: `python -m bench.serve`, or with `--device cuda --shape moondream2 --clients 64` on a card.

First the model is asked in one process, without a server, by clients that ask again as soon as they have their answer:
that is the capacity. Then a server in a process of its own is offered requests at rising multiples of it, whether
earlier ones have been answered or not. No two images are alike, so that caching helps none of them.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter, strftime
from typing import Any, Final

from tqdm import tqdm

from bench.bubble.report import Aim, table
from bench.gpu.command import say
from bench.gpu.page import Page
from bench.serve.images import Stock, jpegs, json_request, padded, raw_request
from bench.serve.load import Level, play
from bench.serve.options import Options, parse
from bench.serve.overhead import OverheadError, waits
from bench.serve.report import LOAD_HEAD, OVERHEAD_HEAD, aims_table, load_aims, load_row, overhead_row
from bench.serve.server import Baseline, ChildError, started
from bench.serve.wire import Client

HOST: Final = "127.0.0.1"
SMALL, LARGE = (320, 240), 490_000
"""Images of the overhead: size in pixels, and of the body in bytes."""
SETTLE_S = 2.0
"""Seconds of each rate that do not count: the server fills."""
MOST_IMAGES: Final = 2048
OBJECT: Final[dict[str, Any]] = {"object": "banana", "settings": {"max_objects": 3}}
QUESTION: Final[dict[str, Any]] = {"question": "What is in the image?", "settings": {"max_tokens": 32}}
"""Limits give an answer its length where random weights never end one; `bench.serve.subject` asks for the same."""

NOTES = f"""\
- Times in milliseconds. Requests arrive as a Poisson process of the rate offered; a wait counts from the moment at
  which a request was due, whether the generator was late or not. The first {SETTLE_S:g} s of each rate do not count.
- Offered: as a multiple of the capacity, which is what the closed loop in one process answers per second. Answered:
  replies of status 200 that ended while it counted. First byte: of the reply's body; of a stream, its first event.
- 429: refused because the server had as many open as it takes. Other: any other end.
- HTTP: a client's wait less the time from the engine's first sight of the request to its last token. It holds the
  client's own reading and writing, and the hand-over from the engine, which a call in the same process has as well.
- The generator runs on the machine that it measures; "sent late" is by how much it fell behind its own schedule."""


class Run:
    """One run of the bench, and its report.

    Args:
        options: The command line.
        baseline: The model without a server.
        port: Of the server.
    """

    def __init__(self, options: Options, baseline: Baseline, port: int) -> None:
        self._options = options
        self._baseline = baseline
        self._port = port
        self._page = Page("Serving", options.output)
        self._aims: list[Aim] = []
        self._page.put("", self._preamble())
        if baseline.rates:
            self._page.put("Capacity", self._capacity())

    def overhead(self) -> None:
        """Measure what HTTP adds to requests that come alone."""
        options = self._options
        rows = []
        for index, (what, asked) in enumerate(_alone(options.times + 10).items()):
            with tqdm(asked, desc=what, unit="request", disable=None, leave=False) as bar:
                found = waits(HOST, self._port, bar, options.pause)[10:]
            size = len(asked[0].partition(b"\r\n\r\n")[2])
            row, aim = overhead_row(what, size, found)
            rows.append(row)
            if index < 2:
                self._aims.append(aim)
            say(" | ".join(row))
            self._page.put("What HTTP adds", table(OVERHEAD_HEAD, rows) + "\n\n" + self._hand_over())

    def load(self, skill: str, path: str, fields: Mapping[str, Any], rates: Sequence[float], title: str) -> None:
        """Offer rising rates of one kind of request."""
        options, capacity = self._options, self._baseline.rates[skill]
        seconds = SETTLE_S + options.seconds
        # What the server refuses can be sent again.
        count = 256 + round(sum(min(rate, 1.2) for rate in rates) * capacity * seconds)
        first = 0 if skill == "detect" else 1 << 18
        images = jpegs(options.size, min(count, MOST_IMAGES), first)
        stock = Stock([json_request(path, image, fields) for image in images])
        levels: list[Level] = []
        rows = []
        for number, multiple in enumerate(rates):
            rate = multiple * capacity
            what = f"{title}, {multiple:g} x"
            with tqdm(total=round(rate * seconds), desc=what, unit="request", disable=None, leave=False) as bar:
                told = partial(bar.update, 1)
                levels.append(asyncio.run(self._play(stock, rate, options.seed + number, told)))
            rows.append(load_row(levels[-1], capacity))
            say(" | ".join(rows[-1]))
            busy = ", ".join(f"{level.busy:.2f}" for level in levels)
            note = f"Cores that the generator took: {busy}. Images were asked about again {stock.rounds} times."
            self._page.put(title, table(LOAD_HEAD, rows) + "\n\n" + note)
        self._aims += load_aims(levels)

    def finish(self) -> None:
        """Add aims and notes, and print everything."""
        if self._aims:
            self._page.put("Aims", aims_table(self._aims))
        self._page.put("How to read this", NOTES)
        say(f"\n{self._page}\n")

    async def _play(self, stock: Stock, rate: float, seed: int, tell: Callable[[], object]) -> Level:
        client = Client(HOST, self._port)
        seconds = self._options.seconds
        try:
            return await play(client, stock, rate, settle_s=SETTLE_S, seconds=seconds, seed=seed, tell=tell)
        finally:
            client.close()

    def _preamble(self) -> str:
        options, baseline = self._options, self._baseline
        figures = " FIGURES MEAN NOTHING." if options.shape == "tiny" else ""
        shape = "" if options.shape == "shipped" else f", shape {options.shape}"
        width, height = options.size
        return (
            f"{strftime('%Y-%m-%d')}, {baseline.machine}.\nModel: {baseline.model}{shape}.{figures} "
            f"Images of {width}x{height} as JPEG; at most {options.max_open} open requests; "
            f"{options.seconds:g} s of each rate.\nMade by `{options.command}`."
        )

    def _capacity(self) -> str:
        rows = [
            [f"{skill}, {self._options.clients} clients", f"{rate:.1f}", f"{1e3 * self._baseline.p50_s[skill]:.1f}"]
            for skill, rate in self._baseline.rates.items()
        ]
        return table(["closed loop in one process", "answers per second", "answer p50 (ms)"], rows)

    def _hand_over(self) -> str:
        rest = 1e3 * self._baseline.hand_over_s
        return f"In one process, without HTTP, a call takes {rest:.2f} ms more than the engine (median)."


def _alone(count: int) -> dict[str, list[bytes]]:
    """Return the requests of single clients by name."""
    path, first = "/v1/detect", 1 << 17
    small = [jpegs(SMALL, count, first + kind * count) for kind in range(4)]
    decoded = LARGE * 3 // 4 - 100
    return {
        "small image, JSON": [json_request(path, one, OBJECT) for one in small[0]],
        "490 kB, JSON": [json_request(path, padded(one, decoded), OBJECT) for one in small[1]],
        "small image, raw": [raw_request(f"{path}?object=banana", one) for one in small[2]],
        "490 kB, raw": [raw_request(f"{path}?object=banana", padded(one, LARGE)) for one in small[3]],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parse(__doc__, arguments)
    begun = perf_counter()
    try:
        say("measuring the model in one process ...")
        with started(options) as (baseline, port):
            run = Run(options, baseline, port)
            for skill, rate in baseline.rates.items():
                say(f"{skill}: {rate:.1f} answers per second; serving at port {port}")
            if "overhead" in options.only:
                run.overhead()
            if "detect" in options.only:
                run.load("detect", "/v1/detect", OBJECT, options.rates, "Load: detect")
            if "streams" in options.only:
                streamed = {**QUESTION, "stream": True}
                run.load("query", "/v1/query", streamed, options.stream_rates, "Load: streamed answers")
            run.finish()
    except (ChildError, OverheadError) as error:
        say(f"error: {error}")
        return 1
    say(f"done after {perf_counter() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server does not outlive the bench
    sys.exit(main())
