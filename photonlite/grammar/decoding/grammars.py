"""Grammars of texts, reasoning, points, boxes and outlines, and what all grammars share: a budget, and masks.

```
text     any ... end              reasoning   any ... answer ─ any ... end
point    x ─ y ─┐                 detect      x ─ y ─ size ─┐          segment   x ─ y ─ size ─ path ... end
         ^──────┴─ end                        ^─────────────┴─ end               └─ end
```

A list of objects may end only where an `x` may stand; it may be empty. Where one id alone is allowed, it is forced and
not sampled. Skills drop an object that the budget cuts short.
"""

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from photonlite.grammar.automata.tables import words
from photonlite.request import Allowed, Token

PATH_GRID = 960  # coordinates of a path are integers, in units of 1/960 of its box

ARITY = {"M": 2, "L": 2, "H": 1, "V": 1, "C": 6, "S": 4, "Q": 4, "T": 2, "Z": 0}
"""Integers that each path command takes. Arcs (A) are left out: flags and angles do not fit a grid to 960."""


NO_ID = -1
"""In place of a special id that a checkpoint does not have."""


def known_id(index: int) -> int | None:
    return None if index == NO_ID else index


LONGEST_RUN = 128
"""Ids that are read ahead at a time, on the engine's thread; what else must follow comes with the next run."""

CACHED_ROWS = 512  # of masks; grammars reuse what they allow: one or two rows for each running request


@dataclass(frozen=True, eq=False)
class PathIds:
    """The ids that spell an outline; several ids may mean the same. Compared by identity: the tables are large."""

    commands: Mapping[int, str]  # id to command letter, such as "M" or "l"
    integers: Mapping[int, int]  # id to number, 0 to 960
    minus: frozenset[int]  # ids of the sign that makes the next integer negative


@dataclass(frozen=True)
class Vocabulary:
    """The special ids of a checkpoint, and its rules for them."""

    end: int  # ends an answer, a caption, or a list of objects
    answer: int  # ends reasoning and opens the answer
    coordinate: int  # in points and boxes of lists, reasoning and typed answers
    size: int  # carries a width and a height
    ground_start: int = NO_ID  # opens the part of reasoning that the points after it belong to
    ground_end: int = NO_ID
    # A list goes on with any id but `end`; else only `coordinate` and `end` are compared.
    any_id_continues: bool = False
    suppressed_in_answer: tuple[int, ...] = ()  # never in an answer or a caption, its first token aside
    suppressed_in_reasoning: tuple[int, ...] = ()
    never_in_text: tuple[int, ...] = ()  # in no answer of plain text and no caption, from the first token on
    other_ends: tuple[int, ...] = ()  # end a text as well
    # Of 0 to 9, where places are whole numbers in text: `coordinate` and `size` stand for them in grammars, and never
    # come.
    digits: tuple[int, ...] = ()


class BudgetedGrammar(ABC):
    """A `request.Grammar` of at most `budget` tokens; "length" where the budget ended it, or excluded a token."""

    def __init__(self, budget: int) -> None:
        if budget < 1:
            raise ValueError(f"a grammar needs a budget of at least 1 token, not {budget}")
        self._left = budget
        self._finish_reason: str | None = None

    @property
    @abstractmethod
    def allowed(self) -> Allowed:
        """What may stand at the next position; meaningless once finished."""

    @property
    def ahead(self) -> Allowed | None:
        """What may stand at the position after next, where the next token does not matter; else None."""
        return None

    @property
    def run(self) -> tuple[int, ...]:
        """The ids that must follow, see `request.Grammar`."""
        return ()

    @property
    def expected_run(self) -> tuple[int, ...]:
        """The ids that probably must follow the next token, see `request.Grammar`."""
        return ()

    @property
    def finish_reason(self) -> str | None:
        """Why nothing may follow: "stop", "max_objects" or "length"; None while something may."""
        return self._finish_reason

    @property
    def finished(self) -> bool:
        return self._finish_reason is not None

    def accept(self, token: Token) -> None:
        """Take the next token; raises a ValueError for one that is not allowed."""
        if self.finished:
            raise ValueError(f"token {token.id} came after the end ({self._finish_reason})")
        if not self.allowed.permits(token.id):
            raise ValueError(f"token {token.id} is not allowed here: {self.allowed}")
        self._take(token)

    def _take(self, token: Token) -> None:
        self._left -= 1
        self._finish_reason = self._advance(token)
        if self._finish_reason is None and self._left == 0:
            self._finish_reason = "length"

    @abstractmethod
    def _advance(self, token: Token) -> str | None:
        """Take a token; returns the finish reason, or None."""

    def _walk(self) -> tuple[int, ...]:
        """Return the run by going it in a copy: for grammars whose state is made of values that do not change."""
        if self.allowed.certain is None:
            return ()
        found: list[int] = []
        probe = copy.copy(self)
        while len(found) < LONGEST_RUN and not probe.finished and (only := probe.allowed.certain) is not None:
            found.append(only)
            probe._take(Token(only))
        return tuple(found)


