"""Answers in the language of an automaton, complete before their budget ends."""

from photonlite.errors import GrammarError
from photonlite.grammar.automata.tables import Automaton
from photonlite.grammar.decoding.base import BudgetedGrammar
from photonlite.request import Allowed, Token


class TypedGrammar(BudgetedGrammar):
    """An answer that an automaton accepts, complete before its budget ends.

    Where nothing may follow it ends without an end id. Its finish reason is "stop" if all tokens of the automaton were
    allowed at every position, so that a larger budget would have given the same answer, and "length" if the budget
    excluded one.

    Args:
        automaton: What may be answered.
        budget: Tokens at most.

    Raises:
        GrammarError: The shortest answer takes more tokens than the budget.
    """

    def __init__(self, automaton: Automaton, budget: int) -> None:
        super().__init__(budget)
        if budget < automaton.shortest:
            raise GrammarError(
                f"the shortest answer takes {automaton.shortest} tokens, and {budget} are left for it: "
                f"raise max_tokens, or ask for less"
            )
        self._guide = automaton.guide
        self._end = automaton.ids.end
        self._state = automaton.start
        self._limited = False
        if self._guide.complete[self._state]:
            self._finish_reason = "stop"  # only the empty text is an answer

    @property
    def allowed(self) -> Allowed:
        """What may stand at the next position."""
        return self._guide.allowed(self._state, self._left)

    def _held_back(self, left: int) -> int:
        """Return how many of the tokens that are left may be planned with."""
        return left

    def _advance(self, token: Token) -> str | None:
        self._limited = self._limited or self._guide.limits(self._state, self._held_back(self._left + 1))
        if token.id != self._end:
            self._state = self._guide.after(self._state, token.id)
            if not self._guide.complete[self._state]:
                return None
        return "length" if self._limited else "stop"
