"""Damaged images by every way in; each gets an answer or a typed error, and memory stays bounded."""

import base64
import contextlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Final, Self

import psutil

from bench.campaign.client import Answer, Ask, ask, chances, fault, json_ask
from bench.campaign.image_mutations import FORMATS, MEDIA_TYPES, Mutated, mutate
from bench.campaign.server import Server, ServerError
from bench.campaign.trial import Batches, Outcome, Setup, Trial

BATCH: Final = 20 * len(FORMATS)
OPEN_MB: Final = 256
SPARE_MB: Final = 300
"""Memory that the processes may take beyond `--max-open-mb`, as in `bench.serve.hostile`."""
_CLIENTS: Final = 4
_SAMPLED_S: Final = 0.1
_MB: Final = 1e6
_FORM: Final = (
    b'--b\r\nContent-Disposition: form-data; name="question"\r\n\r\nwhy\r\n'
    b'--b\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n%b\r\n--b--\r\n'
)


def request(image: Mutated, chance: random.Random) -> Ask:
    """Return the image as a request, by one of the ways in."""
    uri = f"data:{MEDIA_TYPES[image.format]};base64,{base64.b64encode(image.data).decode()}"
    match chance.randrange(4):
        case 0:
            return json_ask("/v1/caption", image_url=uri, settings={"max_tokens": 2})
        case 1:
            return Ask("/v1/query?question=why", image.data, MEDIA_TYPES[image.format])
        case 2:
            return Ask("/v1/query", _FORM % image.data, "multipart/form-data; boundary=b")
    parts = [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": uri}}]
    return json_ask("/v1/chat/completions", messages=[{"role": "user", "content": parts}], max_tokens=2)


class MemoryWatch:
    """Samples the memory of a server's processes while a block runs.

    Attributes:
        before: Proportional set size of all, in MB, before the block.
        peak: The most of it.
        worker: The most resident memory that a process which decodes has ever had, in MB.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.worker = 0.0
        self.before = self.peak = self._sample()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_SAMPLED_S):
            self.peak = max(self.peak, self._sample())

    def _sample(self) -> float:
        total = 0
        with contextlib.suppress(psutil.Error, ServerError):
            for process in self._server.family:
                total += _kilobytes(process.pid, "smaps_rollup", "Pss:")
            for process in self._server.workers("image"):
                self.worker = max(self.worker, 1024 * _kilobytes(process.pid, "status", "VmHWM:") / _MB)
        return 1024 * total / _MB


def _kilobytes(pid: int, file: str, field: str) -> int:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field))
    return 0


def run(setup: Setup, first: int) -> Batches:
    flags = ("--max-open-mb", str(OPEN_MB), "--max-pixels", "4000000", "--image-workers", "2", "--max-tokens", "8")
    with Server(setup, *flags) as server, ThreadPoolExecutor(_CLIENTS) as pool:
        cases = chances(setup.seed, "images", first)
        ask(server.port, request(mutate(0, random.Random(0)), random.Random(0)))  # what is loaded once is no growth
        base = MemoryWatch(server).before
        while True:
            drawn = [(number, chance, mutate(number, chance)) for number, chance in islice(cases, BATCH)]
            asks = [request(image, chance) for _, chance, image in drawn]
            with MemoryWatch(server) as memory:
                answers = list(pool.map(lambda one: ask(server.port, one), asks))
            outcomes = [
                _judged(number, image, answer) for (number, _, image), answer in zip(drawn, answers, strict=True)
            ]
            outcomes[-1] = _with_memory(outcomes[-1], memory, base, server.restarts())
            yield outcomes


def _judged(number: int, image: Mutated, answer: Answer) -> Outcome:
    wrong = fault(answer) or ("503 or 504 for an image" if answer.status in (503, 504) else "")
    line = f"{image.format}, {image.done}: {wrong}" if wrong else ""
    counts = {image.format: 1, f"status {answer.status}": 1}
    return Outcome(number, line, {"slowest answer (s)": answer.seconds}, counts)


def _with_memory(outcome: Outcome, memory: MemoryWatch, base: float, restarts: str) -> Outcome:
    grown = memory.peak - base
    over = f"memory grew by {grown:.0f} MB" if grown > OPEN_MB * 2**20 / _MB + SPARE_MB else ""
    figures = {**outcome.figures, "memory of all processes, growth (MB)": grown}
    figures["peak of a decoding process (MB)"] = memory.worker
    return outcome._replace(failure="; ".join(filter(None, (outcome.failure, over, restarts))), figures=figures)


TRIAL = Trial(
    "images",
    "damaged images",
    10_000,
    f"another answer than 200 or a typed 4xx; memory of all processes grows by more than {OPEN_MB} MiB "
    f"(`--max-open-mb`) and {SPARE_MB} MB; the serving process ends. The growth contains the cache of images' "
    "embeddings, up to 256 MiB",
    run,
)
