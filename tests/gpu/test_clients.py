import asyncio
import math

import pytest
from PIL import Image

from bench.gpu.clients import (
    STAGES,
    Visit,
    load_table,
    stages,
    stages_row,
    stages_table,
    visit_with_coroutines,
    visit_with_threads,
)
from photonlite.observe.trace import Span
from photonlite.results import Metrics

METRICS = Metrics(preprocess_s=0.5, queue_s=0.25)


def spans_from(start):
    """Crops are there after 2 s; encode 4, prefill 1 after a gap of 1, finalize 0.5, and one step of 1.5 after 0.25."""
    marks = [("encode", 2.0, 6.0), ("prefill", 7.0, 8.0), ("finalize", 8.0, 8.5), ("forward", 8.75, 10.25)]
    return [
        Span("upload", "crops", start + 1.5, start + 2.0, {}),
        *(Span("compute", name, start + begin, start + end, {}) for name, begin, end in marks),
    ]


def test_the_stages_of_a_request_add_up_to_what_its_client_waits():
    one = Visit(100.0, 111.0, METRICS)
    found = stages(one, spans_from(100.0))

    assert dict(zip(STAGES, found, strict=True)) == pytest.approx(
        {
            "until the encoder begins": 2.0,
            "encode": 4.0,
            "gap": 1.0,
            "prefill": 1.0,
            "decode: device": 2.0,
            "decode: gaps": 0.25,
            "until the caller": 0.75,
        }
    )
    assert sum(found) == pytest.approx(one.seconds)


def test_a_request_has_the_spans_of_its_own_time():
    spans = [*spans_from(0.0), *spans_from(20.0)]
    visits = [Visit(0.0, 11.0, METRICS), Visit(20.0, 31.0, METRICS)]
    assert stages(visits[0], spans) == pytest.approx(stages(visits[1], spans))

    row = stages_row("two", visits, spans)
    assert row[:4] == ["two", "11000.00", "500.00", "2000.00"]
    assert "until the caller" in stages_table([row])


def test_a_request_without_an_encode_launch_is_not_split():
    assert all(map(math.isnan, stages(Visit(0.0, 11.0, METRICS), spans_from(0.0)[3:])))


def test_the_load_is_told_for_each_request():
    text = load_table([Visit(0.0, 11.0, METRICS)] * 2, spans_from(0.0))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line]

    assert ["compute", "encode", "2000.000", "0.50", "4000.000"] in cells
    assert "2 requests" in text
    assert "queue 250.0" in text
    assert "84.8%" in text  # of 2 to 10.25 s all but 1.25


@pytest.mark.parametrize("clients", [1, 5])
@pytest.mark.parametrize("kind", ["threads", "coroutines"])
def test_clients_ask_about_every_image_once(clients, kind):
    images = [Image.new("RGB", (1, 1), (number, 0, 0)) for number in range(23)]
    asked = []

    def ask(model, image):
        asked.append(image.getpixel((0, 0))[0])
        return METRICS

    async def ask_later(model, image):
        await asyncio.sleep(0)
        return ask(model, image)

    if kind == "threads":
        visits = visit_with_threads(None, ask, images, clients)
    else:
        visits = visit_with_coroutines(None, ask_later, images, clients)

    assert sorted(asked) == list(range(23))
    assert len(visits) == 23
    assert all(one.began <= one.ended for one in visits)


def test_a_request_that_fails_on_a_thread_fails_the_run():
    def ask(model, image):
        raise RuntimeError("the card is gone")

    with pytest.raises(RuntimeError, match="the card is gone"):
        visit_with_threads(None, ask, [Image.new("RGB", (1, 1))], 2)
