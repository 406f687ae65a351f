"""What the prompts of several families have in common: text through their tokenizer, and what they refuse."""

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Self

from photonlite.errors import SettingsError, UnsupportedSkillError
from photonlite.grammar.prompts import Places, RequestLimits
from photonlite.models.tokenizer import IncrementalDetokenizer, Tokenizer


class TokenizedText:
    """Encodes and decodes text; a subclass has the tokenizer and the size of the model's vocabulary."""

    _tokenizer: Tokenizer
    vocab_size: int
    limits = RequestLimits()

    def limited(self, limits: RequestLimits) -> Self:
        """Return the same prompts for requests within limits."""
        limited = copy(self)
        limited.limits = limits
        return limited

    def spell(self, text: str) -> tuple[int, ...]:
        """Encode text as the model writes it, without special ids."""
        return tuple(self._tokenizer.spell(text))

    def pieces(self) -> list[bytes]:
        """Return the bytes of each id; none for one that is special or has no token."""
        return self._tokenizer.pieces(self.vocab_size)

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids; special ones vanish."""
        return self._tokenizer.decode(ids)

    def detokenizer(self) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(self._tokenizer)


def caption_question(questions: Mapping[str, str], length: str) -> str:
    """Return the question for a description of some length; SettingsError for an unknown one."""
    if length not in questions:
        raise SettingsError(f"caption length {str(length)[:40]!r} is unknown: it is one of {', '.join(questions)}")
    return questions[length]


def refuse_reasoning(reasoning: bool) -> None:
    if reasoning:
        raise UnsupportedSkillError("this family has no reasoning of its own: ask with reasoning=False")


def refuse_references(refs: Places) -> None:
    if refs:
        raise UnsupportedSkillError("this checkpoint was not trained for spatial references: ask without them")
