"""Describe an image in a short, normal or long text."""

from collections.abc import AsyncIterator, Iterator

from photonlite.grammar.decoding.text import TextGrammar
from photonlite.request import Completion, Request, SamplingSettings, Token
from photonlite.results import Caption
from photonlite.skills.base import AsyncTextPieces, OnEnd, Prompts, TextPieces, TextReader, room_after


def build(prompts: Prompts, length: str, *, settings: SamplingSettings) -> Request:
    """Make the request for a "short", "normal" or "long" description.

    Raises:
        SettingsError: No length has that name.
        UnsupportedSkillError: The checkpoint writes no captions of that length.
        CapacityError: The prompt exceeds the context.
    """
    prompt = prompts.caption(length)
    budget = min(settings.max_tokens, room_after(prompt, prompts, with_image=True))
    return Request("caption", prompt, TextGrammar(prompts.vocabulary, budget), budget, settings)


def finish(prompts: Prompts, completion: Completion) -> Caption:
    text = "".join(TextPieces(TextReader(prompts), completion.tokens))
    return Caption(text, metrics=completion.metrics, finish_reason=completion.finish_reason)


def stream(prompts: Prompts, tokens: Iterator[Token], on_end: OnEnd) -> Caption:
    return Caption(TextPieces(TextReader(prompts), tokens), on_end=on_end)


def astream(prompts: Prompts, tokens: AsyncIterator[Token], on_end: OnEnd) -> Caption:
    return Caption(AsyncTextPieces(TextReader(prompts), tokens), on_end=on_end)
