import base64
import json
import random

from bench.campaign.request_mutations import PNG_URI, TEMPLATES, _uri, mutate
from photonlite.config import ImageLimits
from photonlite.images.decode import image_size, load_image


def draw(count):
    return [mutate(random.Random(number)) for number in range(count)]


def test_a_source_of_chance_is_one_request():
    assert draw(50) == draw(50)
    assert len({mutation.data for mutation in draw(200)}) > 100


def test_the_image_of_the_templates_can_be_read():
    assert load_image(base64.b64decode(PNG_URI.partition(",")[2])).size == (8, 6)


def test_some_requests_stay_whole_and_some_lose_head_or_body():
    drawn = draw(300)
    whole = [mutation for mutation in drawn if mutation.done.endswith("nothing")]
    assert len(whole) > 20
    for mutation in whole:
        head, _, body = mutation.data.partition(b"\r\n\r\n")
        path = head.split(b" ")[1].decode()
        assert (path, json.loads(body)) in TEMPLATES
        assert f"Content-Length: {len(body)}".encode() in head
    assert 20 < sum(mutation.head_changed for mutation in drawn) < 120
    for word in ("value", "bytes", "method", "path", "header missing", "header added"):
        assert any(word in mutation.done for mutation in drawn), word


def test_some_requests_ask_for_much():
    drawn = draw(1000)
    for kind in ("names and tiles", "thin image", "claimed size", "deep or long", "chunked"):
        assert sum(kind in mutation.done for mutation in drawn) > 10, kind
    assert any(mutation.data.count(b"[") > 1000 for mutation in drawn)
    assert any(mutation.data.count(b"0,") > 100_000 for mutation in drawn)


def test_an_image_claims_another_size_with_the_right_checksum():
    data = base64.b64decode(_uri(claimed=(7, 40_000)).partition(",")[2])
    assert image_size(data, ImageLimits()) == (7, 40_000)


def test_a_body_in_chunks_is_whole():
    for mutation in draw(1000):
        head, _, body = mutation.data.partition(b"\r\n\r\n")
        if mutation.done.endswith(": chunked") and body.endswith(b"\r\n0\r\n\r\n"):
            joined = b""
            while (line := body.partition(b"\r\n"))[0] != b"0":
                size = int(line[0].partition(b";")[0], 16)
                joined, body = joined + line[2][:size], line[2][size + 2 :]
            path = head.split(b" ")[1].decode()
            assert (path, json.loads(joined)) in TEMPLATES
            assert b"Content-Length" not in head


def test_templates_are_left_alone():
    before = json.dumps(TEMPLATES)
    draw(300)
    assert json.dumps(TEMPLATES) == before
