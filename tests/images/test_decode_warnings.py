import io
import warnings
from collections.abc import Iterator

import pytest
from PIL import Image, TiffImagePlugin

from photonlite.errors import ImageDecodeError
from photonlite.images.decode import ignore_pillow_warnings, load_image


def decode_damaged() -> None:
    """Hand in images of which Pillow warns, of each in words of its own."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "TIFF")
    for size in (11, 13, 15):
        with pytest.raises(ImageDecodeError):
            load_image(buffer.getvalue()[:size])


def remembered() -> int:
    return sum(isinstance(key, tuple) for key in getattr(TiffImagePlugin, "__warningregistry__", ()))


@pytest.fixture(autouse=True)
def _filters_of_a_program() -> Iterator[None]:
    with warnings.catch_warnings(record=True):  # what is shown, is shown here
        warnings.simplefilter("default")
        getattr(TiffImagePlugin, "__warningregistry__", {}).clear()
        yield


def test_without_it_each_damaged_image_is_remembered() -> None:
    decode_damaged()

    assert remembered() >= 3


def test_damaged_images_leave_nothing_behind() -> None:
    ignore_pillow_warnings()

    decode_damaged()

    assert remembered() == 0


def test_warnings_of_others_are_shown() -> None:
    ignore_pillow_warnings()

    with pytest.warns(UserWarning, match="mine"):
        warnings.warn("mine", stacklevel=1)
