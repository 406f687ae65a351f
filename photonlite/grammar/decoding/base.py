"""What all grammars share: the ids they speak of, and a budget of tokens."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from photonlite.request import Allowed, Token

PATH_GRID = 960
"""Integers of a path count in units of 1/960 of its box."""


@dataclass(frozen=True, eq=False)
class PathIds:
    """The ids that spell an outline; several ids may mean the same. Compared by identity: the tables are large.

    Attributes:
        commands: Id to command letter, such as "M" or "l".
        integers: Id to number, 0 to 960.
        minus: Ids of the sign that makes the next integer negative.
    """

    commands: Mapping[int, str]
    integers: Mapping[int, int]
    minus: frozenset[int]


@dataclass(frozen=True)
class Vocabulary:
    """The ids a grammar speaks of and the rules that go with them; a checkpoint says what they are.

    Attributes:
        end: Ends an answer, a caption, or a list of objects.
        answer: Ends reasoning and opens the answer.
        coordinate: Carries a coordinate.
        size: Carries a width and a height.
        ground_start: Opens the part of reasoning that points hold for.
        ground_end: Closes it.
        any_id_continues: A list of objects goes on with any id but `end`; or `coordinate` and `end` alone are compared.
        suppressed_in_answer: Ids that an answer or a caption never holds after its first token.
        suppressed_in_reasoning: The same for reasoning.
    """

    end: int
    answer: int
    coordinate: int
    size: int
    ground_start: int
    ground_end: int
    any_id_continues: bool
    suppressed_in_answer: tuple[int, ...] = ()
    suppressed_in_reasoning: tuple[int, ...] = ()


class BudgetedGrammar(ABC):
    """A grammar that ends at the latest when its tokens are used up.

    It ends with "length" where the budget ended it, or excluded a token that the grammar alone would have allowed.

    Args:
        budget: Tokens that may be accepted, at least 1; what the context length leaves has gone into it.
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
        """What may stand one position further, whatever stands at the next one; None where it depends on that."""
        return None

    @property
    def finish_reason(self) -> str | None:
        """Why nothing may follow: "stop", "max_objects" or "length"; None while something may."""
        return self._finish_reason

    @property
    def finished(self) -> bool:
        """Whether nothing may follow."""
        return self._finish_reason is not None

    def accept(self, token: Token) -> None:
        """Take the next token.

        Raises:
            ValueError: The token was not allowed, or nothing may follow.
        """
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
        """Move on; returns why the sequence ends with this token, or None."""
