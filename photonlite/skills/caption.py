"""Describe an image in a short, normal or long text."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Unpack

from photonlite.grammar.prompts import Prompts, Size
from photonlite.request import Completion, Request, SamplingSettings, Token
from photonlite.results import Caption
from photonlite.results.text import TextInfo
from photonlite.skills.base import TextReader, read_text, room_after, text_grammar


def build(prompts: Prompts, length: str, settings: SamplingSettings, sizes: Sequence[Size] = ()) -> Request:
    """Make the request for a "short", "normal" or "long" description; raises as `Prompts.caption` and `room_after`."""
    prompt = prompts.caption(length)
    budget = min(settings.max_tokens, room_after(prompt, prompts, images=1, sizes=sizes))
    return Request("caption", prompt, text_grammar(prompts, budget, settings), budget, settings)


def finish(request: Request, prompts: Prompts, completion: Completion) -> Caption:
    text = read_text(TextReader(prompts, request.settings.stop), completion.tokens)
    return Caption(text, metrics=completion.metrics, finish_reason=completion.finish_reason)


def stream(
    request: Request, prompts: Prompts, tokens: Iterator[Token] | AsyncIterator[Token], **info: Unpack[TextInfo]
) -> Caption:
    return Caption(tokens, reader=TextReader(prompts, request.settings.stop), **info)
