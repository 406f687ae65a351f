import importlib.util

import pytest
import torch

from photonlite.kernels.embedding import embed_pending
from photonlite.kernels.reference import embedding as reference
from photonlite.kernels.triton_utils import HAS_TRITON
from tests.conftest import Ended
from tests.kernels.inputs import random_case


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long
@pytest.mark.program("tests.kernels.interpreter", "tests.kernels.interpreted_embedding")
def test_the_kernel_agrees_with_the_reference_in_tritons_interpreter(ended: Ended) -> None:
    # The interpreter is chosen when Triton is imported, which another test of this process may have done.
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout


@pytest.mark.gpu
@pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float16, 1e-2), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("shape", [(2048, 256), (130, 40), (24, 3)])
def test_the_kernel_agrees_with_the_reference_on_the_device(
    shape: tuple[int, int], dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(1)
    for count in (1, 2, 3, 8, 9, 64, 100):
        for kinds in ((0, 1, 2), (2,), (1, 0)):
            pending, rows, tables = random_case(count, *shape, dtype, kinds, device="cuda")
            found = embed_pending(pending, rows, tables)
            wanted = reference.embed_pending(pending, rows, tables)
            sized = pending[rows.long(), 2] >= 0
            assert torch.equal(found[~sized], wanted[~sized])
            scale = wanted.float().abs().max()  # sums of up to 512 products
            torch.testing.assert_close(found.float() / scale, wanted.float() / scale, rtol=0, atol=tolerance / 10)
