import pytest

from photonlite.request import IMAGE, Token
from photonlite.skills import encode
from tests.skills.fake import FakePrompts


def test_an_encoding_asks_for_no_tokens_and_takes_none() -> None:
    request = encode.build(FakePrompts())

    assert (request.prompt, request.budget, request.grammar.finish_reason) == ((), 0, "stop")
    with pytest.raises(ValueError, match="asks for no tokens"):
        request.grammar.accept(Token(1))


class Inline:
    """Prompts that hold their images, and begin with these words."""

    def __init__(self, *beginning: Token) -> None:
        self.beginning = beginning

    def encode(self) -> tuple[Token, ...]:
        return self.beginning


class InlinePrompts(FakePrompts):
    def __init__(self, *beginning: Token) -> None:
        super().__init__()
        self.inline = Inline(*beginning)  # type: ignore[assignment]


def test_images_inside_prompts_are_read_with_what_stands_before_them() -> None:
    prompts = InlinePrompts(Token(3), IMAGE)

    assert encode.build(prompts).prompt == (Token(3), IMAGE)
    assert encode.build(prompts, (Token(4), IMAGE, Token(5), IMAGE, Token(6))).prompt == (
        Token(4),
        IMAGE,
        Token(5),
        IMAGE,
    )


def test_nothing_is_read_where_the_words_behind_an_image_change_what_is_computed_for_it() -> None:
    prompts = InlinePrompts()

    assert encode.build(prompts).prompt == ()
    assert encode.build(prompts, (IMAGE, Token(6))).prompt == ()
