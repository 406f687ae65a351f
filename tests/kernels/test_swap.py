import importlib.util

import pytest
import torch

from photonlite.kernels.reference import swap as reference
from photonlite.kernels.swap import gather_pages, scatter_pages
from photonlite.kernels.triton_utils import HAS_TRITON
from tests.conftest import Ended
from tests.kernels.pages import random_caches


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long
@pytest.mark.program("tests.kernels.interpreter", "tests.kernels.interpreted_swap")
def test_the_kernels_agree_with_the_reference_in_tritons_interpreter(ended: Ended) -> None:
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout


def test_pages_go_to_staging_and_to_other_pages_word_by_word() -> None:
    keys, values, pages = random_caches(3, 10, 4)
    staging = torch.zeros(4, 2, 3, 10, dtype=torch.int32)
    gather_pages(keys, values, pages, staging)

    for place, page in enumerate(pages.tolist()):
        assert torch.equal(staging[place, 0], keys[:, page])
        assert torch.equal(staging[place, 1], values[:, page])

    found, others, targets = torch.zeros_like(keys), torch.zeros_like(values), torch.tensor([8, 0, 3, 5])
    scatter_pages(staging, targets, found, others)
    assert torch.equal(found[:, targets], keys[:, pages])
    assert torch.equal(others[:, targets], values[:, pages])
    assert not found[:, [1, 2, 4, 6, 7]].any()


@pytest.mark.gpu
@pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
@pytest.mark.parametrize(("layers", "words"), [(24, 16_384), (2, 24), (5, 4100)])
def test_the_kernels_agree_with_the_reference_on_the_device(layers: int, words: int) -> None:
    keys, values, pages = random_caches(layers, words, 7, "cuda")
    found, wanted = (torch.zeros(7, 2, layers, words, dtype=torch.int32, device="cuda") for _ in range(2))
    gather_pages(keys, values, pages, found)
    reference.gather_pages(keys, values, pages, wanted)
    assert torch.equal(found, wanted)

    back, expected = (keys.clone(), values.clone()), (keys.clone(), values.clone())
    scatter_pages(found + 1, pages, *back)
    reference.scatter_pages(found + 1, pages, *expected)
    assert all(map(torch.equal, back, expected))
