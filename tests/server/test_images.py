import asyncio
import base64
import contextlib
import io
import random
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from PIL import Image

from photonlite.config import ImageLimits
from photonlite.errors import ImageTimeoutError, ImageTooLargeError, RequestCancelledError
from photonlite.images.isolation.pool import DecodePool
from photonlite.images.memory import needed_bytes
from photonlite.images.source import read_data_uri
from photonlite.server.errors import HttpError
from photonlite.server.images import RequestImages, _call_on, from_data_uri
from photonlite.server.limits.limiter import Hold, Permit
from photonlite.server.routes.realtime import read_frame
from tests.guard import GUARD
from tests.images.bombs import BOMBS
from tests.server.asgi import post
from tests.server.parts import DATA_URI, PNG, encoded, server
from tests.serving import run


def test_a_data_uri_is_read_whatever_type_it_declares() -> None:
    code = base64.b64encode(PNG).decode()
    for head in ("data:image/jpeg;base64,", "DATA:;BASE64,", "data:text/plain;charset=utf-8;base64,"):
        assert from_data_uri(head + code) == PNG
    assert from_data_uri(DATA_URI[:40] + "\r\n" + DATA_URI[40:]) == PNG


@pytest.mark.parametrize("value", ["", "a.png", "data:", "data:image/png;base64", f"data:{'x' * 300};base64,"])
def test_anything_but_a_data_uri_is_refused(value: str) -> None:
    with pytest.raises(HttpError) as error:
        from_data_uri(value)
    assert (error.value.status, error.value.code) == (400, "invalid_image_url")


@pytest.mark.parametrize("code", ["*", "ab", "=abc", "abc=d", "äöü"])
def test_damaged_base64_is_refused(code: str) -> None:
    with pytest.raises(HttpError) as error:
        from_data_uri("data:image/png;base64," + code)
    assert error.value.status == 400


def test_no_white_space_is_taken_out_of_wide_text() -> None:
    code, decoded = "QUJD\n" * 9 + "\N{GRINNING FACE}", []
    read_data_uri("data:image/png;base64," + code, lambda text: decoded.append(text) or b"")
    assert decoded == [code]  # as it came, and refused by any decoder


@pytest.fixture(scope="module")
def pool() -> Iterator[DecodePool]:
    pool = DecodePool(ImageLimits(decode_cpu_s=0.1, decode_cpu_s_per_megapixel=0.001), 1)
    yield pool
    pool.close()


class Ledger:
    """Takes the place of a permit: notes how much is held."""

    def __init__(self, most: int = 2**40) -> None:
        self.held: list[int] = [0]
        self.most = most

    def charge(self, size: int) -> None:
        if self.held[-1] + size > self.most:
            raise HttpError(429, "full", code="memory_full")
        self.held.append(self.held[-1] + size)

    def release(self, size: int) -> None:
        self.held.append(self.held[-1] - size)


@pytest.mark.parametrize("size", [(70_000, 1), (1, 70_000)])
def test_raw_frames_and_data_uris_have_the_limit_of_sides(size: tuple[int, int], pool: DecodePool) -> None:
    frame = b"RGB8" + struct.pack("<II", *size) + bytes(3 * size[0] * size[1])
    file = io.BytesIO()
    Image.new("RGB", size).save(file, "PNG")
    uri = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    for data in (read_frame(frame), from_data_uri(uri)):
        with pytest.raises(ImageTooLargeError, match="max_side"):
            opened(pool, data, Ledger())


def opened(pool: DecodePool | None, data: bytes, ledger: Ledger) -> Any:
    async def main() -> Any:
        with Hold(cast(Permit, ledger)) as hold:
            return await RequestImages(pool).open(data, hold)

    return run(main())


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF"])
def test_decoding_holds_its_peak_before_it_starts_and_the_pixels_after_it(kind: str, pool: DecodePool) -> None:
    data, ledger = encoded((300, 200), kind), Ledger()
    assert opened(pool, data, ledger).size == (300, 200)
    first, peak, kept, end = [size for size in ledger.held[1:] if size != ledger.held[0]] + [ledger.held[-1]]
    assert first == 2 * len(data)
    assert peak >= 2 * len(data) + (3 + 4) * 300 * 200
    assert (kept, end) == (7 * 300 * 200, 0)


def test_an_image_of_floats_counts_as_floats(pool: DecodePool) -> None:
    buffer, ledger = io.BytesIO(), Ledger()
    Image.new("F", (300, 200), 0.5).save(buffer, "TIFF")
    opened(pool, buffer.getvalue(), ledger)
    assert max(ledger.held) >= 2 * len(buffer.getvalue()) + 16 * 300 * 200


def test_an_image_without_room_is_refused_before_it_is_decoded(pool: DecodePool) -> None:
    data = encoded((300, 200))
    for most in (len(data), 2 * len(data) + 1000):
        ledger = Ledger(most)
        with pytest.raises(HttpError) as error:
            opened(pool, data, ledger)
        assert (error.value.code, ledger.held[-1]) == ("memory_full", 0)
    assert opened(pool, data, Ledger()).size == (300, 200)


@pytest.mark.parametrize("name", ["jpeg_exif_segments", "jpeg_empty_scans"])
def test_a_hostile_image_holds_nothing_once_it_has_its_error(name: str, pool: DecodePool) -> None:
    ledger = Ledger()
    with pytest.raises(ImageTimeoutError):
        opened(pool, BOMBS[name](), ledger)
    assert ledger.held[-1] == 0


def test_without_a_pool_the_model_decodes_and_the_same_memory_is_held() -> None:
    data, ledger = encoded((300, 200)), Ledger()
    assert opened(None, data, ledger) is data
    assert max(ledger.held) == needed_bytes(data)


def test_an_ended_hold_refuses_more_bytes() -> None:
    ledger = Ledger()
    with Hold(cast(Permit, ledger)) as hold:
        hold.resize(10)
    assert ledger.held[-1] == 0
    with pytest.raises(HttpError) as error:  # the worker was at the image when its client left
        hold.resize(20)
    assert (error.value.status, ledger.held[-1]) == (499, 0)


def test_a_thread_does_not_wait_for_an_ended_event_loop() -> None:
    loop = asyncio.new_event_loop()
    asking = threading.Thread(target=loop.call_soon, args=(loop.stop,))
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(_call_on, loop, lambda: None)  # the loop never runs
        asking.start()
        asking.join()
        loop.close()
        assert isinstance(future.exception(GUARD), RuntimeError | RequestCancelledError)


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_the_memory_of_an_image_counts(kind: str) -> None:
    data = encoded((800, 600), kind)
    needed = needed_bytes(data)
    for limit, status in ((2 * len(data) + needed, 200), (needed - 1, 413)):
        answer = run(post(server(max_open_bytes=limit), "/v1/caption", data, {"content-type": "image/x"}))
        assert answer.status == status


def test_base64_is_read_as_the_standard_library_reads_it_or_refused() -> None:
    chance = random.Random(3)
    read = 0
    for _ in range(2000):
        code = base64.b64encode(chance.randbytes(chance.randrange(40))).decode()
        assert from_data_uri("data:image/png;base64," + code) == base64.b64decode(code)
        place = chance.randrange(len(code) + 1)
        code = code[:place] + chance.choice("=-_*.é\0A") + code[place + chance.randrange(2) :]
        with contextlib.suppress(HttpError):
            data = from_data_uri("data:image/png;base64," + code)
            read += 1
            assert data == base64.b64decode(code, validate=True)
    assert read > 50
