"""Answer a question about an image, about places in it, or without an image; with reasoning before it if asked.

The tokens of an answer with reasoning:

```
reasoning ... 7 (ground) words 5 5 5 5 ... 9 (end) ... 3 (answer) words ... 0 (end)
                               x y x y
```
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, Unpack

from photonlite.errors import ImageError, SpatialRefError, UnsupportedSkillError
from photonlite.grammar.decoding.grammars import ReasoningGrammar, Vocabulary
from photonlite.grammar.prompts import Conversations, Places, Prompts, Size
from photonlite.request import Completion, Grammar, Request, SamplingSettings, Token, Turn
from photonlite.results import Answer
from photonlite.results.text import TextInfo, TokenReader
from photonlite.skills.base import (
    MAX_QUESTION_CHARACTERS,
    SpatialRefs,
    TextReader,
    clean_refs,
    clean_text,
    read_text,
    room_after,
    text_grammar,
)
from photonlite.skills.chat import Conversation, flat_text

MAX_IMAGES = 256
"""Images of a question or a conversation: one that stands in several places counts in each."""

Ids = tuple[Token, ...]


@dataclass(frozen=True)
class CheckedQuestion:
    """A question that has been checked, and the tokens that the context leaves for reasoning and answer."""

    subject: str
    prompt: tuple[Token, ...]
    reasoning: bool
    room: int
    settings: SamplingSettings
    write: Callable[..., tuple[Token, ...]]  # returns the prompt, and with an argument that text behind the question
    sizes: tuple[Size, ...] = ()  # of its images, where the prompt depends on them
    kept: bool = False  # see `Request`

    def sized(self, prompts: Prompts, sizes: Sequence[Size]) -> Self:
        """Return the question about images of these sizes; CapacityError where the context is too short for them."""
        if prompts.inline is None:  # then all images have the same length
            return self
        room = room_after(self.prompt, prompts, images=len(sizes), sizes=sizes)
        return replace(self, room=room, sizes=tuple(sizes))

    def with_note(self, note: str) -> Self | None:
        """Return the question with a note behind it; None where the context has no room for an answer then."""
        prompt = self.write(note)
        room = self.room - (len(prompt) - len(self.prompt))
        return replace(self, prompt=prompt, room=room) if room > 0 else None

    def request(self, grammar: Grammar, budget: int) -> Request:
        return Request("query", self.prompt, grammar, budget, self.settings, self.subject, kept=self.kept)


def read_question(
    prompts: Prompts,
    question: str | None,
    *,
    images: int,
    reasoning: bool,
    refs: SpatialRefs | None,
    settings: SamplingSettings,
) -> CheckedQuestion:
    """Check a question of at most 4,000 characters, and write its prompt.

    Raises a PromptError, SpatialRefError, UnsupportedSkillError or, for a long prompt, CapacityError.
    """
    subject = clean_text(question, "question", MAX_QUESTION_CHARACTERS)
    places = clean_refs(refs)
    if places and not images:
        raise SpatialRefError("spatial references were given without an image: hand in the image they belong to")
    write = partial(_write_question, prompts, subject, reasoning, places, images)
    return _checked(prompts, subject, write, images, reasoning, settings)


def read_chat(
    prompts: Prompts, conversation: Conversation, *, reasoning: bool, settings: SamplingSettings
) -> CheckedQuestion:
    """Check a conversation, and write the prompt for its next turn; raises as `read_question`."""
    turns, images = conversation.turns, len(conversation.images)
    if prompts.conversations is None:
        write: Callable[..., Ids] = partial(_write_question, prompts, flat_text(turns), reasoning, (), images)
    elif reasoning:
        raise UnsupportedSkillError("this checkpoint was not trained for reasoning: ask with reasoning=False")
    else:
        write = partial(_write_chat, prompts.conversations, turns)
    return _checked(prompts, turns[-1].text, write, images, reasoning, settings)


def _write_question(prompts: Prompts, subject: str, reasoning: bool, refs: Places, images: int, note: str = "") -> Ids:
    text = f"{subject}\n{note}" if note else subject
    return prompts.query(text, reasoning=reasoning, refs=refs, images=images)


def _write_chat(conversations: Conversations, turns: Sequence[Turn], note: str = "") -> Ids:
    *earlier, last = turns
    return conversations.chat([*earlier, replace(last, parts=(*last.parts, f"\n{note}")) if note else last])


def _checked(
    prompts: Prompts,
    subject: str,
    write: Callable[..., Ids],
    images: int,
    reasoning: bool,
    settings: SamplingSettings,
) -> CheckedQuestion:
    if images > 1 and prompts.conversations is None:
        raise ImageError(f"there are {images} images, but this model reads one at a time: ask about each by itself")
    if images > MAX_IMAGES:
        raise ImageError(f"there are {images} images, over the limit of {MAX_IMAGES}: ask about fewer at a time")
    prompt = write()
    room = room_after(prompt, prompts, images=images)
    # The prompt of a next turn begins with this one and its answer only where conversations are read as such.
    return CheckedQuestion(subject, prompt, reasoning, room, settings, write, kept=prompts.conversations is not None)


def build(prompts: Prompts, asked: CheckedQuestion) -> Request:
    """Make the request for an answer in words."""
    limit = asked.settings.max_tokens
    if asked.reasoning:
        budget = min(asked.room, 2 * limit + 1)
        answer = text_grammar(prompts, limit, asked.settings)
        return asked.request(ReasoningGrammar(prompts.vocabulary, budget, limit, answer), budget)
    budget = min(asked.room, limit)
    return asked.request(text_grammar(prompts, budget, asked.settings), budget)


def build_sized(prompts: Prompts, asked: CheckedQuestion, sizes: Sequence[Size]) -> Request:
    """Make the request for an answer in words about images of these sizes."""
    return build(prompts, asked.sized(prompts, sizes))


def finish(request: Request, prompts: Prompts, completion: Completion) -> Answer:
    """Read the answer, and the reasoning before it if there was any."""
    reasoning, reader = _reader(request, prompts)
    text = read_text(reader, completion.tokens)
    return Answer(text, reasoning, metrics=completion.metrics, finish_reason=completion.finish_reason)


def stream(
    request: Request, prompts: Prompts, tokens: Iterator[Token] | AsyncIterator[Token], **info: Unpack[TextInfo]
) -> Answer:
    """Read the answer piece by piece. Its reasoning is empty until the first piece is there: it is not streamed."""
    reasoning, reader = _reader(request, prompts)
    return Answer(tokens, reasoning, reader=reader, **info)


def _reader(request: Request, prompts: Prompts) -> tuple[dict[str, Any] | None, TokenReader]:
    answer = TextReader(prompts, request.settings.stop)
    return with_reasoning(prompts, answer, isinstance(request.grammar, ReasoningGrammar))


def with_reasoning(prompts: Prompts, answer: TokenReader, reasoned: bool) -> tuple[dict[str, Any] | None, TokenReader]:
    """Return the dictionary that reasoning is read into, None without reasoning, and the reader of both parts."""
    if not reasoned:
        return None, answer
    reasoning: dict[str, Any] = {"text": "", "grounding": []}
    return reasoning, _ReasoningReader(prompts, reasoning, answer)


class _ReasoningReader:
    """Reads reasoning into a dictionary when it ends, and then the answer into pieces."""

    def __init__(self, prompts: Prompts, reasoning: dict[str, Any], answer: TokenReader) -> None:
        self._prompts = prompts
        self._reasoning = reasoning
        self._tokens: list[Token] | None = []  # of reasoning; None behind it
        self._answer = answer

    def feed(self, token: Token) -> str:
        if self._tokens is None:
            return self._answer.feed(token)
        if token.id == self._prompts.vocabulary.answer:
            self._end_reasoning()
        else:
            self._tokens.append(token)
        return ""

    def flush(self) -> str:
        self._end_reasoning()
        return self._answer.flush()

    def _end_reasoning(self) -> None:
        tokens, self._tokens = self._tokens, None
        if tokens is not None:
            self._reasoning.update(read_reasoning(self._prompts, tokens))


def read_reasoning(prompts: Prompts, tokens: Sequence[Token]) -> dict[str, Any]:
    """Return `{"text": str, "grounding": [{"start_idx", "end_idx", "points": [[x, y], ...]}, ...]}`.

    The indices are characters of the text. A part without at least one whole point is not listed.
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
