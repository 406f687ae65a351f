import asyncio
from typing import Any

from photonlite.request import Request, SamplingSettings, Token
from photonlite.skills import caption
from tests.skills.fake import METRICS, FakePrompts, awaited, completion


def build(**settings: Any) -> Request:
    return caption.build(FakePrompts(), "short", SamplingSettings(**settings))


def test_a_caption_request_has_its_length_and_budget() -> None:
    prompts = FakePrompts(max_context=40)
    request = caption.build(prompts, "short", settings=SamplingSettings(max_tokens=8))

    assert prompts.asked == [("caption", "short")]
    assert request.budget == 8
    assert caption.build(prompts, "short", settings=SamplingSettings()).budget == 40 - 26 - 1 + 1


def test_a_caption_has_text_metrics_and_finish_reason() -> None:
    result = caption.finish(build(), FakePrompts(), completion(21, 22, 0))

    assert result == {"caption": "<21><22>"}
    assert (result.metrics, result.finish_reason) == (METRICS, "stop")


def test_a_stream_yields_pieces_and_then_sets_the_metrics() -> None:
    tokens = iter([Token(21), Token(22), Token(0)])
    result = caption.stream(build(), FakePrompts(), tokens, on_end=lambda: (METRICS, "stop"))

    assert result.metrics is None
    assert list(result["caption"]) == ["<21>", "<22>"]
    assert (result.metrics, result.finish_reason) == (METRICS, "stop")


def test_an_async_stream_yields_the_same_pieces_and_sets_the_metrics() -> None:
    async def main() -> None:
        result = caption.stream(build(), FakePrompts(), awaited(21, 22, 0), on_end=lambda: (METRICS, "stop"))
        assert [piece async for piece in result["caption"]] == ["<21>", "<22>"]
        assert (result.metrics, result.finish_reason) == (METRICS, "stop")

    asyncio.run(main())
