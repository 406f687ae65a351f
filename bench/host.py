"""Time the engine's bookkeeping: `python -m bench.host`.

The engine's core, scheduler and grammars run with an executor that does nothing and whose tokens are always ready. What
remains of a tick is the host's work: plan, sampling parameters, grammars, tokens, metrics. Figures are microseconds of
processor time for each row and tick, which other processes hardly disturb: the median of several rounds, and the range.
The baseline, measured between the rounds, is a plain loop with the least that any engine does: each row's grammar
accepts a token, which is appended and passed to the sink.

Python's garbage collector stops every thread while it walks the process's objects. How long that takes is measured with
the shipped checkpoint loaded, in turns: as it is, and as in `photonlite serve`, which leaves out what was loaded.

Threads of Python take turns. How long an answer takes beside some that are busy is measured with turns of 5 ms, which
is Python's own interval, and with those that an engine asks for.
"""

import argparse
import contextlib
import cProfile
import gc
import pstats
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import photonlite
from bench.bubble.report import table
from bench.gpu.page import Page
from bench.gpu.samples import Sample
from photonlite.batch import EncodeJob, Step, Transfer
from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.engine.core import EngineCore
from photonlite.grammar.decoding.grammars import DetectGrammar, TextGrammar, Vocabulary
from photonlite.pauses import short_collections
from photonlite.request import Allowed, Grammar, Request, SamplingSettings, Token
from photonlite.scheduler.limits import Limits
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import Sequence as EngineSequence

WAITING, RUNNING = (10, 1_000, 10_000), (8, 64, 256)
ROUNDS, TICKS, PARTS = 7, 30, 12
_BUDGET, _PAGE = 10**6, 16
_LONGEST = 15_000  # tokens of a sequence, of the pages that there are
_VOCABULARY = Vocabulary(0, 1, 2, 3, 4, 5, any_id_continues=False)
_WORD, _X, _SIZE = Token(20), Token(2, (0.5,)), Token(3, (0.25, 0.25))

ANSWERS: dict[str, tuple[Callable[[], Grammar], tuple[Token, ...]]] = {
    "text": (lambda: TextGrammar(_VOCABULARY, _BUDGET), (_WORD,)),
    "boxes": (lambda: DetectGrammar(_VOCABULARY, _BUDGET, max_objects=_BUDGET), (_X, _X, _SIZE)),
}
"""Kinds of answers: a grammar, and the tokens that come round and round. Masks of boxes are not known ahead."""

NOTES = """\
- text, boxes: microseconds of processor time for each row and tick; the range of the rounds in brackets.
- baseline: the same of a loop in which each row's grammar accepts a token, which is appended and handed to its sink."""


COLLECTIONS = """\
- full collection: milliseconds for which all threads stand still; the range of the rounds in brackets."""

TURNS = """\
- busy threads: each runs Python for a third of its time, 10 ms at once. Rounds alternate."""


class _Sink:
    def on_token(self, token: Token) -> None:
        pass

    def on_finish(self, sequence: EngineSequence) -> None:
        pass


class ReadyExecutor:
    """An executor that does nothing: each row's next token is ready; see `photonlite.batch.Executor`."""

    def __init__(self, tokens: tuple[Token, ...]) -> None:
        self._tokens = tokens

    def launch(self, step: Step) -> None:
        pass

    def finalize(self, step: Step, allowed: Sequence[Allowed | None]) -> None:
        pass

    def collect(self, step: Step) -> list[Token | Exception | None]:
        place = (step.rows[0].index or 0) % len(self._tokens)  # all rows were prefilled together
        return [self._tokens[place]] * len(step.rows)

    def has_ended(self, step: Step) -> bool:
        return True

    def transfer(self, transfer: Transfer) -> None:
        raise AssertionError("no host memory is there to swap to")

    def transferred(self, transfer: Transfer, *, wait: bool) -> bool:
        raise AssertionError("no host memory is there to swap to")

    def forget(self, job: EncodeJob) -> None:
        pass

    def free_memory(self) -> None:
        pass

    def close(self) -> None:
        pass


