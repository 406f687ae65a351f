"""Read an image into the prefix cache, without an answer."""

from photonlite.request import Allowed, Request, SamplingSettings, Token


class EmptyGrammar:
    """The grammar of an answer that has no tokens."""

    allowed = Allowed()
    ahead: Allowed | None = None
    finish_reason: str | None = "stop"

    def accept(self, token: Token) -> None:
        raise ValueError(f"the request asks for no tokens, but was given {token}")


def build() -> Request:
    """Make the request: no prompt, and a budget of no tokens."""
    return Request("encode", (), EmptyGrammar(), 0, SamplingSettings())
