"""Answer a question about a picture, about places in it, or without a picture; with reasoning before it if asked.

The tokens of an answer with reasoning:

```
reasoning ... 7 (ground) words 5 5 5 5 ... 9 (end) ... 3 (answer) words ... 0 (end)
                               x y x y
```
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from photonlite.errors import SpatialRefError
from photonlite.grammar.base import Vocabulary
from photonlite.grammar.spatial import ReasoningGrammar, TextGrammar
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


def build(
    prompts: Prompts,
    question: str | None,
    *,
    with_image: bool,
    reasoning: bool,
    refs: SpatialRefs | None,
    settings: SamplingSettings,
) -> Request:
    """Make the request for an answer.

    Args:
        prompts: The checkpoint's.
        question: At most 4,000 characters.
        with_image: Whether a picture comes before the question.
        reasoning: Whether the model writes down its reasoning first.
        refs: Places in the picture that the question is about.
        settings: How to choose words, and how many tokens at most.

    Raises:
        PromptError: The question is no text, empty or too long.
        SpatialRefError: A reference is no place in the picture, or there is no picture.
        UnsupportedSkillError: The checkpoint answers no questions.
        CapacityError: The prompt exceeds the context.
    """
    subject = clean_text(question, "question", MAX_QUESTION_CHARACTERS)
    places = clean_refs(refs)
    if places and not with_image:
        raise SpatialRefError("spatial references were given without a picture: hand in the picture they belong to")
    prompt = prompts.query(subject, reasoning=reasoning, refs=places)
    room = room_after(prompt, prompts, with_image=with_image)
    if reasoning:
        budget = min(room, 2 * settings.max_tokens + 1)
        grammar: Grammar = ReasoningGrammar(prompts.vocabulary, budget, settings.max_tokens)
    else:
        budget = min(room, settings.max_tokens)
        grammar = TextGrammar(prompts.vocabulary, budget)
    return Request("query", prompt, grammar, budget, settings, subject)


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
    if not isinstance(request.grammar, ReasoningGrammar):
        return None, TextReader(prompts)
    reasoning: dict[str, Any] = {"text": "", "grounding": []}
    return reasoning, _ReasoningReader(prompts, reasoning)


class _ReasoningReader:
    """Reads reasoning into a dictionary, all of it at its end, and then the answer into pieces."""

    def __init__(self, prompts: Prompts, reasoning: dict[str, Any]) -> None:
        self._prompts = prompts
        self._reasoning = reasoning
        self._thought: list[Token] = []
        self._thinking = True
        self._answer = TextReader(prompts)

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
    """Read reasoning and what parts of it are grounded in the picture.

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
