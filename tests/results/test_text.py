import asyncio
import gc
import json
import pickle

import numpy as np
import pytest
from PIL import Image

from photonlite.errors import InputError
from photonlite.results import Answer, Caption, Metrics

METRICS = Metrics(decode_s=0.5, output_tokens=3)


def test_stream_yields_the_pieces_once_in_order():
    result = Caption(iter(["A ", "mug", "."]))
    assert list(result["caption"]) == ["A ", "mug", "."]
    assert list(result["caption"]) == []


def test_metrics_of_a_stream_are_set_when_it_ends():
    calls = []

    def on_end():
        calls.append(1)
        return METRICS, "stop"

    result = Answer(iter(["Two", "."]), on_end=on_end)
    pieces = result["answer"]
    next(pieces)
    next(pieces)
    assert (result.metrics, result.finish_reason) == (None, None)
    assert next(pieces, "end") == "end"
    assert (result.metrics, result.finish_reason) == (METRICS, "stop")
    assert next(pieces, "end") == "end"
    assert calls == [1]


def test_text_is_whole_after_some_pieces_were_taken():
    result = Caption(iter(["A ", "mug", "."]), on_end=lambda: (METRICS, "stop"))
    assert next(result["caption"]) == "A "
    assert result.text == "A mug."
    assert result.text == "A mug."
    assert result.metrics == METRICS
    assert Caption("A mug.").text == "A mug."


def test_an_error_of_the_source_is_raised_and_leaves_the_metrics_unset():
    def source():
        yield "A "
        raise RuntimeError("the device went away")

    result = Caption(source(), on_end=lambda: (METRICS, "stop"))
    with pytest.raises(RuntimeError, match="went away"):
        list(result["caption"])
    assert result.metrics is None


def test_an_abandoned_stream_closes_its_source_at_once():
    closed = []

    def source():
        try:
            yield "A "
            yield "mug"
        finally:
            closed.append(True)

    gc.disable()  # closing must not wait for the collector of cycles
    try:
        result = Caption(source(), on_end=lambda: (METRICS, "stop"))
        next(result["caption"])
        del result
        assert closed == [True]
    finally:
        gc.enable()


def test_a_closed_stream_yields_nothing():
    result = Caption(iter(["A ", "mug"]), on_end=lambda: (METRICS, "stop"))
    result["caption"].close()
    assert list(result["caption"]) == []
    assert result.metrics is None


def test_repr_shows_text_and_does_not_consume_a_stream():
    assert repr(Caption("A mug.")) == "Caption('A mug.')"
    assert repr(Answer("2", {"text": "I see two."})) == "Answer('2', reasoning={'text': 'I see two.'})"
    result = Caption(iter(["A ", "mug"]))
    assert repr(result) == "Caption(<stream>)"
    assert result.text == "A mug"
    assert repr(result) == "Caption(<stream: 'A mug'>)"


def test_a_notebook_prints_a_stream_as_it_comes_and_other_texts_by_their_repr(capsys):
    result = Caption(iter(["A ", "mug", "."]))
    assert next(result["caption"]) == "A "
    result._ipython_display_()
    assert capsys.readouterr().out == "A mug.\n"
    assert result.text == "A mug."
    for shown_by_repr in (result, Caption("A mug."), Answer(2, text="2")):
        with pytest.raises(NotImplementedError):
            shown_by_repr._ipython_display_()


@pytest.mark.parametrize("size", [(16, 16), (320, 200), (4000, 3000)])
def test_plot_keeps_the_image_and_writes_below_it(size):
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    page = Caption("A mug on a desk.").plot(noise)
    left = (page.width - size[0]) // 2
    assert np.array_equal(np.asarray(page)[: size[1], left : left + size[0]], noise)
    strip = np.asarray(page.convert("L"))[size[1] :]
    assert strip.min() < 60
    assert np.median(strip) > 200


def test_plot_of_a_longer_text_is_taller_and_not_wider():
    image = Image.new("RGB", (320, 200))
    short, long = Answer("Two.").plot(image), Answer("Two mugs and a lamp. " * 10).plot(image)
    assert long.height > short.height + 30
    assert long.width == short.width == 320


def test_plot_of_a_stream_writes_the_whole_text():
    image = Image.new("RGB", (320, 200))
    streamed = Caption(iter(["A mug ", "on a desk."])).plot(image)
    assert streamed.tobytes() == Caption("A mug on a desk.").plot(image).tobytes()


async def awaited(*pieces):
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece


def test_an_async_stream_yields_the_pieces_once_and_then_sets_the_metrics():
    async def main():
        result = Caption(awaited("A ", "mug"), on_end=lambda: (METRICS, "stop"))
        assert repr(result) == "Caption(<stream>)"
        first = await anext(result["caption"])
        assert (result.metrics, result.finish_reason) == (None, None)
        rest = [piece async for piece in result["caption"]]
        assert (first, rest) == ("A ", ["mug"])
        assert [piece async for piece in result["caption"]] == []
        return result

    result = asyncio.run(main())
    assert (result.metrics, result.finish_reason) == (METRICS, "stop")
    assert result.text == "A mug"


def test_the_text_of_an_async_stream_must_be_awaited():
    async def main():
        result = Answer(awaited("A ", "mug"))
        await anext(result["answer"])
        with pytest.raises(InputError, match=r"await result\.atext\(\)"):
            result.plot(Image.new("RGB", (320, 200)))
        return await result.atext(), await Answer("Two.").atext(), await Caption(iter(["A", "B"])).atext()

    assert asyncio.run(main()) == ("A mug", "Two.", "AB")


def test_a_closed_async_stream_releases_its_source_and_yields_nothing():
    async def main():
        source = awaited("A ", "mug")
        result = Caption(source, on_end=lambda: (METRICS, "stop"))
        held = gc.get_referrers(source)
        await result["caption"].aclose()
        assert len(gc.get_referrers(source)) < len(held)
        return result, [piece async for piece in result["caption"]]

    result, pieces = asyncio.run(main())
    assert (pieces, result.metrics) == ([], None)


def test_a_typed_answer_is_its_object_and_its_text_is_the_json():
    result = Answer({"count": 2}, text='{"count":2}', finish_reason="stop")
    assert result == {"answer": {"count": 2}, "text": '{"count":2}'}
    assert (result.text, result.value) == ('{"count":2}', {"count": 2})
    assert repr(result) == "Answer({'count': 2})"
    assert pickle.loads(pickle.dumps(result)) == result


def test_a_typed_answer_that_is_an_iterator_is_not_a_stream():
    result = Answer(iter([1, 2]), text="[1,2]")
    assert result.text == "[1,2]"
    assert list(result.value) == [1, 2]


def test_scores_are_returned_beside_the_choice():
    result = Answer("yes", scores={"yes": 0.75, "no": 0.25})
    assert result == {"answer": "yes", "scores": {"yes": 0.75, "no": 0.25}}
    assert (result.text, result.value) == ("yes", "yes")


def test_value_of_a_stream_is_read_from_its_whole_text():
    result = Answer(iter(["[1,", "2]"]), read=json.loads)
    assert next(result["answer"]) == "[1,"
    assert result.value == [1, 2]
    assert Answer(iter(["a", "b"])).value == "ab"


def test_value_of_an_awaited_stream_is_awaited():
    async def pieces():
        yield "[1,"
        yield "2]"

    async def main():
        result = Answer(pieces(), read=json.loads)
        with pytest.raises(InputError, match="atext"):
            _ = result.value
        return await result.avalue(), await Answer("b").avalue()

    assert asyncio.run(main()) == ([1, 2], "b")
