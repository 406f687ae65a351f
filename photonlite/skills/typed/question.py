"""Answer a question in a form that code can use: an object of a type, a text of a pattern.

```
question, form ──> GrammarSpec ── compiled elsewhere ──> Automaton ── bind ──> Request
tokens ──> JSON text, places spelled out ──> object

{"box":  x y size  }      ──>   {"box": {"x_min":0.1,"y_min":0.2,"x_max":0.3,"y_max":0.4,"score":0.97} }
{"at":   x y  }           ──>   {"at": {"x":0.2,"y":0.3,"score":0.95} }
```
"""

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Unpack

from pydantic import ValidationError

from photonlite.errors import GrammarError, SchemaError, SettingsError, UnsupportedSkillError
from photonlite.grammar.automata.alphabet import COORDINATE, SIZE
from photonlite.grammar.decoding.automaton import Automaton
from photonlite.grammar.decoding.grammars import BudgetedGrammar, ReasoningGrammar
from photonlite.grammar.decoding.numbers import NumberAutomaton
from photonlite.grammar.decoding.typed import TypedGrammar, UniqueNamesGrammar
from photonlite.grammar.prompts import Prompts, Size
from photonlite.grammar.spec import GrammarSpec
from photonlite.request import Completion, Request, Token
from photonlite.results import Answer
from photonlite.results.text import TextInfo, TokenReader
from photonlite.settings import plain
from photonlite.skills import encode
from photonlite.skills.base import ANY_SIZE, box, clamp, read_text, score
from photonlite.skills.encode import FixedGrammar
from photonlite.skills.query import CheckedQuestion, with_reasoning
from photonlite.skills.typed.forms import Form, TextForm, complaint
from photonlite.skills.typed.numbers import NumberReader

MAX_RETRIES = 5
"""Largest `retries` of a question: a rule that six answers break should stand in the schema."""

_DIGITS = 6
"""Significant digits of a spelled number: a pixel of an image of a million pixels across."""


class DeferredRequest(ABC):
    """A question whose request is made when its grammar is ready; `draft` is the request without it."""

    spec: GrammarSpec | None = None  # what has to be compiled for it

    def __init__(self, prompts: Prompts, question: CheckedQuestion) -> None:
        self.draft = question.request(FixedGrammar(), 0)
        self._prompts = prompts
        self._question = question

    def encoding(self) -> Request:
        """Make the request that reads the images into the prefix cache, with what stands before them."""
        return encode.build(self._prompts, self._question.prompt)

    @abstractmethod
    def bind(self, automaton: Automaton | None, sizes: Sequence[Size] = ()) -> Request:
        """Make the request about images of these sizes from what `spec` was compiled to; it may take milliseconds."""

    def finish(self, completion: Completion) -> Answer:
        """Read the answer; raises a SchemaError where it keeps to a type's schema, but not to its validators."""
        reader, parts = self._reader()
        parts |= self._value(read_text(reader, completion.tokens))
        return Answer(**parts, metrics=completion.metrics, finish_reason=completion.finish_reason)

    def stream(self, tokens: Iterator[Token] | AsyncIterator[Token], **info: Unpack[TextInfo]) -> Answer:
        """Read the answer's text piece by piece; its `value` is what the text means."""
        reader, parts = self._reader()
        return Answer(tokens, **parts, read=self._meaning, reader=reader, **info)

    @abstractmethod
    def _reader(self) -> tuple[TokenReader, dict[str, Any]]:
        """Return the reader of the tokens, and the parts of the result that it fills."""

    @property
    def _meaning(self) -> Callable[[str], Any] | None:
        return None

    def _value(self, text: str) -> dict[str, Any]:
        return {"answer": text}

    def _after_reasoning(self, answer: BudgetedGrammar, budget: int) -> Request:
        question = self._question
        thinking = max(1, min(question.settings.max_tokens, question.room - 1 - budget))
        whole = thinking + 1 + budget
        return question.request(ReasoningGrammar(self._prompts.vocabulary, whole, thinking, answer), whole)


def check_retries(retries: object, form: Form | None, *, stream: bool) -> int:
    """Return how often a question may be asked again; raises `SettingsError`."""
    number = plain(retries)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_RETRIES:
        raise SettingsError(f"retries is {retries!r:.60}: give a whole number from 0 to {MAX_RETRIES}")
    if number and stream:
        raise SettingsError("retries cannot be combined with stream: pieces that were read cannot be taken back")
    if number and (not isinstance(form, TextForm) or form.spelled):
        raise SettingsError("retries is for answers with a schema, which validators may refuse: leave it out")
    return number


