"""Answer a question about an image, about places in it, or without an image; with reasoning before it if asked.

The tokens of an answer with reasoning:

```
reasoning ... 7 (ground) words 5 5 5 5 ... 9 (end) ... 3 (answer) words ... 0 (end)
                               x y x y
```
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from photonlite.errors import SpatialRefError
from photonlite.grammar.decoding.base import Vocabulary
from photonlite.grammar.decoding.text import ReasoningGrammar, TextGrammar
from photonlite.request import Completion, Grammar, Request, SamplingSettings, Token
from photonlite.results import Answer
from photonlite.skills.base import (
    MAX_QUESTION_CHARACTERS,
    AsyncTextPieces,
    OnEnd,
    Prompts,
    Reader,
    SpatialRefs,
    TextPieces,
    TextReader,
    clean_refs,
    clean_text,
    room_after,
)


@dataclass(frozen=True)
class CheckedQuestion:
    """A question that has been checked.

    Attributes:
        subject: Its text.
        prompt: What asks it.
        reasoning: Whether reasoning comes before the answer.
        room: Tokens that the context leaves for both.
        settings: How to choose words, and how many tokens at most.
    """

    subject: str
    prompt: tuple[Token, ...]
    reasoning: bool
    room: int
    settings: SamplingSettings

    def request(self, grammar: Grammar, budget: int) -> Request:
        """Make the request for an answer that keeps to a grammar."""
        return Request("query", self.prompt, grammar, budget, self.settings, self.subject)


def read_question(
    prompts: Prompts,
    question: str | None,
    *,
    with_image: bool,
    reasoning: bool,
    refs: SpatialRefs | None,
    settings: SamplingSettings,
) -> CheckedQuestion:
    """Check a question and write its prompt.

    Args:
        prompts: The checkpoint's.
        question: At most 4,000 characters.
        with_image: Whether an image comes before the question.
        reasoning: Whether the model writes down its reasoning first.
        refs: Places in the image that the question is about.
        settings: How to choose words, and how many tokens at most.

    Raises:
        PromptError: The question is no text, empty or too long.
        SpatialRefError: A reference is no place in the image, or there is no image.
        UnsupportedSkillError: The checkpoint answers no questions.
        CapacityError: The prompt exceeds the context.
    """
    subject = clean_text(question, "question", MAX_QUESTION_CHARACTERS)
    places = clean_refs(refs)
    if places and not with_image:
        raise SpatialRefError("spatial references were given without an image: hand in the image they belong to")
    prompt = prompts.query(subject, reasoning=reasoning, refs=places)
    return CheckedQuestion(subject, prompt, reasoning, room_after(prompt, prompts, with_image=with_image), settings)


def build(
    prompts: Prompts,
    question: str | None,
    *,
    with_image: bool,
    reasoning: bool,
    refs: SpatialRefs | None,
    settings: SamplingSettings,
) -> Request:
    """Make the request for an answer in words; arguments and errors are those of `read_question`."""
    asked = read_question(prompts, question, with_image=with_image, reasoning=reasoning, refs=refs, settings=settings)
    if reasoning:
        budget = min(asked.room, 2 * settings.max_tokens + 1)
        return asked.request(ReasoningGrammar(prompts.vocabulary, budget, settings.max_tokens), budget)
    budget = min(asked.room, settings.max_tokens)
    return asked.request(TextGrammar(prompts.vocabulary, budget), budget)


def finish(request: Request, prompts: Prompts, completion: Completion) -> Answer:
    """Read the answer, and the reasoning before it if there was any."""
    reasoning, reader = _reader(request, prompts)
    text = "".join(TextPieces(reader, completion.tokens))
    return Answer(text, reasoning, metrics=completion.metrics, finish_reason=completion.finish_reason)


def stream(request: Request, prompts: Prompts, tokens: Iterator[Token], on_end: OnEnd) -> Answer:
    """Read the answer piece by piece, as its tokens come.

    Reasoning comes first and is not streamed: its dictionary is empty until the first piece of the answer is there.
    """
    reasoning, reader = _reader(request, prompts)
    return Answer(TextPieces(reader, tokens), reasoning, on_end=on_end)


def astream(request: Request, prompts: Prompts, tokens: AsyncIterator[Token], on_end: OnEnd) -> Answer:
    """The same for tokens that are awaited."""
    reasoning, reader = _reader(request, prompts)
    return Answer(AsyncTextPieces(reader, tokens), reasoning, on_end=on_end)


def _reader(request: Request, prompts: Prompts) -> tuple[dict[str, Any] | None, Reader]:
    return with_reasoning(prompts, TextReader(prompts), isinstance(request.grammar, ReasoningGrammar))


def with_reasoning(prompts: Prompts, answer: Reader, reasoned: bool) -> tuple[dict[str, Any] | None, Reader]:
    """Give what reasoning is read into, None where there is none before the answer, and what reads both."""
    if not reasoned:
        return None, answer
    reasoning: dict[str, Any] = {"text": "", "grounding": []}
    return reasoning, _ReasoningReader(prompts, reasoning, answer)


class _ReasoningReader:
    """Reads reasoning into a dictionary, all of it at its end, and then the answer into pieces."""

    def __init__(self, prompts: Prompts, reasoning: dict[str, Any], answer: Reader) -> None:
        self._prompts = prompts
        self._reasoning = reasoning
        self._thought: list[Token] = []
        self._thinking = True
        self._answer = answer

    def feed(self, token: Token) -> str:
        if not self._thinking:
            return self._answer.feed(token)
        if token.id == self._prompts.vocabulary.answer:
            self._end_thought()
        else:
            self._thought.append(token)
        return ""

    def flush(self) -> str:
        if self._thinking:
            self._end_thought()
        return self._answer.flush()

    def _end_thought(self) -> None:
        self._thinking = False
        self._reasoning.update(read_reasoning(self._prompts, self._thought))


def read_reasoning(prompts: Prompts, tokens: Sequence[Token]) -> dict[str, Any]:
    """Read reasoning and what parts of it are grounded in the image.

    Returns:
        `{"text": str, "grounding": [{"start_idx", "end_idx", "points": [[x, y], ...]}, ...]}`; the indices are
        characters of the text. A part without at least one whole point is not listed.
    """
    text, grounding = "", []
    for words, numbers in _parts(tokens, prompts.vocabulary):
        start, text = len(text), text + prompts.decode(words)
        points = [list(pair) for pair in zip(numbers[0::2], numbers[1::2], strict=False)]
        if points:
            grounding.append({"start_idx": start, "end_idx": len(text), "points": points})
    return {"text": text, "grounding": grounding}


def _parts(tokens: Iterable[Token], vocabulary: Vocabulary) -> list[tuple[list[int], list[float]]]:
    """Split reasoning where groundings open and close, into ids of words and coordinates."""
    parts: list[tuple[list[int], list[float]]] = [([], [])]
    for token in tokens:
        if token.values:
            parts[-1][1].extend(token.values)
        elif token.id in (vocabulary.ground_start, vocabulary.ground_end):
            parts.append(([], []))
        else:
            parts[-1][0].append(token.id)
    return parts
