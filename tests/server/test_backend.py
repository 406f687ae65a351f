import io
from collections.abc import Iterator
from typing import Any

import pytest

from photonlite.api import VisionModel
from photonlite.errors import ImageDecodeError
from photonlite.server.backend import Call, ModelBackend
from tests.serving import arguments, counters, make_image, run, serve


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
    result = run(ModelBackend(model).run(call))
    assert result == getattr(model, skill)(png(), **more)
    assert result.metrics.output_tokens > 0


def test_a_stream_gives_the_text_and_then_what_is_known_about_it(model: VisionModel) -> None:
    async def main() -> tuple[str, object]:
        stream = await ModelBackend(model).stream(Call("caption", png(), {**SHORT, "length": "short"}))
        assert stream.result.metrics is None  # type: ignore[attr-defined]
        text = "".join([piece async for piece in stream])
        await stream.aclose()
        return text, stream.result.finish_reason  # type: ignore[attr-defined]

    text, reason = run(main())
    whole = model.caption(png(), "short", **SHORT)
    assert (text, reason) == (whole["caption"], whole.finish_reason)


def test_closing_a_stream_cancels_its_request() -> None:
    with serve() as model:

        async def main() -> object:
            stream = await ModelBackend(model).stream(Call("caption", png(), {"settings": {"max_tokens": 60}}))
            await anext(stream)
            await stream.aclose()
            return stream

        stream = run(main())  # to let go of it would cancel the request as well
        model.close()
        assert stream is not None
        assert counters(model)["requests_cancelled"] == 1


def test_what_the_model_raises_is_raised(model: VisionModel) -> None:
    with pytest.raises(ImageDecodeError):
        run(ModelBackend(model).run(Call("detect", b"no image", {"object": "mug"})))


def test_it_tells_what_the_model_is(model: VisionModel) -> None:
    backend = ModelBackend(model)
    assert (backend.name, backend.skills, backend.alive) == (model.name, model.skills, True)
    assert backend.metrics()["counters"]["requests_submitted"] >= 0
