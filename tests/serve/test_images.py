import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from bench.serve.images import Stock, jpegs, json_request, padded, raw_request


def pixels(jpeg):
    with Image.open(io.BytesIO(jpeg)) as image:
        return np.asarray(image.convert("RGB"))


def test_images_show_one_scene_and_no_two_are_alike():
    made = jpegs((320, 240), 20) + jpegs((320, 240), 3, first=1 << 19)
    decoded = [pixels(one) for one in made]
    assert all(one.shape == (240, 320, 3) for one in decoded)
    assert len({one.tobytes() for one in decoded}) == len(made)
    assert all(np.array_equal(one[32:], decoded[0][32:]) for one in decoded)
    assert jpegs((320, 240), 1) == made[:1]


@pytest.mark.parametrize("size", [1, 20_000, 70_000, 200_000, 200_001, 200_002, 200_003])
def test_padding_gives_the_size_and_leaves_the_image_as_it_is(size):
    jpeg = jpegs((320, 240), 1)[0]
    result = padded(jpeg, size)
    assert max(size, len(jpeg)) - 3 <= len(result) <= max(size, len(jpeg))
    assert np.array_equal(pixels(result), pixels(jpeg))


def test_requests_say_what_they_carry():
    head, _, body = json_request("/v1/detect", b"picture", {"object": "mug"}).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/detect HTTP/1.1\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    asked = json.loads(body)
    assert base64.b64decode(asked.pop("image_url").partition(",")[2]) == b"picture"
    assert asked == {"object": "mug"}
    raw = raw_request("/v1/detect?object=mug", b"picture")
    assert raw.endswith(b"Content-Type: image/jpeg\r\nContent-Length: 7\r\n\r\npicture")


def test_a_stock_gives_what_was_refused_again_before_what_was_answered():
    stock = Stock([b"a", b"b", b"c"])
    assert [stock.take(), stock.take()] == [b"a", b"b"]
    stock.give_back(b"a", answered=True)
    stock.give_back(b"b", answered=False)
    assert [stock.take(), stock.take()] == [b"c", b"b"]
    assert stock.rounds == 0
    assert stock.take() == b"a"
    assert stock.rounds == 1
    with pytest.raises(RuntimeError, match="make more images"):
        stock.take()
