import pytest

from bench.serve.images import jpegs, json_request
from bench.serve.overhead import OverheadError, waits
from tests.server.fake import METRICS, FakeModel
from tests.server.live import live


def requests(count):
    return [json_request("/v1/detect", image, {"object": "mug"}) for image in jpegs((64, 48), count)]


def test_the_overhead_is_what_a_client_waits_beyond_the_engines_time():
    with live() as server:
        found = waits(server.host, server.port, requests(3), pause_s=0.0)
    engine = METRICS.time_to_first_token_s + METRICS.decode_s
    assert [one.engine_s for one in found] == [engine] * 3
    assert all(one.overhead_s == one.whole_s - engine for one in found)
    assert all(one.whole_s > 0 for one in found)


def test_one_connection_serves_all_requests():
    fake = FakeModel()
    with live(fake, max_connections=1) as server:
        assert len(waits(server.host, server.port, requests(5), pause_s=0.0)) == 5
    assert len(fake.calls) == 5


def test_a_refusal_is_no_figure():
    with live(max_body_bytes=10) as server, pytest.raises(OverheadError, match="413"):
        waits(server.host, server.port, requests(1), pause_s=0.0)


def test_an_answer_without_metrics_is_no_figure():
    fake = FakeModel()
    fake.results["detect"] = {"objects": []}
    with live(fake) as server, pytest.raises(TypeError):
        waits(server.host, server.port, requests(1), pause_s=0.0)
