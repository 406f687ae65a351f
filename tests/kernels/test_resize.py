import importlib.util

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from photonlite.images.crops import CropSpec
from photonlite.kernels import resize
from photonlite.kernels.resize import cut_image
from photonlite.kernels.triton_utils import HAS_TRITON
from tests.conftest import Ended
from tests.kernels.images import case, noise, on_card, orders, pillows

SMALL = CropSpec(crop_size=24, patch_size=4, overlap_margin=1, max_crops=6)
PUBLIC = CropSpec(crop_size=378, patch_size=14, overlap_margin=4, max_crops=12)
SIDES = st.one_of(st.integers(1, 60), st.sampled_from([16, 24, 32, 200, 700]))


@given(width=SIDES, height=SIDES, seed=st.integers(0, 100), order=st.tuples(st.booleans(), st.booleans()))
@settings(max_examples=60)
def test_crops_are_pillows_to_the_last_bit(width: int, height: int, seed: int, order: tuple[bool, bool]) -> None:
    image = noise(width, height, seed)
    arguments = case(image, SMALL, order)

    cut_image(*arguments)

    assert torch.equal(arguments[5], pillows(image, SMALL, order))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long
@pytest.mark.program("tests.kernels.interpreter", "tests.kernels.interpreted_resize")
def test_the_kernels_give_pillows_crops_in_tritons_interpreter(ended: Ended) -> None:
    # The interpreter is chosen when Triton is imported, which another test of this process may have done.
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
def test_too_little_scratch_is_refused_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resize, "use_triton", lambda x: True)
    pixels, whole, sheet, columns, window, out, scratch = case(noise(60, 60), SMALL, (True, False))

    with pytest.raises(ValueError, match=rf"{scratch.numel() - 1} bytes: this image needs {scratch.numel()}"):
        cut_image(pixels, whole, sheet, columns, window, out, scratch[1:])
    with pytest.raises(ValueError, match="contiguous"):
        cut_image(pixels.transpose(0, 1), whole, sheet, columns, window, out, scratch)


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(
    ("width", "height"),
    [
        (640, 480),
        (480, 640),
        (1920, 1080),
        (850, 600),
        (378, 378),
        (1, 1),
        (31, 4000),
        (4000, 400),
        (323, 9001),
        (3000, 3000),
        (379, 378),
    ],
)
def test_the_kernels_give_pillows_crops_on_the_device(width: int, height: int) -> None:
    image = noise(width, height)
    for order in ((False, False), (True, True), orders(image, PUBLIC)):
        arguments = on_card(case(image, PUBLIC, order))

        cut_image(*arguments)

        assert torch.equal(arguments[5].cpu(), pillows(image, PUBLIC, order))