class TypedQuestion(DeferredRequest):
    """A question whose answer has a form; it is asked again, at most `retries` times, where validators refuse that."""

    def __init__(self, prompts: Prompts, question: CheckedQuestion, form: TextForm, retries: int = 0) -> None:
        super().__init__(prompts, question)
        self.spec = form.spec
        self._form = form
        self._retries = retries
        self._automaton: Automaton | None = None
        self._states: Automaton | NumberAutomaton | None = None  # with numbers of the images' sizes
        self._accepted: tuple[str, Any] | None = None  # a text and its value: no answer is validated twice

    def bind(self, automaton: Automaton | None, sizes: Sequence[Size] = ()) -> Request:
        """Make the request; a GrammarError is raised where no answer fits the context and `max_tokens`."""
        if automaton is None:
            raise AssertionError("a typed question needs its automaton")
        self._automaton = automaton
        automaton.spell_with(self._prompts.spell)
        _require_heads(self._prompts.skills, automaton)
        self._question = self._question.sized(self._prompts, sizes)
        self._states = automaton
        if (inline := self._prompts.inline) is not None and automaton.tables.ids.digits:
            # Places are in the last image, which is the nearest to the question.
            width, height = inline.bounds("point", (ANY_SIZE, *sizes)[-1])
            self._states = NumberAutomaton(automaton, (width, height))
        question, limit = self._question, self._question.settings.max_tokens
        make = UniqueNamesGrammar if automaton.tables.free_names else TypedGrammar
        if question.reasoning:
            budget = min(limit, max(automaton.shortest, (question.room - 1) // 2))
            return self._after_reasoning(make(self._states, budget), budget)
        budget = min(question.room, limit)
        grammar = make(self._states, budget)
        return question.request(grammar, 0 if grammar.finished else budget)

    def further(self, tries: int | None, completion: Completion) -> Sequence[tuple[int, Request]]:
        """Return the request that asks again, with what was wrong, where validators refuse the answer; () elsewhere.

        The question that was asked first is the one that gets the note. Where that does not fit the context, nothing
        is asked again.
        """
        tries = tries or 1
        if tries > self._retries:
            return ()
        text = read_text(self._reader()[0], completion.tokens)
        try:
            self._value(text)
            return ()
        except SchemaError as error:
            if not isinstance(error.__cause__, ValidationError):
                return ()
            note = f"The answer {text:.300} is wrong: {complaint(error.__cause__)}. Give another answer."
        question = self._question.with_note(note)
        if question is None:
            return ()
        try:
            again = TypedQuestion(self._prompts, question, self._form)
            return [(tries + 1, again.bind(self._automaton, question.sizes))]
        except GrammarError:  # no answer is short enough for what the note has left of the context
            return ()

    def _reader(self) -> tuple[TokenReader, dict[str, Any]]:
        if isinstance(self._states, NumberAutomaton):
            return NumberReader(self._prompts, self._states), {"reasoning": None}
        reasoning, reader = with_reasoning(self._prompts, TypedReader(self._prompts), self._question.reasoning)
        return reader, {"reasoning": reasoning}

    @property
    def _meaning(self) -> Callable[[str], Any]:
        return self._form.read

    def _value(self, text: str) -> dict[str, Any]:
        if self._accepted is None or self._accepted[0] != text:
            self._accepted = text, self._form.read(text)
        return {"answer": self._accepted[1], "text": None if self._form.spelled else text}


def _require_heads(skills: tuple[str, ...], automaton: Automaton) -> None:
    tables = automaton.tables
    boxes, points = (bool((tables.delta[:, tables.column[letter]] >= 0).any()) for letter in (SIZE, COORDINATE))
    if (boxes or points) and "detect" not in skills and (boxes or "point" not in skills):
        raise UnsupportedSkillError(
            f"the answer is to hold {'boxes' if boxes else 'points'}, for which this checkpoint was not trained; it "
            f"has {', '.join(skills) or 'no skills at all'}: leave them out"
        )


class TypedReader:
    """Reads the tokens of a typed answer into text: words as they come, places when they are complete."""

    def __init__(self, prompts: Prompts) -> None:
        self._end = prompts.vocabulary.end
        self._words = prompts.detokenizer()
        self._place: list[Token] = []

    def feed(self, token: Token) -> str:
        if len(token.values) == 1:
            self._place.append(token)
            return ""
        if token.values:
            self._place.append(token)
            return self._spelled()
        text = self._spelled()  # of a point, which is told from a box by the token behind it
        return text if token.id == self._end else text + self._words.feed(token.id)

    def flush(self) -> str:
        return self._spelled() + self._words.flush()

    def _spelled(self) -> str:
        place, self._place = self._place, []
        if not place:
            return ""
        if len(place) == 3:
            numbers = box(place)
        else:
            numbers = {name: clamp(token.values[0]) for name, token in zip("xy", place, strict=True)}
        shown = {name: float(f"{number:.{_DIGITS}g}") for name, number in {**numbers, "score": score(place)}.items()}
        # Words end in a whole character where a place begins.
        return self._words.flush() + json.dumps(shown, separators=(",", ":"))
