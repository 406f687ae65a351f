"""Answer a question in a form that code can use: an object of a type, a text of a pattern.

```
question, form ──> spec ── compiled elsewhere ──> automaton ── bind ──> Request
tokens ──> JSON text, places spelled out ──> object
```
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Protocol

from photonlite.errors import UnsupportedSkillError
from photonlite.grammar.automata.alphabet import COORDINATE, SIZE
from photonlite.grammar.automata.tables import Automaton
from photonlite.grammar.decoding.base import BudgetedGrammar
from photonlite.grammar.decoding.text import ReasoningGrammar
from photonlite.grammar.decoding.typed import TypedGrammar, UniqueNamesGrammar
from photonlite.grammar.spec import GrammarSpec
from photonlite.request import Completion, Request, Token
from photonlite.results import Answer
from photonlite.skills.base import AsyncTextPieces, OnEnd, Prompts, TextPieces
from photonlite.skills.encode import EmptyGrammar
from photonlite.skills.query import CheckedQuestion, with_reasoning
from photonlite.skills.typed.forms import TextForm
from photonlite.skills.typed.reading import TypedReader


class DeferredRequest(Protocol):
    """A question whose grammar takes time to make: its request comes later than the question."""

    @property
    def draft(self) -> Request:
        """The request without its grammar."""
        ...

    @property
    def spec(self) -> GrammarSpec | None:
        """What has to be compiled for it; None for nothing."""
        ...

    def bind(self, automaton: Automaton | None) -> Request:
        """Make the request, given what its spec was compiled to; it may take milliseconds."""
        ...


class TypedQuestion:
    """A question whose answer is written in a spec.

    Args:
        prompts: The checkpoint's.
        question: What is asked.
        form: What the answer has to be.

    Attributes:
        draft: The request without its grammar.
        spec: What has to be compiled for it.
    """

    def __init__(self, prompts: Prompts, question: CheckedQuestion, form: TextForm) -> None:
        self.draft = draft_of(question)
        self.spec = form.spec
        self._prompts = prompts
        self._question = question
        self._form = form

    def bind(self, automaton: Automaton | None) -> Request:
        """Make the request.

        Raises:
            UnsupportedSkillError: The answer holds boxes or points, and the checkpoint was not trained for them.
            GrammarError: No answer is as short as the context and `max_tokens` ask for.
        """
        if automaton is None:
            raise AssertionError("a typed question needs its automaton")
        _require_heads(self._prompts.skills, automaton)
        question, limit = self._question, self._question.settings.max_tokens
        if not question.reasoning:
            budget = min(question.room, limit)
            return _bound(question, _grammar(automaton, budget), budget)
        budget = min(limit, max(automaton.shortest, (question.room - 1) // 2))
        return reasoned(self._prompts, question, _grammar(automaton, budget), budget)

    def finish(self, completion: Completion) -> Answer:
        """Read the answer.

        Raises:
            SchemaError: It keeps to the type's JSON schema, but not to its validators.
        """
        reasoning, reader = with_reasoning(self._prompts, TypedReader(self._prompts), self._question.reasoning)
        text = "".join(TextPieces(reader, completion.tokens))
        return Answer(
            self._form.read(text),
            reasoning,
            text=None if self._form.spelled else text,
            metrics=completion.metrics,
            finish_reason=completion.finish_reason,
        )

    def stream(self, tokens: Iterator[Token], on_end: OnEnd) -> Answer:
        """Read the answer's text piece by piece, as its tokens come; its `value` is what the text means."""
        reasoning, reader = with_reasoning(self._prompts, TypedReader(self._prompts), self._question.reasoning)
        return Answer(TextPieces(reader, tokens), reasoning, read=self._form.read, on_end=on_end)

    def astream(self, tokens: AsyncIterator[Token], on_end: OnEnd) -> Answer:
        """The same for tokens that are awaited."""
        reasoning, reader = with_reasoning(self._prompts, TypedReader(self._prompts), self._question.reasoning)
        return Answer(AsyncTextPieces(reader, tokens), reasoning, read=self._form.read, on_end=on_end)


def draft_of(question: CheckedQuestion) -> Request:
    """Make a request that has no grammar yet."""
    return question.request(EmptyGrammar(), 0)


def reasoned(prompts: Prompts, question: CheckedQuestion, answer: BudgetedGrammar, budget: int) -> Request:
    """Make the request for reasoning, which leaves room for an answer of so many tokens behind it."""
    thinking = max(1, min(question.settings.max_tokens, question.room - 1 - budget))
    whole = thinking + 1 + budget
    return question.request(ReasoningGrammar(prompts.vocabulary, whole, thinking, answer), whole)


def _grammar(automaton: Automaton, budget: int) -> TypedGrammar:
    return (UniqueNamesGrammar if automaton.free_names else TypedGrammar)(automaton, budget)


def _bound(question: CheckedQuestion, grammar: BudgetedGrammar, budget: int) -> Request:
    if grammar.finished:  # before it began, as an answer that must be empty has: nothing is asked for
        return replace(question, prompt=()).request(grammar, 0)
    return question.request(grammar, budget)


def _require_heads(skills: tuple[str, ...], automaton: Automaton) -> None:
    boxes, points = (bool((automaton.delta[:, automaton.column[letter]] >= 0).any()) for letter in (SIZE, COORDINATE))
    missing = "boxes" if boxes and "detect" not in skills else "points" if points and "point" not in skills else None
    if missing is not None and not (missing == "points" and "detect" in skills):
        raise UnsupportedSkillError(
            f"the answer is to hold {missing}, for which this checkpoint was not trained; it has "
            f"{', '.join(skills) or 'no skills at all'}: leave them out"
        )