class TextGrammar(BudgetedGrammar):
    """Text up to the end id, or up to the first token for which `stops_at` returns true."""

    def __init__(self, vocabulary: Vocabulary, budget: int, stops_at: Callable[[Token], bool] | None = None) -> None:
        super().__init__(budget)
        self._stops_at = stops_at
        self._ends = (vocabulary.end, *vocabulary.other_ends)
        never = vocabulary.never_in_text
        self._later = Allowed(suppressed=(*vocabulary.suppressed_in_answer, *never))
        # The public reference samples the first token with the prompt, and does not suppress the answer id there.
        self._allowed = Allowed(suppressed=never)

    @property
    def allowed(self) -> Allowed:
        return self._allowed

    @property
    def ahead(self) -> Allowed:
        return self._later

    def _advance(self, token: Token) -> str | None:
        self._allowed = self._later
        stopped = token.id in self._ends or (self._stops_at is not None and self._stops_at(token))
        return "stop" if stopped else None


class ReasoningGrammar(BudgetedGrammar):
    """Reasoning of at most `max_tokens`, then an answer (by default text); "length" where reasoning was cut."""

    def __init__(
        self, vocabulary: Vocabulary, budget: int, max_tokens: int, answer: BudgetedGrammar | None = None
    ) -> None:
        super().__init__(budget)
        self._answer_id = vocabulary.answer
        self._reasoning_left = max_tokens
        self._answer = answer or TextGrammar(vocabulary, max_tokens)
        self._answering = False
        self._cut = False
        self._later = Allowed(suppressed=vocabulary.suppressed_in_reasoning, coordinate=vocabulary.coordinate)
        self._allowed = Allowed(coordinate=vocabulary.coordinate)

    @property
    def allowed(self) -> Allowed:
        return self._answer.allowed if self._answering else self._allowed

    @property
    def run(self) -> tuple[int, ...]:
        return self._answer.run[: self._left] if self._answering else ()

    def _advance(self, token: Token) -> str | None:
        if self._answering:
            self._answer.accept(token)
            return self._reason()
        self._reasoning_left -= 1
        self._answering = token.id == self._answer_id
        if self._answering:
            return self._reason()
        self._cut = self._reasoning_left <= 0
        self._allowed = Allowed((self._answer_id,)) if self._cut else self._later
        return None

    def _reason(self) -> str | None:
        reason = self._answer.finish_reason
        return "length" if self._cut and reason == "stop" else reason


class PointGrammar(BudgetedGrammar):
    """Points: x, y, then x of the next point or the end."""

    fields: ClassVar[tuple[str, ...]] = ("x", "y")

    def __init__(self, vocabulary: Vocabulary, budget: int, max_objects: int) -> None:
        super().__init__(budget)
        coordinate, size, end = vocabulary.coordinate, vocabulary.size, vocabulary.end
        self._end = end
        self._allowed = {
            # The coordinate comes first: in a tie the list goes on.
            "x": Allowed(None if vocabulary.any_id_continues else (coordinate, end), coordinate=coordinate, end=end),
            "y": Allowed((coordinate,), coordinate=coordinate),
            "size": Allowed((size,), size=size),
        }
        self._field = 0
        self._objects_left = max_objects

    @property
    def allowed(self) -> Allowed:
        return self._allowed[self.fields[self._field]]

    def _advance(self, token: Token) -> str | None:
        if self._field == 0 and token.id == self._end:
            return "stop"
        self._field = (self._field + 1) % len(self.fields)
        if self._field == 0:
            self._objects_left -= 1
        return "max_objects" if self._objects_left == 0 else None


