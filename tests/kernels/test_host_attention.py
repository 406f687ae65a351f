import pytest
import torch

from photonlite.kernels.host_attention import paged_attention
from photonlite.kernels.reference import attention as reference
from tests.kernels.pages import in_fp8, scattered


@pytest.mark.parametrize("stored_in_fp8", [False, True])
@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize("window", [None, 1, 4, 6, 40])
def test_a_rule_and_stored_types_change_a_row_as_they_change_all_at_once(
    window: int | None, cap: float | None, *, stored_in_fp8: bool
) -> None:
    torch.manual_seed(2)
    case = scattered([0, 1, 4, 9, 21], 4, 2, 6, 4, torch.float64)
    scales = (0.25, 0.5) if stored_in_fp8 else (1.0, 1.0)
    case = in_fp8(case, *scales) if stored_in_fp8 else case
    rule = reference.ScoreRule(0.3, cap, window)

    out = paged_attention(*case, *scales, rule)

    torch.testing.assert_close(out, reference.paged_attention(*case, *scales, rule), rtol=1e-10, atol=1e-10)
    assert (out[0] == 0).all()
    assert (out[1:].abs().sum(dim=(1, 2)) > 0).all()


@pytest.mark.parametrize("window", [None, 6, 11])
def test_rows_may_have_pages_in_common(window: int | None) -> None:
    torch.manual_seed(5)
    q, keys, values, table, _ = scattered([20, 20, 20, 20, 20], 4, 2, 6, 4, torch.float64)
    table[1, :3], table[2, :5], table[3, 1:4] = table[0, :3], table[1, :5], table[2, 1:4]
    case = q, keys, values, table, torch.tensor([17, 20, 13, 19, 20])
    rule = reference.ScoreRule(0.3, None, window)

    out = paged_attention(*case, 1.0, 1.0, rule)

    torch.testing.assert_close(out, reference.paged_attention(*case, rule=rule), rtol=1e-10, atol=1e-10)


def test_a_row_does_not_depend_on_those_beside_it() -> None:
    torch.manual_seed(3)
    q, keys, values, table, lengths = scattered([3, 30, 17], 4, 4, 8, 4, torch.float32)
    table[2, :2] = table[1, :2]

    together = paged_attention(q, keys, values, table, lengths, 1.0, 1.0, None)

    for row in range(3):
        only = slice(row, row + 1)
        assert torch.equal(
            paged_attention(q[only], keys, values, table[only], lengths[only], 1.0, 1.0, None)[0], together[row]
        )
