"""A checkpoint without a network: every word is one id, and prompts are a skill's number and the words."""

from collections.abc import AsyncIterator, Iterable

from photonlite.grammar.decoding.grammars import PathIds, Vocabulary
from photonlite.grammar.prompts import RequestLimits
from photonlite.request import Completion, Token
from photonlite.results import Metrics
from photonlite.skills.base import SpatialRefs

METRICS = Metrics(output_tokens=7)


class FakePrompts:
    """Encodes words by their length; ids from 20 on are words, those below vanish."""

    skills = ("caption", "query", "detect", "point", "segment")
    inline = conversations = None
    limits = RequestLimits()
    vocabulary = Vocabulary(0, 3, 5, 6, ground_start=7, ground_end=9, any_id_continues=False)
    path_ids = PathIds({30: "M", 31: "L", 32: "Z"}, {40: 0, 41: 480, 42: 960, 43: 100}, frozenset({33}))

    def __init__(self, max_context: int = 100, prefix_length: int = 26) -> None:
        self.max_context = max_context
        self.prefix_length = prefix_length
        self.asked: list[tuple[object, ...]] = []

    def caption(self, length: str) -> tuple[Token, ...]:
        return self._prompt("caption", length)

    def query(self, question: str, *, reasoning: bool, refs: SpatialRefs, images: int = 1) -> tuple[Token, ...]:
        return self._prompt("query", question, reasoning, refs)

    def detect(self, subject: str) -> tuple[Token, ...]:
        return self._prompt("detect", subject)

    def point(self, subject: str, *, refs: SpatialRefs) -> tuple[Token, ...]:
        return self._prompt("point", subject, refs)

    def segment(self, subject: str, *, refs: SpatialRefs) -> tuple[Token, ...]:
        return self._prompt("segment", subject, refs)

    def spell(self, text: str) -> tuple[int, ...]:
        """A letter is an id, and a space at the beginning belongs to the first one."""
        first, rest = (text[:2], text[2:]) if text.startswith(" ") else (text[:1], text[1:])
        return (ord(first[-1]) + 1000 * (len(first) - 1), *map(ord, rest))

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(map(self._word, ids))

    def detokenizer(self) -> "FakeDetokenizer":
        return FakeDetokenizer()

    def _prompt(self, skill: str, text: str, *more: object) -> tuple[Token, ...]:
        self.asked.append((skill, text, *more))
        return tuple(Token(20) for _ in text.split())

    @staticmethod
    def _word(index: int) -> str:
        return f"<{index}>" if index >= 20 else ""


class FakeDetokenizer:
    """Holds every word back until the next one comes."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, token_id: int, /) -> str:
        held, self._held = self._held, FakePrompts._word(token_id)
        return held

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def completion(*tokens: Token | int, reason: str = "stop") -> Completion:
    return Completion(tuple(Token(t) if isinstance(t, int) else t for t in tokens), reason, METRICS)


async def awaited(*tokens: Token | int) -> AsyncIterator[Token]:
    for token in completion(*tokens).tokens:
        yield token


def coordinate(value: float, mass: float = 1.0, probability: float = 1.0) -> Token:
    return Token(5, (value,), probability, (mass,))


def size(width: float, height: float, masses: tuple[float, float] = (1.0, 1.0)) -> Token:
    return Token(6, (width, height), 1.0, masses)
