"""A tiny question through every skill and every head, which finds checkpoints that compute NaN."""

from photonlite.errors import UnsupportedSkillError
from photonlite.grammar.decoding.grammars import Vocabulary
from photonlite.request import Allowed, Request, SamplingSettings, Token
from photonlite.skills.base import Prompts


class AllHeadsGrammar:
    """An answer for which each head chooses once: a word, x, y, a size, a word.

    The last word depends on coordinates and sizes as inputs of the model.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        word = Allowed()
        place = Allowed((vocabulary.coordinate,), coordinate=vocabulary.coordinate)
        size = Allowed((vocabulary.size,), size=vocabulary.size)
        self._left = [word, place, place, size, word]
        self.budget = len(self._left)

    @property
    def allowed(self) -> Allowed:
        return self._left[0]

    @property
    def ahead(self) -> Allowed | None:
        return self._left[1] if len(self._left) > 1 else None

    @property
    def finish_reason(self) -> str | None:
        return None if self._left else "stop"

    def accept(self, token: Token) -> None:
        if not self._left:
            raise ValueError(f"token {token.id} came after the end")
        del self._left[0]


def build(prompts: Prompts) -> dict[str, Request]:
    """Make a request about an image for each skill of a checkpoint, by its name."""
    asked = {
        "caption": lambda: _caption(prompts),
        "query": lambda: prompts.query("?", reasoning=False, refs=()),
        "detect": lambda: prompts.detect("it"),
        "point": lambda: prompts.point("it", refs=()),
        "segment": lambda: prompts.segment("it", refs=()),
    }
    requests = {}
    for skill in filter(asked.__contains__, prompts.skills):
        grammar = AllHeadsGrammar(prompts.vocabulary)
        requests[skill] = Request(skill, asked[skill](), grammar, grammar.budget, SamplingSettings())
    return requests


def _caption(prompts: Prompts) -> tuple[Token, ...]:
    for length in ("short", "normal", "long"):
        try:
            return prompts.caption(length)
        except UnsupportedSkillError:
            continue
    raise UnsupportedSkillError("this checkpoint was trained for captions, but of no length")
