import pytest

from photonlite.request import Token
from photonlite.skills import encode
from tests.skills.fake import FakePrompts


def test_an_encoding_asks_for_no_tokens_and_takes_none() -> None:
    request = encode.build(FakePrompts())

    assert (request.prompt, request.budget, request.grammar.finish_reason) == ((), 0, "stop")
    with pytest.raises(ValueError, match="asks for no tokens"):
        request.grammar.accept(Token(1))
