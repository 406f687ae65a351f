"""How long callers of a server do without it when its process is killed: `python -m bench.recovery`.

Clients ask one question after the other. The serving process gets SIGKILL under that load, several times. Of each kill:

- when the last caller whose request was open had its error: `callers know`;
- when the first request that was sent after the kill had its answer, over a connection that the supervisor's socket had
  kept waiting: `serving again`.

Beside them is the time from the start of `photonlite serve --no-supervise` to its first answer: no restart that loads
the model can be quicker.
"""

import argparse
import contextlib
import http.client
import json
import shlex
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.serve.server import child, wait_for

PATIENCE_S = 600.0
BODY = json.dumps({"question": "How many bananas are there?", "settings": {"max_tokens": 32}})


class Asked(NamedTuple):
    """One request, in seconds of `time.perf_counter`."""

    begun: float
    ended: float
    answered: bool


class Clients:
    """Threads that ask one question after the other until the end of a block; `asked` has every request."""

    def __init__(self, port: int, count: int) -> None:
        self.asked: list[Asked] = []
        self._port = port
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def wait_for_answer(self, after: float) -> Asked:
        """Wait for the first answer to a request that was sent after a time."""
        until = time.perf_counter() + PATIENCE_S
        while time.perf_counter() < until:
            found = [one for one in list(self.asked) if one.answered and one.begun > after]
            if found:
                return min(found, key=lambda one: one.ended)
            time.sleep(0.005)
        raise RuntimeError(f"no answer within {PATIENCE_S:g} s")

    def _run(self) -> None:
        while not self._stopped.is_set():
            begun = time.perf_counter()
            answered = ask(self._port)
            self.asked.append(Asked(begun, time.perf_counter(), answered))


def ask(port: int) -> bool:
    """Ask a question; returns whether it was answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("POST", "/v1/query", BODY, {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            response.read()
            return response.status == 200
    return False


def kill(supervisor: psutil.Process, clients: Clients) -> tuple[float, float]:
    """Kill the serving process under load; returns the seconds until callers know, and until it serves again."""
    clients.wait_for_answer(time.perf_counter())  # it serves
    [serving] = supervisor.children()
    killed = time.perf_counter()
    serving.kill()
    again = clients.wait_for_answer(killed).ended - killed
    open_then = [one for one in list(clients.asked) if one.begun < killed < one.ended and not one.answered]
    return max((one.ended - killed for one in open_then), default=0.0), again


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill a serving process under load, and time its return.")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", help="a folder, a file or a Hub id (default: the shipped checkpoint)")
    parser.add_argument("--output", type=Path, help="markdown file to write")
    options = parser.parse_args()
    serve = ["-m", "photonlite.cli", "serve", "--port", "0", "--device", options.device]
    serve += ["--model", options.model] if options.model else []
    begun = time.perf_counter()
    with child([*serve, "--no-supervise"], PATIENCE_S) as lines:
        ask(int(wait_for(lines, "listening", PATIENCE_S)["port"]))
        alone = time.perf_counter() - begun
    with child([*serve, "--max-restarts", str(options.kills)], PATIENCE_S) as lines:
        port = int(wait_for(lines, "listening", PATIENCE_S)["port"])
        supervisor = psutil.Process(lines.process.pid)
        with Clients(port, options.clients) as clients:
            times = [kill(supervisor, clients) for _ in range(options.kills)]
        size = supervisor.memory_info().rss / 2**20
    command = shlex.join(["python", "-m", "bench.recovery", *sys.argv[1:]])
    rows = [f"| {number} | {1000 * know:.0f} ms | {again:.2f} s |" for number, (know, again) in enumerate(times, 1)]
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    page = "\n".join(
        (
            "# Recovery of a server whose process is killed\n",
            f"{time.strftime('%Y-%m-%d')}, {options.device}, {options.model or 'the shipped checkpoint'}, "
            f"{options.clients} clients. Made by `{command}`.\n",
            f"Start to first answer without a supervisor: {alone:.2f} s. The supervisor holds {size:.0f} MiB. Restarts "
            "in a row are delayed by 0, 1, 2, 4 ... seconds, which the times of later kills include.\n",
            "| kill | callers know | serving again |\n|---|---:|---:|",
            *rows,
            f"| median | {1000 * medians[0]:.0f} ms | {medians[1]:.2f} s |",
        )
    )
    print(page)
    if options.output:
        options.output.write_text(page + "\n")


if __name__ == "__main__":
    main()