class Subject:
    """An engine that decodes some sequences while others wait for their rows."""

    def __init__(self, kind: str, waiting: int, running: int) -> None:
        self.running = running
        self._grammar, self._tokens = ANSWERS[kind]
        limits = Limits(running, 2 * running, max_prefill_tokens=10**6, max_crops=16)
        cache = CacheManager(PagePool(running * 1_000, _PAGE))
        self.core = EngineCore(Scheduler(cache, limits), ReadyExecutor(self._tokens), 2)
        for number in range(running + waiting):
            self._submit(number)
        while len(self.core.scheduler.running) < running:
            self.core.tick()

    def ticks(self, count: int) -> float:
        """Return the seconds of processor time that a row takes in a tick."""
        start = time.process_time()
        for _ in range(count):
            self.core.tick()
        return (time.process_time() - start) / count / self.running

    def baseline(self, count: int) -> float:
        """Return the same of a loop that does what cannot be left out."""
        rows: list[tuple[Grammar, list[Token], _Sink]] = [(self._grammar(), [], _Sink()) for _ in range(self.running)]
        start = time.process_time()
        for tick in range(count):
            token = self._tokens[tick % len(self._tokens)]
            for grammar, tokens, sink in rows:
                grammar.accept(token)
                tokens.append(token)
                if grammar.finish_reason is None:
                    sink.on_token(token)
        return (time.process_time() - start) / count / self.running

    def parts(self, count: int) -> list[list[str]]:
        """Profile ticks; returns a row for each of the functions that take longest by themselves."""
        profile = cProfile.Profile(time.process_time)
        profile.enable()
        for _ in range(count):
            self.core.tick()
        profile.disable()
        found = [(one[2], one[1], key) for key, one in pstats.Stats(profile).stats.items()]  # type: ignore[attr-defined]
        whole = sum(seconds for seconds, _, _ in found) or 1.0
        return [
            [f"{Path(path).stem}.{name}", f"{calls / count / self.running:.2f}", f"{seconds / whole:.0%}"]
            for seconds, calls, (path, _, name) in sorted(found, reverse=True)[:PARTS]
        ]

    def _submit(self, number: int) -> None:
        request = Request("query", (Token(number), _WORD), self._grammar(), _LONGEST, SamplingSettings())
        sequence = EngineSequence(number, request, _Sink(), prefix_len=1)
        self.core.scheduler.prepare(sequence)
        self.core.submit(sequence)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.host", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--waiting", type=int, nargs="+", default=WAITING, help="sequences that wait for a row")
    parser.add_argument("--running", type=int, nargs="+", default=RUNNING, help="sequences that are decoded")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--ticks", type=int, default=TICKS, help="of a round")
    parser.add_argument("--output", type=Path, help="markdown file to write")
    options = parser.parse_args(arguments)
    page = Page("Host time of the engine's bookkeeping", options.output)
    rows = [
        measure(waiting, running, options.rounds, options.ticks)
        for waiting in options.waiting
        for running in options.running
    ]
    columns = [name for kind in ANSWERS for name in (f"{kind} (us)", "baseline")]
    page.put("A row and tick", table(["waiting", "running", *columns], rows, left=0))
    largest = Subject("text", max(options.waiting), max(options.running))
    page.put("Largest parts, text", table(["function", "calls a row", "share"], largest.parts(options.ticks)))
    page.put("How to read this", NOTES)
    page.put("Collections of garbage", f"{collections(options.rounds)}\n\n{COLLECTIONS}")
    page.put("Turns of threads", f"{turns(4 * options.rounds)}\n\n{TURNS}")
    print(page)
    return 0


def turns(rounds: int) -> str:
    """Time answers beside busy threads, with Python's usual turns and with short ones; returns a table."""
    found: dict[tuple[int, str], list[float]] = {}
    with photonlite.load(device="cpu") as model:
        intervals = {"5 ms": 5e-3, "as with an engine": sys.getswitchinterval()}
        for threads in (0, 1, 3):
            with busy_threads(threads):
                for _ in range(rounds):
                    for name, seconds in intervals.items():
                        sys.setswitchinterval(seconds)
                        start = time.perf_counter()
                        model.query(question="How many?", settings={"max_tokens": 40})
                        found.setdefault((threads, name), []).append(1e3 * (time.perf_counter() - start))
    rows = []
    for (threads, name), times in found.items():
        ratio = statistics.median(times) / statistics.median(found[threads, "5 ms"])
        rows.append([str(threads), name, f"{statistics.median(times):.1f}", f"{ratio:.2f}", f"{max(times):.1f}"])
    return table(["busy threads", "turns", "an answer, median (ms)", "over 5 ms", "longest"], rows)


@contextlib.contextmanager
def busy_threads(count: int) -> Iterator[None]:
    """Run threads for the time of a block, each of which runs Python for a third of its time, 10 ms at once."""
    stopped = threading.Event()

    def work() -> None:
        while not stopped.wait(0.02):
            until = time.perf_counter() + 0.01
            while time.perf_counter() < until:
                sum(range(50))

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def collections(rounds: int) -> str:
    """Time full collections beside a loaded model; returns a table."""
    plain, served = [], []
    with photonlite.load(device="cpu") as model:
        model.query(question="How many?", settings={"max_tokens": 1})
        for _ in range(rounds):
            plain.append(full_collection())
            with short_collections():
                model.query(question="How many?", settings={"max_tokens": 1})  # makes what is collected then
                served.append(full_collection())
    rows = [
        [way, f"{sample.median:.2f} ({sample.low:.2f} to {sample.high:.2f})"]
        for way, sample in (("as it is", Sample.of(plain)), ("in a server", Sample.of(served)))
    ]
    return table(["", "full collection (ms)"], rows)


def full_collection() -> float:
    """Return the milliseconds that a full collection takes."""
    begun = time.perf_counter()
    gc.collect()
    return 1e3 * (time.perf_counter() - begun)


def measure(waiting: int, running: int, rounds: int, ticks: int) -> list[str]:
    """Measure one size, for each kind of answer beside its baseline; returns a row of the table."""
    cells = [f"{waiting:,}", f"{running:,}"]
    for kind in ANSWERS:
        subject = Subject(kind, waiting, running)
        subject.ticks(ticks)
        pairs = [(subject.ticks(ticks), subject.baseline(ticks)) for _ in range(rounds)]
        for seconds in zip(*pairs, strict=True):
            sample = Sample.of(1e6 * one for one in seconds)
            cells.append(f"{sample.median:.2f} ({sample.low:.2f} to {sample.high:.2f})")
    return cells


if __name__ == "__main__":
    sys.exit(main())
