"""Answers in the language of an automaton, complete before their budget ends."""

from photonlite.errors import GrammarError
from photonlite.grammar.automaton import Automaton
from photonlite.grammar.base import BudgetedGrammar
from photonlite.request import Allowed, Token


class TypedGrammar(BudgetedGrammar):
    """An answer that an automaton accepts. It always ends with "stop": where nothing may follow, without an end id.

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
        if self._guide.complete[self._state]:
            self._finish_reason = "stop"  # only the empty text is an answer

    @property
    def allowed(self) -> Allowed:
        """What may stand at the next position."""
        return self._guide.allowed(self._state, self._left)

    def _advance(self, token: Token) -> str | None:
        if token.id == self._end:
            return "stop"
        self._state = self._guide.after(self._state, token.id)
        return "stop" if self._guide.complete[self._state] else None
