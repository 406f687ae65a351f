"""Host memory that processes map, here twice in one."""

import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from photonlite.runner.memory import DeviceMemory
from photonlite.runner.ranks.memory import SharedMemory, gather_memory
from tests.ranks import on_ranks
from tests.tiny import CPU


@pytest.fixture
def file() -> Iterator[int]:
    made = os.memfd_create("test")
    yield made
    os.close(made)


def test_both_sides_see_the_same_arrays_which_begin_as_zeros(file: int) -> None:
    filled, read = SharedMemory(file, page_lock=False), SharedMemory(file, page_lock=False)
    shapes = [((3, 5), np.int32), ((0,), np.int32), ((5000,), np.float32), ((2, 2), np.int32)]
    ours = [filled.array(shape, kind) for shape, kind in shapes]
    theirs = [read.array(shape, kind) for shape, kind in shapes]
    assert not any(array.any() for array in theirs)

    for number, array in enumerate(ours, 1):
        array[...] = number

    for number, (array, (shape, kind)) in enumerate(zip(theirs, shapes, strict=True), 1):
        assert (array.shape, array.dtype) == (shape, kind)
        assert (array == number).all()


def test_every_rank_learns_what_each_card_has() -> None:
    own = [DeviceMemory(total=100 + rank, free=50 - rank, fraction=0.9, weights=rank) for rank in range(2)]

    found = on_ranks(2, lambda ranks: gather_memory(ranks, CPU, own[ranks.rank], 7 * ranks.rank))

    assert found == [[(own[0], 0), (own[1], 7)]] * 2
    assert torch.is_inference_mode_enabled() is False
