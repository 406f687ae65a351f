"""Hostile images against a server: `python -m bench.serve.hostile`, on the CPU with the shipped checkpoint.

- Latency: one client asks again as soon as it has its answer, alone and while four other clients do the same with
  progressive JPEGs of 200 KB whose last scan is repeated (36 megapixels: minutes of decoding). Rounds alternate; the
  figure is the ratio of the medians, and the aim is at most 2.5 on two cores.
- Greedy clients (`--greedy`, all kinds, or those that are named): see `bench.serve.greedy`.
- Memory: many clients send float TIFFs at once. The proportional set size (PSS) of the server and its workers is
  sampled from `/proc`; the aim is that it grows by at most `max_open_bytes` and 300 MB, and returns to within 300 MB.
"""

import argparse
import contextlib
import http.client
import io
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from PIL import Image

from bench.images import photo
from bench.serve.greedy import KEY_FILE, KINDS, TABLE, row
from bench.serve.server import child, wait_for

HOST: Final = "127.0.0.1"
BOMBS: Final = 4
OPEN_BYTES: Final = 512 * 2**20
SPARE_BYTES: Final = 300 * 10**6
_PATH: Final = "/v1/detect?object=banana"
_PATIENCE_S: Final = 600.0


def scans(size: tuple[int, int] = (6000, 6000), repeats: int = 200) -> bytes:
    """Return a progressive JPEG whose last scan is repeated."""
    file = io.BytesIO()
    Image.new("RGB", size).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * repeats + b"\xff\xd9"


def floats(size: tuple[int, int] = (2000, 1500)) -> bytes:
    """Return a TIFF of floats that takes few bytes as a file."""
    file = io.BytesIO()
    Image.new("F", size, 0.5).save(file, "TIFF", compression="tiff_deflate")
    return file.getvalue()


def ask(port: int, image: bytes) -> tuple[int, float]:
    """Ask about an image; return the status and the seconds that it took."""
    begun = time.perf_counter()
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=120)) as connection:
        connection.request("POST", _PATH, image, {"Content-Type": "image/jpeg"})
        status = connection.getresponse().status
    return status, time.perf_counter() - begun


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[tuple[int, int]]:
    """Serve the shipped checkpoint while a block runs; gives the port and the number of the process."""
    # One process, which is measured.
    command = ["-m", "photonlite.cli", "serve", "--no-supervise", "--device", "cpu", "--port", "0", *flags]
    with child(command, _PATIENCE_S) as lines:
        yield int(wait_for(lines, "listening", _PATIENCE_S)["port"]), lines.process.pid


def latency(port: int, rounds: int, seconds: float) -> tuple[list[float], list[float], set[int]]:
    """Time a client in turns, alone and beside bombs; also return the statuses that bombs got."""
    data, bomb = io.BytesIO(), scans()
    photo(640, 480).save(data, "JPEG")
    alone: list[float] = []
    beside: list[float] = []
    statuses: set[int] = set()
    for _ in range(rounds):
        alone += _asked(port, data.getvalue(), seconds)
        over = threading.Event()
        with ThreadPoolExecutor(BOMBS) as executor:
            throwing = [executor.submit(_throw, port, bomb, over) for _ in range(BOMBS)]
            try:
                beside += _asked(port, data.getvalue(), seconds)
            finally:
                over.set()
            for thrower in throwing:
                statuses |= thrower.result()
    return alone, beside, statuses


def _throw(port: int, bomb: bytes, over: threading.Event) -> set[int]:
    statuses = set()
    while not over.is_set():
        statuses.add(ask(port, bomb)[0])
    return statuses


def _asked(port: int, image: bytes, seconds: float) -> list[float]:
    until, times = time.perf_counter() + seconds, []
    while time.perf_counter() < until:
        status, took = ask(port, image)
        if status != 200:
            raise RuntimeError(f"a good image got {status}")
        times.append(took)
    return times


def memory(port: int, pid: int, requests: int) -> tuple[int, int, int, dict[int, int]]:
    """Return the bytes of server and workers before, at the peak of and after many float TIFFs, and all statuses."""
    image = floats()
    ask(port, image)
    before = peak = family_bytes(pid)
    with ThreadPoolExecutor(32) as executor:
        answers = [executor.submit(ask, port, image) for _ in range(requests)]
        while not all(answer.done() for answer in answers):
            peak = max(peak, family_bytes(pid))
            time.sleep(0.05)
    statuses = [answer.result()[0] for answer in answers]
    time.sleep(1.0)
    return before, peak, family_bytes(pid), {status: statuses.count(status) for status in sorted(set(statuses))}


def family_bytes(pid: int) -> int:
    """Return the proportional set size of a process and its children."""
    family = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            family += [int(child) for child in (task / "children").read_text().split()]
    total = 0
    for one in family:
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total


def greedy(kinds: Sequence[str], seconds: float) -> bool:
    """Print a table of greedy clients, each beside a server of its own; return whether the aims were reached."""
    print(TABLE)
    reached = True
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write(KEY_FILE)
        keys.flush()
        for kind in kinds:
            with serving("--api-key-file", keys.name) as (port, _):
                line, good = row(port, kind, seconds)
            print(line, flush=True)
            reached &= good
    return reached


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both and print them.

    Args:
        arguments: Of the command line.
    """
    parser = argparse.ArgumentParser(description="Hostile images against a server on the CPU")
    parser.add_argument("--rounds", type=int, default=4, help="of the latency, alone and beside bombs")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each half of a round")
    parser.add_argument("--requests", type=int, default=150, help="of the memory")
    parser.add_argument("--greedy", nargs="*", choices=KINDS, metavar="KIND", help=f"only: {', '.join(KINDS)}")
    given = parser.parse_args(arguments)
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    if given.greedy is not None:
        return int(not greedy(given.greedy or KINDS, given.seconds))
    with serving() as (port, _):
        alone, beside, statuses = latency(port, given.rounds, given.seconds)
    medians = [statistics.median(times) for times in (alone, beside)]
    tails = [statistics.quantiles(times, n=20)[-1] for times in (alone, beside)]
    print(f"latency alone     p50 {1e3 * medians[0]:.0f} ms, p95 {1e3 * tails[0]:.0f} ms, {len(alone)} answers")
    print(f"with {BOMBS} bombs      p50 {1e3 * medians[1]:.0f} ms, p95 {1e3 * tails[1]:.0f} ms, {len(beside)} answers")
    print(f"ratio             p50 {medians[1] / medians[0]:.2f}, p95 {tails[1] / tails[0]:.2f} (aim: at most 2.5)")
    print(f"bombs got         {json.dumps(sorted(statuses))}")
    with serving("--max-open-mb", str(OPEN_BYTES // 2**20)) as (port, pid):
        before, peak, after, counted = memory(port, pid, given.requests)
    grown, left = peak - before, after - before
    most = OPEN_BYTES + SPARE_BYTES
    print(f"float TIFFs       {before / 1e6:.0f} MB before, {grown / 1e6:+.0f} at the peak, {left / 1e6:+.0f} after")
    print(f"aim               +{most / 1e6:.0f} MB at most, +{SPARE_BYTES / 1e6:.0f} MB after; statuses {counted}")
    return int(medians[1] > 2.5 * medians[0] or grown > most or left > SPARE_BYTES)


if __name__ == "__main__":
    sys.exit(main())
