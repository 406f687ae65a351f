"""Decoding with a grammar against decoding without: the same engine, prompts and lengths, only the masks differ.

The grammars never come to an end by themselves, and the end id is never chosen: budgets end all sequences at one
position, the constrained ones with a few tokens that a grammar forces before its budget is over.
"""

import functools
import math
import statistics
from dataclasses import dataclass, field, replace
from itertools import pairwise

from bench.bubble.figures import middle, steady, typical
from bench.bubble.report import table
from bench.bubble.rounds import Rig
from bench.bubble.subjects import Subject, engine_config, prompt_lengths, requests
from bench.gpu.command import Bench
from bench.grammar.samples import Vocabulary
from photonlite.grammar.automata.alphabet import BOX
from photonlite.grammar.automata.builder import build_automaton
from photonlite.grammar.automata.dfa import compile_dfa
from photonlite.grammar.automata.trie import TokenTrie
from photonlite.grammar.decoding.automaton import Automaton, TokenBytes
from photonlite.grammar.decoding.grammars import TextGrammar
from photonlite.grammar.decoding.typed import TypedGrammar
from photonlite.request import Grammar, Request

# Patterns that can always go on.
PATTERNS = {
    "free text": r"[ -~]*",
    "objects": r'(?:\{"name":"[a-z ]{1,24}","count":(?:0|[1-9][0-9]{0,3}),"where":"(?:left|right|above|below)"\},)*',
    "objects with boxes": r'(?:\{"name":"[a-z ]{1,12}","box":' + BOX + r"\},)*",
}
PLAIN = "without a grammar"


@dataclass
class Run:
    """What one way of decoding comes to.

    Attributes:
        periods: Seconds of a step, one value for each round.
        tick_s: Seconds of the host in a step, of one more round that was traced.
    """

    periods: list[float] = field(default_factory=list)
    tick_s: float = math.nan


class Speed:
    """Measures one model with several numbers of streams.

    Args:
        bench: The run.
        subject: The model; it must never choose the end id.
        vocabulary: Its tokenizer.
        streams: Sequences at a time.
    """

    def __init__(self, bench: Bench, subject: Subject, vocabulary: Vocabulary, streams: tuple[int, ...]) -> None:
        self._bench = bench
        self._subject = subject
        self._vocabulary = vocabulary
        self._streams = streams
        self._rows: list[list[str]] = []

    def run(self) -> None:
        """Measure all, and write the table as it grows."""
        rig = Rig(self._subject, engine_config(self._subject, self._streams, depth=2), reason="length")
        try:
            for count in self._streams:
                found = self._measure(rig, count)
                for what, one in found.items():
                    self._row(what, count, one, found[PLAIN])
        finally:
            rig.close()

    @functools.cached_property
    def _automata(self) -> dict[str, Automaton | None]:
        trie, pieces = TokenTrie(self._vocabulary.pieces), TokenBytes(self._vocabulary.pieces)
        built = {
            name: Automaton(build_automaton(compile_dfa(pattern, native=True), trie, self._vocabulary.ids), pieces)
            for name, pattern in PATTERNS.items()
        }
        return {PLAIN: None, **built}

    def _measure(self, rig: Rig, streams: int) -> dict[str, Run]:
        """Run all ways in turns, so that a machine that others use as well slows all of them down."""
        found = {what: Run() for what in self._automata}
        rounds = self._bench.options.rounds
        for seed in range(-1, rounds + 1):
            for what, one in found.items():
                traced = seed == rounds
                run = rig.run(self._requests(streams, max(seed, 0), self._automata[what]), traced=traced)
                if traced:
                    one.tick_s = middle(steady(run.steady_spans).tick_s)
                elif seed >= 0:  # the first one is to warm up
                    one.periods.append(typical([end - start for start, end in pairwise(run.commits)]))
        return found

    def _requests(self, streams: int, seed: int, automaton: Automaton | None) -> list[Request]:
        made = requests(self._subject, "text", streams, seed, bounded=True)
        return [replace(one, grammar=self._grammar(automaton, one.budget)) for one in made]

    def _grammar(self, automaton: Automaton | None, budget: int) -> Grammar:
        if automaton is None:
            return TextGrammar(self._subject.vocabulary, budget)
        return TypedGrammar(automaton, budget)

    def _row(self, what: str, streams: int, found: Run, plain: Run) -> None:
        period = statistics.median(found.periods)
        ratio = statistics.median(one / other for one, other in zip(found.periods, plain.periods, strict=True))
        self._rows.append(
            [
                what,
                str(streams),
                f"{1e3 * period:.3f}",
                f"{1e3 * min(found.periods):.3f} to {1e3 * max(found.periods):.3f}",
                f"{streams / period:,.0f}",
                f"{ratio:.3f}",
                f"{1e6 * found.tick_s:.0f}",
            ]
        )
        head = ["what", "streams", "period (ms)", "least to most", "tokens/s", "ratio", "host tick (us)"]
        lengths = prompt_lengths(self._subject, max(self._streams), 0)
        context = (
            f"Prompts of {min(lengths)} to {max(lengths)} tokens; sequences end at {self._subject.stop} at the latest."
        )
        self._bench.section(f"Decoding: {self._subject.name}", context + "\n\n" + table(head, self._rows))
