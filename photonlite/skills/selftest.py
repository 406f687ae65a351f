"""A tiny question through every skill and every head, to see before anybody asks that a checkpoint computes numbers."""

from photonlite.errors import UnsupportedSkillError
from photonlite.grammar.decoding.base import Vocabulary
from photonlite.request import Allowed, Request, SamplingSettings, Token
from photonlite.skills.base import Prompts

_LENGTHS = ("short", "normal", "long")


class AllHeadsGrammar:
    """The grammar of an answer for which each head chooses once.

    A word, x, y, a size, a word: the last one follows from what the model makes of coordinates and sizes as inputs.

    Args:
        vocabulary: The checkpoint's.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        word = Allowed()
        place = Allowed((vocabulary.coordinate,), coordinate=vocabulary.coordinate)
        size = Allowed((vocabulary.size,), size=vocabulary.size)
        self._left = [word, place, place, size, word]

    @property
    def budget(self) -> int:
        """Tokens that are to come."""
        return len(self._left)

    @property
    def allowed(self) -> Allowed:
        """What may stand at the next position."""
        return self._left[0]

    @property
    def ahead(self) -> Allowed | None:
        """What may stand one position further."""
        return self._left[1] if len(self._left) > 1 else None

    @property
    def finish_reason(self) -> str | None:
        """Give "stop" at the end, None before."""
        return None if self._left else "stop"

    def accept(self, token: Token) -> None:
        """Take the next token."""
        if not self._left:
            raise ValueError(f"token {token.id} came after the end")
        del self._left[0]


def build(prompts: Prompts) -> dict[str, Request]:
    """Build a request for each skill of a checkpoint, by its name. All are about an image."""
    asked: dict[str, tuple[Token, ...]] = {}
    for skill in prompts.skills:
        match skill:
            case "caption":
                asked[skill] = _caption(prompts)
            case "query":
                asked[skill] = prompts.query("?", reasoning=False, refs=())
            case "detect":
                asked[skill] = prompts.detect("it")
            case "point":
                asked[skill] = prompts.point("it", refs=())
            case "segment":
                asked[skill] = prompts.segment("it", refs=())
    requests = {}
    for skill, prompt in asked.items():
        grammar = AllHeadsGrammar(prompts.vocabulary)
        requests[skill] = Request(skill, prompt, grammar, grammar.budget, SamplingSettings())
    return requests


def _caption(prompts: Prompts) -> tuple[Token, ...]:
    for length in _LENGTHS:
        try:
            return prompts.caption(length)
        except UnsupportedSkillError:
            continue
    raise UnsupportedSkillError("this checkpoint was trained for captions, but of no length")