class DetectGrammar(PointGrammar):
    """Boxes: centre x, centre y, size, then x of the next box or the end."""

    fields = ("x", "y", "size")


class SegmentGrammar(BudgetedGrammar):
    """One box (or the end: no object), then an SVG path: commands, each with groups of its signed integers."""

    def __init__(self, vocabulary: Vocabulary, path_ids: PathIds, budget: int) -> None:
        super().__init__(budget)
        self._box = DetectGrammar(vocabulary, budget, max_objects=1)  # of this budget
        self._ids = path_ids
        self._end = vocabulary.end
        self._begun = False
        self._arity = 0  # of the last command
        self._integers = 0  # after the last command
        self._negative = False

    @property
    def allowed(self) -> Allowed:
        if not self._box.finished:
            return self._box.allowed
        whole = self._arity == 0 or (self._integers > 0 and self._integers % self._arity == 0)
        return _path_choices(self._ids, self._end, self._begun, self._negative, self._arity > 0, whole)

    def _advance(self, token: Token) -> str | None:
        if not self._box.finished:
            self._box.accept(token)
            return "stop" if self._box.finish_reason == "stop" else None
        if token.id == self._end:
            return "stop"
        if token.id in self._ids.minus:
            self._negative = True
        elif (letter := self._ids.commands.get(token.id)) is not None:
            self._begun, self._arity, self._integers = True, ARITY[letter.upper()], 0
        else:
            self._integers, self._negative = self._integers + 1, False
        return None


# Asked for at every token of an outline, with few different arguments.
@functools.lru_cache(maxsize=64)
def _path_choices(ids: PathIds, end: int, begun: bool, negative: bool, takes_integers: bool, whole: bool) -> Allowed:
    chosen: list[int] = []
    if not begun:
        chosen += [token_id for token_id, letter in ids.commands.items() if letter in "Mm"]
    else:
        if takes_integers:
            chosen += ids.integers
            chosen += [] if negative else sorted(ids.minus)
        if whole and not negative:
            chosen += [*ids.commands, end]
    return Allowed(tuple(chosen))


class MaskCache:
    """Writes what is allowed as bits, in signed words: every device computes with int32.

    Rows are cached by the identity of their `Allowed`, which is slow to compare. The object is kept with its row, so
    that no other object gets its id.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._words = words(vocab_size)
        self._rows: dict[int, tuple[Allowed, npt.NDArray[np.int32]]] = {}

    def fill(self, allowed: Allowed, out: npt.NDArray[np.int32]) -> None:
        """Write a mask to `out`, int32 [words]; raises a ValueError for ids or masks of another vocabulary."""
        if allowed.mask is not None:
            if allowed.mask.shape != (self._words,):
                raise ValueError(f"a mask has {allowed.mask.size} words, but this vocabulary's have {self._words}")
            out[:] = allowed.mask
            return
        known = self._rows.get(id(allowed))
        if known is None:
            known = self._remember(allowed)
        out[:] = known[1]

    def _remember(self, allowed: Allowed) -> tuple[Allowed, npt.NDArray[np.int32]]:
        if len(self._rows) >= CACHED_ROWS:
            # Drop the oldest half; rows of running requests come back with their next token.
            for key in list(islice(self._rows, CACHED_ROWS // 2)):
                del self._rows[key]
        entry = self._rows[id(allowed)] = (allowed, self._row(allowed))
        return entry

    def _row(self, allowed: Allowed) -> npt.NDArray[np.int32]:
        listed = allowed.suppressed if allowed.ids is None else allowed.ids
        ids = np.array(listed, np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            raise ValueError(f"a grammar lists ids {ids.min()} to {ids.max()} of a vocabulary of {self.vocab_size}")
        bits = np.zeros(32 * self._words, np.uint8)
        bits[: self.vocab_size] = allowed.ids is None
        bits[ids] = allowed.ids is not None
        return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32, copy=False)
