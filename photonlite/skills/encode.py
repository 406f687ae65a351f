"""Read an image into the prefix cache, without an answer."""

from collections.abc import Sequence

from photonlite.grammar.prompts import Prompts
from photonlite.request import IMAGE, Allowed, Request, SamplingSettings, Token


class FixedGrammar:
    """The grammar of an answer whose tokens are chosen in a fixed order of steps; without steps it has no tokens."""

    def __init__(self, *steps: Allowed) -> None:
        self._left = list(steps)

    @property
    def allowed(self) -> Allowed:
        return self._left[0] if self._left else Allowed()

    @property
    def ahead(self) -> Allowed | None:
        return self._left[1] if len(self._left) > 1 else None

    @property
    def run(self) -> tuple[int, ...]:
        return ()

    @property
    def expected_run(self) -> tuple[int, ...]:
        return ()

    @property
    def finish_reason(self) -> str | None:
        return None if self._left else "stop"

    def accept(self, token: Token) -> None:
        if not self._left:
            raise ValueError(f"the request asks for no tokens after the end, but was given {token}")
        del self._left[0]


def build(prompts: Prompts, prompt: Sequence[Token] | None = None) -> Request:
    """Make the request: a budget of no tokens, and no prompt but what stands before an image inside prompts.

    With the prompt of a later request it is all of that up to its last image, which must be there. Where what is
    computed for an image depends on the words behind it, there is nothing to read.
    """
    beginning = () if prompts.inline is None else prompts.inline.encode()
    if beginning and prompt is not None:
        beginning = tuple(prompt[: max(place for place, token in enumerate(prompt) if token == IMAGE) + 1])
    return Request("encode", beginning, FixedGrammar(), 0, SamplingSettings())
