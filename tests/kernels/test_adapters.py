import pytest
import torch

from photonlite.kernels.adapters import AdapterRows, add_adapters
from photonlite.kernels.reference import adapters as reference
from photonlite.kernels.triton_utils import HAS_TRITON
from tests.conftest import Ended
from tests.kernels.adapter_cases import CASES, adapter_case


@pytest.mark.parametrize("case", CASES)
def test_each_row_gets_the_term_of_its_own_slot(case) -> None:
    torch.manual_seed(0)
    y, x, rows, stack = adapter_case(*case)
    wanted = y.clone()
    slots, per_unit, first = case[0], case[1], case[5]
    for row in range(y.shape[1]):
        if slot := slots[row // per_unit]:
            wanted[0, row, first : first + case[3]] += stack.b[slot] @ (stack.a[slot] @ x[0, row])
    add_adapters(y, x, rows, stack)
    torch.testing.assert_close(y, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.long
@pytest.mark.program("tests.kernels.interpreter", "tests.kernels.interpreted_adapters")
def test_the_kernels_agree_with_the_reference_in_tritons_interpreter(ended: Ended) -> None:
    # The interpreter is chosen when Triton is imported, which another test of this process may have done.
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout


@pytest.mark.gpu
@pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "case",
    [
        *CASES,
        ([1, 2, 3, 0, 1, 2, 3, 0], 1, 2048, 6144, 16, 0),
        ([1] * 740 + [3] * 730 + [0] * 50, 1, 2048, 8192, 16, 0),
        ([2, 0], 729, 1152, 3456, 16, 0),
    ],
)
def test_kernels_on_a_card_agree_with_the_reference(case, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    y, x, rows, stack = adapter_case(*case, device="cuda", dtype=dtype)
    wanted = y.clone()
    reference.add_adapters(wanted, x, rows, stack)
    add_adapters(y, x, rows, stack)
    torch.testing.assert_close(y, wanted, atol=0.03, rtol=0.02)


@pytest.mark.gpu
@pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
def test_what_is_captured_reads_the_slots_of_the_replay() -> None:
    torch.manual_seed(0)
    y, x, rows, stack = adapter_case([1, 2, 0, 3], 1, 256, 512, 16, 0, device="cuda", dtype=torch.bfloat16)
    before, target = y.clone(), y.clone()
    add_adapters(target, x, rows, stack)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(before)
        add_adapters(target, x, rows, stack)
    for slots in ([0, 0, 0, 0], [3, 3, 1, 2]):
        other = AdapterRows.of(slots, [1] * 4, x.device)
        rows.index.copy_(other.index)
        graph.replay()
        wanted = before.clone()
        reference.add_adapters(wanted, x, other, stack)
        torch.testing.assert_close(target, wanted, atol=0.03, rtol=0.02)
