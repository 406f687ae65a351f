import pytest
import torch

from photonlite.config import Precision
from photonlite.kernels import host_products
from photonlite.kernels.host_products import HostProduct, int4_block, measure, pack_int4
from photonlite.kernels.reference.quantised import dequantise, quantise


def matrix(rows: int = 192, columns: int = 256) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_few_rows_are_multiplied_by_the_packed_kernel(precision: Precision, rows: int, dtype: torch.dtype) -> None:
    weight, x = quantise(matrix(), precision), matrix(rows).to(dtype)
    product = HostProduct(weight, few=4)

    found = product(x)

    wanted = x.bfloat16().double() @ dequantise(weight, torch.float64).t()
    assert found.dtype == dtype
    assert float((found - wanted).norm() / wanted.norm()) < 0.01
    if dtype == torch.float32 and product.takes_few:
        assert torch.equal(found, found.bfloat16().float())  # the packed kernel's results are bfloat16


@pytest.mark.parametrize("precision", ["int8", "fp8", "int4"])
def test_more_rows_are_multiplied_in_their_own_type_part_by_part(
    precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_products, "PART", 128 * 256)  # a part and a half
    weight, x = quantise(matrix(), precision), matrix(5)

    found = HostProduct(weight, few=4)(x)

    assert torch.allclose(found, x @ dequantise(weight, torch.float32).t(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("precision", ["int8", "fp8", "int4"])
def test_the_matrix_comes_back_exactly(precision: Precision) -> None:
    weight = quantise(matrix(), precision)
    assert torch.equal(HostProduct(weight, few=4).matrix(torch.float32), dequantise(weight, torch.float32))


@pytest.mark.parametrize("shape", [(192, 144), (190, 256)])  # groups of 16; rows that no block divides
def test_int4_that_the_packed_kernel_does_not_take_is_multiplied_all_the_same(shape: tuple[int, int]) -> None:
    weight, x = quantise(matrix(*shape), "int4"), matrix(2, shape[1])
    assert pack_int4(weight) is None
    assert torch.allclose(HostProduct(weight, few=4)(x), x @ dequantise(weight, torch.float32).t(), atol=1e-3)


def test_a_processor_with_an_unknown_layout_goes_without_the_packed_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert int4_block() in host_products._BLOCKS
    monkeypatch.setattr(host_products, "_BLOCKS", (8,))
    assert int4_block() is None
    assert pack_int4(quantise(matrix(), "int4")) is None


def test_a_build_without_the_packed_kernel_goes_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(codes: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("no such operator")

    monkeypatch.setattr(host_products, "_pack", missing)
    assert int4_block() is None


def test_packed_kernels_are_taken_up_to_the_rows_at_which_they_are_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 2.0, 2.0, 2.0, 5.0, 4.0])  # packed and in parts, at 1, 4 and 16 rows
    monkeypatch.setattr(host_products, "_SHAPE", (64, 64))
    monkeypatch.setattr(host_products, "_shortest", lambda run: next(times))
    measure.cache_clear()
    try:
        assert measure("int8", torch.float32) == 4
        assert measure("fp8", torch.float32) == 0
    finally:
        measure.cache_clear()
