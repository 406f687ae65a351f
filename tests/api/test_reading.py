"""Several images of one request: each source is prepared once, and what cannot fit is refused before decoding."""

import dataclasses
from typing import Any

import pytest

from photonlite.errors import CapacityError, ImageDecodeError
from photonlite.images.pool import PreparedImage
from tests.api.fakes import BYTES, ROOM, FakeEngine, Source, make_session, task


def several(*images: Source, **more: Any) -> Any:
    return dataclasses.replace(task(), images=images, **more)


def test_a_source_that_stands_in_several_places_is_prepared_once() -> None:
    first, second = Source(), Source()
    session = make_session(FakeEngine())

    handle = session._start(several(first, second, first))

    assert (first.prepared, second.prepared, first.measured) == (1, 1, 1)
    assert handle.images[0] is handle.images[2] is handle.image is not handle.images[1]
    assert session.gate.held == 2 * BYTES


@pytest.mark.parametrize(("header", "prepared"), [((6, 4), 0), (None, 1)])
def test_the_context_is_checked_before_decoding_where_headers_tell_sizes(header: Any, prepared: int) -> None:
    image, engine, asked = Source(header=header), FakeEngine(), []

    def fits(sizes: Any) -> None:
        asked.append(list(sizes))
        raise CapacityError("too long")

    handle = make_session(engine)._start(several(image, image, fits=fits))

    with pytest.raises(CapacityError, match="too long"):
        handle.result()
    assert asked == [[(6, 4), (6, 4)]]
    assert (image.prepared, engine.sequences) == (prepared, [])


@pytest.mark.parametrize(("header", "prepared"), [((6, 4), 0), (None, 2)])
def test_images_that_can_never_wait_together_are_refused_with_the_numbers(header: Any, prepared: int) -> None:
    images = [Source(header=header), Source(header=header)]
    session = make_session(FakeEngine(), config=ROOM)

    handle = session._start(several(*images))

    with pytest.raises(CapacityError, match=r"2 images of the request take 144 bytes .* limit of 100 .*max_prepared"):
        handle.result()
    assert (sum(image.prepared for image in images), session.gate.held) == (prepared, 0)


@pytest.mark.parametrize(("count", "message"), [(1, "^damaged"), (3, "^image 2 of 3: damaged")])
def test_an_error_of_several_images_names_the_place(count: int, message: str) -> None:
    def fail() -> PreparedImage:
        raise ImageDecodeError("damaged")

    images = [Source(fail)] if count == 1 else [Source(), Source(fail), Source()]
    handle = make_session(FakeEngine())._start(several(*images))

    with pytest.raises(ImageDecodeError, match=message):
        handle.result()
