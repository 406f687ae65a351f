import io
import time
from collections.abc import Iterator
from typing import Any

import pytest

from photonlite.api import VisionModel
from photonlite.errors import ImageDecodeError
from photonlite.server.calls import Call, Skill, ask_model, bounded
from photonlite.server.config import ServerConfig
from photonlite.server.errors import to_http
from photonlite.server.transport.streams import ClientWatch, WatchedStream
from tests.serving import GUARD, arguments, counters, make_image, run, serve


@pytest.fixture(scope="module")
def model() -> Iterator[VisionModel]:
    with serve() as model:
        yield model


def png() -> bytes:
    buffer = io.BytesIO()
    make_image(3).save(buffer, "PNG")
    return buffer.getvalue()


SHORT: dict[str, Any] = {"settings": {"max_tokens": 5, "max_objects": 2}}


@pytest.mark.parametrize("skill", ["detect", "point", "caption", "query"])
def test_a_call_is_answered_as_the_method_answers(model: VisionModel, skill: str) -> None:
    more = {key: value for key, value in arguments(skill, None, SHORT["settings"]).items() if key != "image"}
    call = Call(skill, png(), more)  # type: ignore[arg-type]
    result: Any = run(ask_model(model, call))
    assert result == getattr(model, skill)(png(), **more)
    assert result.metrics.output_tokens > 0


@pytest.mark.parametrize(
    ("skill", "given", "status"),
    [
        ("detect", {"object": [f"n{index}" for index in range(64)], "tile": [8, 8]}, 422),
        ("detect", {"object": [f"n{index}" for index in range(65)]}, 422),
        ("detect", {"object": "mug", "tile": [9, 9]}, 422),
        ("detect", {"object": []}, 422),
        ("query", {"question": "?", "choices": []}, 400),
        ("query", {"question": "word " * 790}, 422),
        ("query", {"question": "?", "settings": {"max_tokens": 5000}}, 422),
        ("caption", {"adapter": "none"}, 404),
        ("point", {"object": "mug", "spatial_refs": [[2.0, 3.0]]}, 422),
    ],
)
def test_a_call_is_refused_by_limits_and_the_model_before_it_counts(
    model: VisionModel, skill: Skill, given: dict[str, Any], status: int
) -> None:
    adapter = given.get("adapter")
    more = {name: value for name, value in given.items() if name != "adapter"}
    with pytest.raises(Exception) as refused:  # noqa: PT011 - every error has its status
        bounded(Call(skill, b"", more, adapter=adapter), ServerConfig(), model)
    assert to_http(refused.value).status == status


async def stream(model: VisionModel, **arguments: Any) -> WatchedStream:
    result = await ask_model(model, Call("caption", png(), arguments, stream=True))
    return WatchedStream(result, ClientWatch(None, time.monotonic() + GUARD, time.monotonic))


def test_a_stream_has_its_outcome_after_its_text(model: VisionModel) -> None:
    async def main() -> tuple[str, object]:
        streamed = await stream(model, **SHORT, length="short")
        result: Any = streamed.result
        assert result.metrics is None
        text = "".join([piece async for piece in streamed])
        await streamed.aclose()
        return text, result.finish_reason

    text, reason = run(main())
    whole = model.caption(png(), "short", **SHORT)
    assert (text, reason) == (whole["caption"], whole.finish_reason)


def test_closing_a_stream_cancels_its_request() -> None:
    with serve() as model:

        async def main() -> object:
            streamed = await stream(model, settings={"max_tokens": 60})
            await anext(streamed)
            await streamed.aclose()
            return streamed

        streamed = run(main())  # dropping it would cancel the request as well
        model.close()
        assert streamed is not None
        assert counters(model)["requests_cancelled"] == 1


def test_an_error_of_the_model_is_raised(model: VisionModel) -> None:
    with pytest.raises(ImageDecodeError):
        run(ask_model(model, Call("detect", b"no image", {"object": "mug"})))
