from pathlib import Path

import pytest

from photonlite.errors import CheckpointError
from photonlite.models.matching import check_tensors
from photonlite.models.shards import TensorInfo

FILE = Path("folder/model.safetensors")
SHAPES = {"patches": (8, 12), "head": (5, 8)}
CONVOLUTION = {"patches": (8, 3, 2, 2)}


def stored(**shapes: tuple[int, ...]) -> dict[str, TensorInfo]:
    return {name: TensorInfo(f"model.{name}", shape, "BF16", FILE) for name, shape in shapes.items()}


def test_tensors_of_the_shapes_wanted_pass_and_one_may_be_a_convolution() -> None:
    check_tensors(stored(**SHAPES), SHAPES)
    check_tensors(stored(**SHAPES), SHAPES, CONVOLUTION)
    check_tensors(stored(patches=(8, 3, 2, 2), head=(5, 8)), SHAPES, CONVOLUTION)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (stored(head=(5, 8)), "1 missing: patches"),
        (stored(**SHAPES, other=(1,)), "1 unexpected: model.other"),
        (stored(patches=(8, 3, 2, 2), head=(5, 8)), r"model.patches is \[8, 3, 2, 2\] where \[8, 12\] is expected"),
        (stored(patches=(8, 12), head=()), r"model.head is \[\] where \[5, 8\] is expected"),
        ({}, "the tensors in the checkpoint do not fit its config.json: 2 missing"),
    ],
)
def test_what_does_not_fit_is_named(found: dict[str, TensorInfo], told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        check_tensors(found, SHAPES)


@pytest.mark.parametrize("shape", [(), (8, 2, 2, 3), (8, 3, 4)])
def test_numbers_in_another_order_are_no_convolution(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        CheckpointError, match=rf"model.patches is \[{', '.join(map(str, shape))}\] where \[8, 3, 2, 2\]"
    ):
        check_tensors(stored(patches=shape, head=(5, 8)), SHAPES, CONVOLUTION)
