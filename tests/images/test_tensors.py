import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import photonlite
from photonlite.api import VisionModel
from photonlite.errors import ImageShapeError
from photonlite.images.decode import file_bytes, load_image
from photonlite.images.tensors import is_tensor, tensor_to_array
from tests.serving import IMAGE, serve

ASSETS = Path(__file__).parents[2] / "assets"
ROWS = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (6, 9, 3), dtype=np.uint8))  # channels last
FIRST = ROWS.permute(2, 0, 1)


class Picture(torch.Tensor):
    """As torchvision's."""


@pytest.mark.parametrize(
    "tensor",
    [
        ROWS,
        FIRST,
        FIRST.contiguous(),
        FIRST / 255,
        (FIRST / 255).double(),
        (FIRST / 255).half(),
        (FIRST / 255).requires_grad_(),
        torch.nn.Parameter(FIRST / 255),
        FIRST.as_subclass(Picture),
        FIRST.int().mul(257).to(torch.uint16),
        torch.cat([FIRST, FIRST[:1]]),
        torch.cat([ROWS, ROWS[..., :1]], -1),
        FIRST.expand(3, 6, 9).flip(0).flip(0),
    ],
    ids=str,
)
def test_a_tensor_is_the_image_it_holds(tensor: torch.Tensor) -> None:
    np.testing.assert_array_equal(np.asarray(load_image(tensor)), ROWS.numpy())
    assert file_bytes(tensor) is None


def test_bfloat16_is_read_as_closely_as_it_tells() -> None:
    found = np.asarray(load_image((FIRST / 255).bfloat16())).astype(int)
    assert np.abs(found - ROWS.numpy()).max() <= 1


@pytest.mark.parametrize("grey", [ROWS[..., 0], FIRST[:1], ROWS[..., :1]])
def test_grey_tensors(grey: torch.Tensor) -> None:
    np.testing.assert_array_equal(np.asarray(load_image(grey)), ROWS.numpy()[..., :1].repeat(3, 2))


def test_a_mask_is_black_and_white() -> None:
    np.testing.assert_array_equal(np.asarray(load_image(FIRST[0] > 99))[..., 0], (ROWS[..., 0] > 99).numpy() * 255)


@pytest.mark.parametrize(
    ("shape", "size"), [((3, 5, 3), (3, 5)), ((1, 7, 4), (4, 7)), ((4, 8, 1), (1, 8)), ((5, 8, 3), (8, 5))]
)
def test_where_both_ends_may_be_channels_the_first_is(shape: tuple[int, ...], size: tuple[int, int]) -> None:
    assert load_image(torch.zeros(shape, dtype=torch.uint8)).size == size


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.zeros(2, 3, 6, 9), r"shape \[2, 3, 6, 9\] is not an image.*one image at a time: tensor\[0\]"),
        (torch.zeros(6, 9, 2), r"shape \[6, 9, 2\] is not an image: hand in \[3, height, width\]"),
        (torch.zeros(()), "is not an image"),
        (torch.zeros(3, 0, 9), "has no pixels"),
        (torch.zeros(3, 6, 9, dtype=torch.int64), "dtype int64 is not an image"),
        (torch.zeros(3, 6, 9, dtype=torch.complex64), "dtype complex64 is not an image"),
        (torch.full((3, 6, 9), 255.0), "outside 0 to 1"),
        (torch.full((3, 6, 9), -1.0), "outside 0 to 1"),
        (torch.full((3, 6, 9), torch.nan), "NaN or infinity"),
        (torch.zeros(6, 9).to_sparse(), r"values of a tensor of shape \[6, 9\] cannot be read"),
        (torch.zeros(3, 6, 9, device="meta"), "cannot be read"),
    ],
    ids=str,
)
def test_other_tensors_are_refused(tensor: torch.Tensor, reason: str) -> None:
    with pytest.raises(ImageShapeError, match=reason):
        load_image(tensor)


def test_arrays_and_names_are_no_tensors() -> None:
    class Tensor:
        pass

    assert [is_tensor(each) for each in (ROWS, ROWS.numpy(), "torch", Tensor(), torch)] == [True] + [False] * 4


def test_a_tensor_on_a_cpu_is_not_copied() -> None:
    assert np.shares_memory(tensor_to_array(ROWS), ROWS.numpy())


@pytest.fixture(scope="module")
def model() -> Any:
    with serve() as model:
        yield model


def test_a_model_takes_tensors(model: VisionModel) -> None:
    tensor = torch.from_numpy(np.array(IMAGE))
    wanted = model.detect(IMAGE, "mug")

    assert model.detect(tensor, "mug") == wanted
    assert model.batch([{"skill": "detect", "image": tensor.permute(2, 0, 1) / 255, "object": "mug"}]) == [wanted]
    with pytest.raises(ImageShapeError, match="outside 0 to 1"):
        model.detect(tensor.float(), "mug")


def test_a_tensor_is_read_at_the_call(model: VisionModel) -> None:
    class Unready(torch.Tensor):
        def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
            raise RuntimeError("the stream of another thread")

    with pytest.raises(ImageShapeError, match="the stream of another thread"):
        model._building.detect(ROWS.as_subclass(Unready), "mug")  # a task, before anything is asked


def test_arrays_do_without_torch() -> None:
    code = """
import sys
import numpy as np
from photonlite.images.decode import load_image
assert load_image(np.zeros((4, 5, 3), np.uint8)).size == (5, 4)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_tensor_on_the_card_is_answered_as_the_file_it_came_from(device: str) -> None:
    desk = ASSETS / "desk.png"
    tensor = torch.from_numpy(np.asarray(load_image(desk)).copy()).permute(2, 0, 1).cuda()
    np.testing.assert_array_equal(np.asarray(load_image(tensor / 255)), np.asarray(load_image(desk)))
    with photonlite.load(device=device) as model:
        boxes = [model.detect(image, "banana").boxes for image in (desk, tensor, tensor.float() / 255)]
        assert len(boxes[0]) == 2
        assert all(one.tolist() == boxes[0].tolist() for one in boxes[1:])
        placed = model.point(tensor, ["banana", "cup"], min_score=0.3)
        assert placed.labels.count("banana") == 2
