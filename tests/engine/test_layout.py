"""Where images stand, and which positions of a prompt attend to each other."""

import dataclasses
from typing import Any

import pytest

from photonlite.engine.layout import Layout, lay_out
from photonlite.models.base import ModelShape
from photonlite.request import IMAGE, Request, SamplingSettings, Token
from tests.cache.sequences import NamedImage

SHAPE = ModelShape(1, 1, 8, 100, None, None, 8, 50)
ANYTHING: Any = None


class Inline:
    """A model whose prompts hold images of 2 x 3 positions."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape, self.crop_spec = shape, self

    def positions_of(self, size: tuple[int, int]) -> tuple[int, int]:
        return 2, 3

    def turns(self, parts: Any) -> None: ...


def laid_out(prompt: tuple[Token, ...], images: int, *, begun: int = 0, budget: int = 5, prefix_lm: bool) -> Layout:
    model: Any = Inline(dataclasses.replace(SHAPE, prefix_lm=prefix_lm))
    request = Request("query", prompt, ANYTHING, budget, SamplingSettings(), begun=begun)
    return lay_out(model, request, [NamedImage(str(number)) for number in range(images)])


@pytest.mark.parametrize("begun", [0, 2])
def test_a_prompt_attends_to_itself_where_the_model_does_that_but_for_the_beginning_of_its_answer(begun: int) -> None:
    prompt = (IMAGE, *map(Token, (2, 7, 8, 9)))

    found = laid_out(prompt, 1, begun=begun, prefix_lm=True)

    assert found.prompt_block == 10 - begun
    assert [(span.start, span.count) for span in found.inside] == [(0, 6)]
    assert laid_out(prompt, 1, begun=begun, prefix_lm=False).prompt_block == 0


@pytest.mark.parametrize("prefix_lm", [False, True])
def test_a_request_that_asks_for_nothing_has_no_images(prefix_lm: bool) -> None:
    found = laid_out((), 2, budget=0, prefix_lm=prefix_lm)

    assert (found.inside, found.prompt_block, found.request.prompt) == ((), 0, ())
    with pytest.raises(ValueError, match="places for 0 images came with 2"):
        laid_out((), 2, budget=1, prefix_lm=prefix_lm)
