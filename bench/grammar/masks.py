"""Compiling and masks: each spec, each library, in turns, and the same in photonlite's worker process."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.bubble.report import table
from bench.gpu.command import say
from bench.grammar.libraries import Library, libraries
from bench.grammar.samples import Sample, Vocabulary, samples
from photonlite.grammar.compiler.client import GrammarCompiler

_PATIENCE_S = 300.0


@dataclass
class Walk:
    """What one walk over a text took, in seconds.

    Attributes:
        fills: Of each mask.
        accepts: Of each token.
    """

    fills: list[float] = field(default_factory=list)
    accepts: list[float] = field(default_factory=list)


@dataclass
class Figures:
    """What one library takes for one spec, in seconds; NaN where it was not measured.

    Attributes:
        compile_s: Median of compiling.
        fill_s: Median of writing a mask, once the states of the text have been met before.
        fill_first_s: The longest of writing a mask while they are met the first time.
        accept_s: Median of taking a token.
        refusal: Why the library does not compile it, or does not take the text.
    """

    compile_s: float = math.nan
    fill_s: float = math.nan
    fill_first_s: float = math.nan
    accept_s: float = math.nan
    refusal: str = ""


def measure(vocabulary: Vocabulary, rounds: int) -> str:
    """Measure every library on every sample for one vocabulary, and write the tables."""
    known = list(libraries(vocabulary))
    found: dict[str, list[Figures]] = {}
    worker = _Worker(vocabulary)
    try:
        in_worker = {sample.name: worker.measure(sample, rounds) for sample in samples()}
    finally:
        worker.close()
    for sample in samples():
        found[sample.name] = [_attempt(library, vocabulary, sample, rounds) for library in known]
        say(f"{vocabulary.name}, {sample.name}: " + " | ".join(_line(one) for one in found[sample.name]))
    names = [library.name for library in known]
    parts = [_times("compile", names, found, lambda one: one.compile_s, 1e3, "ms", in_worker)]
    parts.append(_times("mask of one row", names, found, lambda one: one.fill_s, 1e6, "us"))
    parts.append(_times("mask, states met first: longest", names, found, lambda one: one.fill_first_s, 1e6, "us"))
    parts.append(_times("take a token", names, found, lambda one: one.accept_s, 1e6, "us"))
    refusals = [
        f"- {sample}, {name}: {one.refusal:.200}"
        for sample, ones in found.items()
        for name, one in zip(names, ones, strict=True)
        if one.refusal
    ]
    return "\n\n".join([*parts, *(["Not measured:\n\n" + "\n".join(refusals)] if refusals else [])])


class _Worker:
    """photonlite's compiler as the engine uses it: a process, and a socket."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._compiler = self._make()

    def measure(self, sample: Sample, rounds: int) -> float:
        """Return the median seconds from asking to the automaton; nothing is remembered."""
        return statistics.median(_seconds(lambda: self._ask(sample)) for _ in range(rounds))

    def close(self) -> None:
        self._compiler.close()

    def _make(self) -> GrammarCompiler:
        pieces, ids = self._vocabulary.pieces, self._vocabulary.ids
        compiler = GrammarCompiler(lambda: pieces, ids, limit_s=_PATIENCE_S, cache_bytes=0)
        compiler.compile(samples()[0].spec).result(_PATIENCE_S)
        return compiler

    def _ask(self, sample: Sample) -> None:
        self._compiler.compile(sample.spec).result(_PATIENCE_S)


def _attempt(library: Library, vocabulary: Vocabulary, sample: Sample, rounds: int) -> Figures:
    if not sample.text and library.name != "photonlite":
        return Figures(refusal="it knows no numbers of the model")
    try:
        return _measure(library, vocabulary, sample, rounds)
    except Exception as error:  # a library that does not do this leaves a gap
        return Figures(refusal=" ".join(f"{type(error).__name__}: {error}".split()))


def _measure(library: Library, vocabulary: Vocabulary, sample: Sample, rounds: int) -> Figures:
    compile_s = statistics.median(_seconds(lambda: library.compile(sample.spec)) for _ in range(rounds))
    if not sample.text:
        return Figures(compile_s)
    compiled, ids = library.compile(sample.spec), vocabulary.encode(sample.text)
    first = _walk(library, compiled, ids)
    later = [_walk(library, compiled, ids) for _ in range(rounds)]
    fills = [seconds for walk in later for seconds in walk.fills]
    accepts = [seconds for walk in later for seconds in walk.accepts]
    return Figures(compile_s, statistics.median(fills), max(first.fills), statistics.median(accepts))


def _walk(library: Library, compiled: object, ids: Sequence[int]) -> Walk:
    answer, walk = library.begin(compiled), Walk()
    for token_id in ids:
        start = time.perf_counter()
        answer.fill()
        filled = time.perf_counter()
        answer.accept(token_id)
        walk.accepts.append(time.perf_counter() - filled)
        walk.fills.append(filled - start)
    return walk


def _seconds(work: Callable[[], object]) -> float:
    """Time a call without the garbage collector, which would search all of this process: workers do without it, too."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    finally:
        gc.enable()


def _times(
    what: str,
    names: Sequence[str],
    found: dict[str, list[Figures]],
    value: Callable[[Figures], float],
    scale: float,
    unit: str,
    in_worker: dict[str, float] | None = None,
) -> str:
    """Write one quantity: the first library's times, and how many times as long the others take."""
    own, *others = names
    head = [what, f"{own} ({unit})"]
    head += [f"in its worker ({unit})"] if in_worker else []
    head += [f"{name} ({unit})" for name in others] + [f"{name.split()[0]}: ratio" for name in others]
    rows = []
    for sample, ones in found.items():
        first, *rest = map(value, ones)
        cells = [first, *([in_worker[sample]] if in_worker else []), *rest]
        row = [sample, *(_number(scale * cell) for cell in cells)]
        rows.append([*row, *(_number(one / first) for one in rest)])
    return table(head, rows)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _line(one: Figures) -> str:
    return f"{_number(1e3 * one.compile_s)} ms, {_number(1e6 * one.fill_s)} + {_number(1e6 * one.accept_s)} us"
