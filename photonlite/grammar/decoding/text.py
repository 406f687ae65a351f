"""The grammars of text, and of reasoning before an answer.

```
text         any ... end         reasoning   any ... answer ─ any ... end
```
"""

from photonlite.grammar.decoding.base import BudgetedGrammar, Vocabulary
from photonlite.request import Allowed, Token


class TextGrammar(BudgetedGrammar):
    """Text up to the end id."""

    def __init__(self, vocabulary: Vocabulary, budget: int) -> None:
        super().__init__(budget)
        self._end = vocabulary.end
        self._later = Allowed(suppressed=vocabulary.suppressed_in_answer)
        # Like the public reference, which samples the first token with the prompt, suppress nothing there.
        self._allowed = Allowed()

    @property
    def allowed(self) -> Allowed:
        return self._allowed

    @property
    def ahead(self) -> Allowed:
        return self._later

    def _advance(self, token: Token) -> str | None:
        self._allowed = self._later
        return "stop" if token.id == self._end else None


class ReasoningGrammar(BudgetedGrammar):
    """Reasoning with coordinates up to the answer id, then an answer: text, unless another grammar is given.

    Reasoning of `max_tokens` is closed by force, and the finish reason is "length"; a text has as many tokens.
    """

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
