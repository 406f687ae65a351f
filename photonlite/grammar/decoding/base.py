"""What all grammars share: the special ids of a checkpoint, and a budget of tokens."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from photonlite.request import Allowed, Token

PATH_GRID = 960
"""Coordinates of a path are integers, in units of 1/960 of its box."""


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
    coordinate: int
    size: int  # carries a width and a height
    ground_start: int  # opens the part of reasoning that the points after it belong to
    ground_end: int
    any_id_continues: bool  # a list goes on with any id but `end`; else only `coordinate` and `end` are compared
    suppressed_in_answer: tuple[int, ...] = ()  # never in an answer or a caption, its first token aside
    suppressed_in_reasoning: tuple[int, ...] = ()


class BudgetedGrammar(ABC):
    """A grammar that accepts at most `budget` tokens; see `request.Grammar`.

    It ends with "length" where the budget ended it, or excluded a token that the grammar alone would have allowed.
    """

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
        self._left -= 1
        self._finish_reason = self._advance(token)
        if self._finish_reason is None and self._left == 0:
            self._finish_reason = "length"

    @abstractmethod
    def _advance(self, token: Token) -> str | None:
        """Take a token; returns the finish reason, or None."""
