"""Unpredictable grammars: what is allowed next depends on a hash of all earlier tokens.

Each is built from plain numbers, so that the oracle gets one of its own.
"""

import copy
import dataclasses
from collections.abc import Callable
from random import Random

import numpy as np
import numpy.typing as npt

from photonlite.grammar.decoding.grammars import DetectGrammar, PointGrammar, ReasoningGrammar, TextGrammar
from photonlite.request import Allowed, Grammar, Token
from tests.simulation.model import COORDINATE, END, SIZE, VOCAB_SIZE, VOCABULARY, VOCABULARY_ANY, WORDS


def _bits(*ids: int) -> npt.NDArray[np.int32]:
    """Encode ids as a mask in plain Python, not by the code under test."""
    numbers = [sum(1 << one % 32 for one in ids if one // 32 == word) for word in range(-(-VOCAB_SIZE // 32))]
    return np.array(numbers, np.uint32).view(np.int32)


def _menu() -> tuple[tuple[Allowed, ...], tuple[Allowed, ...]]:
    random = Random(20)
    texts = [Allowed(suppressed=tuple(random.sample(WORDS, random.randrange(4, 30)))) for _ in range(10)]
    listed = [Allowed(tuple(random.sample(WORDS, count))) for count in (1, 1, 1, 2, 2, 3, 4, 6, 9, 14, 25)]
    spatial = [
        Allowed((COORDINATE,), coordinate=COORDINATE),
        Allowed((SIZE,), size=SIZE),
        Allowed((COORDINATE, END), coordinate=COORDINATE, end=END),
        Allowed((END, COORDINATE), coordinate=COORDINATE, end=END),
        Allowed(None, coordinate=COORDINATE, end=END),
        Allowed((COORDINATE, SIZE, 20, 21), coordinate=COORDINATE, size=SIZE),
        Allowed((SIZE, 8), size=SIZE),
        Allowed(None, coordinate=COORDINATE, suppressed=(END, SIZE)),
        Allowed((COORDINATE, 30, 31), coordinate=COORDINATE),
        Allowed((COORDINATE, SIZE)),  # plain words here
        Allowed(mask=_bits(COORDINATE, SIZE, *random.sample(WORDS, 9)), coordinate=COORDINATE, size=SIZE),
        Allowed(mask=_bits(COORDINATE, 30, 31), coordinate=COORDINATE),
        Allowed(mask=_bits(SIZE, 39), size=SIZE),
    ]
    masked = [Allowed(mask=_bits(*random.sample(WORDS, count))) for count in (1, 3, 30)]
    scored = [
        Allowed((21, 22, 23), scored=(23, 21)),
        Allowed((24,), scored=(24,)),
        Allowed((COORDINATE, END, 25), coordinate=COORDINATE, scored=(END, 25, COORDINATE)),
        Allowed(mask=_bits(*WORDS), scored=WORDS),
    ]
    return tuple(texts), (*texts, *listed, *spatial, *spatial, *masked, *scored)


_TEXTS, _MENU = _menu()
_FORCED = tuple(Allowed((word,)) for word in (*WORDS[:6], END))


def _forced_word(allowed: Allowed) -> int | None:
    """Return the only id that may stand there, if it is a word without scores."""
    only = allowed.ids[0] if allowed.ids is not None and len(allowed.ids) == 1 else None
    return None if allowed.scored or only in (COORDINATE, SIZE) else only


class GrammarFault(Exception):  # noqa: N818 - what a broken plug-in raises
    """Raised by a broken grammar."""


class HistoryGrammar:
    """What may follow depends on every id and value so far.

    Args:
        seed: Two seeds are two languages.
        budget: Tokens at most.
        ends: One token in so many ends it.
    """

    def __init__(self, seed: int, budget: int, ends: int) -> None:
        self.finish_reason: str | None = None
        self._state = hash((seed, 1))
        self._left = budget
        self._ends = ends
        self._place = 0
        self._begin(seed)

    def _begin(self, seed: int) -> None:
        self.allowed: Allowed = _MENU[self._state % len(_MENU)]
        self.ahead: Allowed | None = None

    @property
    def expected_run(self) -> tuple[int, ...]:
        return WORDS[: {0: 3, 1: 9}.get(self._state % 16, 0)]  # which hardly ever follow

    @property
    def run(self) -> tuple[int, ...]:
        probe, found = copy.copy(self), list[int]()
        while probe.finish_reason is None and (only := _forced_word(probe.allowed)) is not None:
            found.append(only)
            probe.accept(Token(only))
        return tuple(found)

    def accept(self, token: Token) -> None:
        if self.finish_reason is not None:
            raise ValueError(f"token {token.id} came after the end")
        if not self.allowed.permits(token.id):
            raise ValueError(f"token {token.id} is not allowed: {self.allowed}")
        self._state = state = hash((self._state, token.id, token.values))
        self._left -= 1
        self._place += 1
        if token.id == END or state % self._ends == 0:
            self.finish_reason = "stop"
        elif self._left == 0:
            self.finish_reason = "length"
        else:
            self._turn()

    def _turn(self) -> None:
        self.allowed = _MENU[self._state % len(_MENU)]


class PlaceGrammar(HistoryGrammar):
    """What may follow depends on the place alone, so it is known one position ahead; at some places on everything."""

    _menu = _MENU
    _surprises = 5

    def _begin(self, seed: int) -> None:
        self._seed = seed
        self.allowed = self._at(0) or self._menu[self._state % len(self._menu)]
        self.ahead = self._at(1)

    def _turn(self) -> None:
        self.allowed = self.ahead or self._menu[self._state % len(self._menu)]
        self.ahead = self._at(self._place + 1)

    def _at(self, place: int) -> Allowed | None:
        number = hash((self._seed, place))
        return self._menu[number % len(self._menu)] if (number >> 8) % self._surprises else None


class WordsGrammar(PlaceGrammar):
    """Words, some of them suppressed at each place: a grammar without state."""

    _menu = _TEXTS
    _surprises = 10**18


class RunGrammar(HistoryGrammar):
    """Three of four places have no choice."""

    def _turn(self) -> None:
        menu = _FORCED if (self._state >> 4) % 4 else _MENU
        self.allowed = menu[self._state % len(menu)]


class SpellingGrammar(HistoryGrammar):
    """Texts without choice, of which most were announced before the token in front of them."""

    def _begin(self, seed: int) -> None:
        super()._begin(seed)
        self._text: tuple[int, ...] = ()  # what is left of one, behind the next token
        self._announced: tuple[int, ...] = ()

    @property
    def expected_run(self) -> tuple[int, ...]:
        return self._text or self._announced

    def _turn(self) -> None:
        state = self._state
        text = self._text or (self._announced if (state >> 4) % 4 else ())
        self._text = text[1:]
        says = not self._text and (state >> 8) % 2
        self._announced = tuple(WORDS[(state >> place) % 6] for place in range(1 + (state >> 12) % 7)) if says else ()
        self.allowed = Allowed(text[:1]) if text else _MENU[state % len(_MENU)]


class FreshGrammar(HistoryGrammar):
    """Returns a new object each time, as plug-ins may."""

    def _turn(self) -> None:
        allowed = _MENU[self._state % len(_MENU)]
        self.allowed = dataclasses.replace(allowed)


class FaultyGrammar:
    """Breaks at one token; `ahead` may break without harm, since what it says can be asked for later.

    Args:
        inner: What it is till then.
        fault: What breaks: "accept", "allowed", "finish_reason", "ahead" or "run" raises, "vocabulary" lists an id that
            is none, or "rubbish" is what it says of a run from then on.
        at: Before which token.
    """

    _RUBBISH = ((VOCAB_SIZE,), (1, -1), [1, 2], ("one",), (1, 2.5), None, 7)

    def __init__(self, inner: Grammar, fault: str, at: int) -> None:
        self._inner = inner
        self._fault = fault
        self._left = at

    @property
    def allowed(self) -> Allowed:
        if self._left == 0:
            self._break("allowed")
            if self._fault == "vocabulary":
                return Allowed((1, VOCAB_SIZE))
        return self._inner.allowed

    @property
    def ahead(self) -> Allowed | None:
        if self._left == 0:
            self._break("ahead")
        # What is said ahead must hold: before a break in `allowed` nothing is.
        return None if self._left == 1 and self._fault in ("allowed", "vocabulary") else self._inner.ahead

    @property
    def run(self) -> tuple[int, ...]:
        if self.misleads:
            self._break("run")
            return self._RUBBISH[-self._left % len(self._RUBBISH)]  # type: ignore[return-value]
        # What is said of a run must hold: up to a break.
        known = self._left if self._fault in ("allowed", "vocabulary") else None
        return self._inner.run[:known] if self._left >= 0 else self._inner.run

    @property
    def expected_run(self) -> tuple[int, ...]:
        return self._inner.expected_run

    @property
    def misleads(self) -> bool:
        """Whether reading the run, which the oracle has no use for, may end the request."""
        return self._fault in ("run", "rubbish") and self._left <= 0

    @property
    def finish_reason(self) -> str | None:
        if self._left < 0:
            self._break("finish_reason")
        return self._inner.finish_reason

    def accept(self, token: Token) -> None:
        if self._left == 0:
            self._break("accept")
        self._left -= 1
        self._inner.accept(token)

    def _break(self, place: str) -> None:
        if self._fault == place:
            raise GrammarFault(place)


MakeGrammar = Callable[[], Grammar]


def draw_grammar(random: Random, budget: int) -> MakeGrammar:
    """Draw a grammar of at most `budget` tokens; returns a factory for it."""
    seed, ends = random.getrandbits(40), random.choice((4, 10, 30, 1000))
    objects = random.randrange(1, 6)
    vocabulary = VOCABULARY if random.random() < 0.5 else VOCABULARY_ANY
    kinds: list[MakeGrammar] = [
        lambda: HistoryGrammar(seed, budget, ends),
        lambda: PlaceGrammar(seed, budget, ends),
        lambda: WordsGrammar(seed, budget, ends),
        lambda: FreshGrammar(seed, budget, ends),
        lambda: RunGrammar(seed, budget, ends),
        lambda: SpellingGrammar(seed, budget, max(30, ends)),
        lambda: DetectGrammar(vocabulary, budget, objects),
        lambda: PointGrammar(vocabulary, budget, objects),
        lambda: TextGrammar(vocabulary, budget),
        lambda: ReasoningGrammar(vocabulary, budget, max(1, budget // 2)),
    ]
    return random.choices(kinds, (8, 3, 4, 0.5, 6, 9, 2, 1, 2, 1))[0]


def with_fault(random: Random, make: MakeGrammar, budget: int) -> MakeGrammar:
    """Draw where a grammar breaks."""
    fault = random.choice(("accept", "allowed", "finish_reason", "ahead", "vocabulary", "run", "rubbish"))
    at = random.randrange(min(budget, 4))
    return lambda: FaultyGrammar(make(), fault, at)
