import pytest
import torch

from bench.gpu.ceilings import Ceilings
from bench.overlap.roofline import encoding_operations, roofline_table, step_operations
from photonlite.models.moondream.config import MoondreamConfig

MOONDREAM2 = MoondreamConfig.from_dict({"model_type": "moondream2"})
H200 = Ceilings(4.2e12, "sum", 4.3e12, 7.8e14, 8192, torch.bfloat16)


def test_a_decode_step_is_bound_by_the_bytes_of_weights_keys_and_values() -> None:
    products, attention, head = step_operations(MOONDREAM2, 32, 850, torch.bfloat16)

    assert products.bytes == pytest.approx(2.416e9, rel=0.02), "as the published weights have, and activations"
    assert attention.bytes == pytest.approx(32 * 850 * 196_608)
    assert head.bytes == pytest.approx(51200 * 2048 * 2, rel=0.02)
    assert all(memory > arithmetic for arithmetic, memory in (one.times(H200) for one in (products, attention, head)))


def test_an_encoding_is_bound_by_arithmetic() -> None:
    products, attention = encoding_operations(MOONDREAM2, 9, torch.bfloat16)

    assert products.operations == pytest.approx(2 * 9 * 729 * 411e6, rel=0.02), "411 million weights, at each patch"
    assert attention.operations == pytest.approx(4 * 9 * 729 * 729 * 1152 * 27)
    assert all(arithmetic > memory for arithmetic, memory in (one.times(H200) for one in (products, attention)))


def test_the_table_has_a_row_for_each_operation_and_for_the_whole() -> None:
    operations = step_operations(MOONDREAM2, 8, 850, torch.bfloat16)

    text = roofline_table({"step of 8 streams": (operations, 1.3e-3)}, H200)

    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    assert [row[0] for row in rows] == ["step products", "step attention", "language head", "**step of 8 streams**"]
    least = sum(one.bytes for one in operations) / H200.read
    assert rows[-1][5:] == [f"at least {1e3 * least:.3f} ms", "1.300", f"{least / 1.3e-3:.0%}"]
    assert {row[5] for row in rows[:3]} == {"memory"}
