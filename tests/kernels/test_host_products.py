from collections.abc import Iterator

import pytest
import torch

from photonlite.config import Precision
from photonlite.kernels import host_products
from photonlite.kernels.host_products import (
    Choice,
    HostProduct,
    Pack,
    PlainInt8,
    int4_block,
    measure,
    pack_int4,
    plain_int8,
    split_int8,
)
from photonlite.kernels.reference.quantised import QuantisedWeight, dequantise, quantise


def matrix(rows: int = 192, columns: int = 256) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("pack", [plain_int8, pack_int4])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_few_rows_are_multiplied_by_the_packed_kernel(pack: Pack, rows: int, dtype: torch.dtype) -> None:
    weight, x = quantise(matrix(), "int4" if pack is pack_int4 else "int8"), matrix(rows).to(dtype)
    product = HostProduct(weight, Choice(pack, few=4))

    found = product(x)

    wanted = x.bfloat16().double() @ dequantise(weight, torch.float64).t()
    assert found.dtype == dtype
    assert float((found - wanted).norm() / wanted.norm()) < 0.01
    if dtype == torch.float32 and product.takes_few:
        assert torch.equal(found, found.bfloat16().float())  # the packed kernel's results are bfloat16


@pytest.mark.parametrize(("columns", "takes"), [(40, False), (48, True)])
def test_int8_whose_last_columns_the_kernel_would_read_behind_the_matrix_goes_without_it(
    columns: int, takes: bool
) -> None:
    weight, x = quantise(matrix(columns=columns), "int8"), matrix(3, columns)
    product = HostProduct(weight, Choice(plain_int8, few=4))

    assert product.takes_few is takes
    wanted = x.double() @ dequantise(weight, torch.float64).t()
    assert float((product(x) - wanted).norm() / wanted.norm()) < 0.01


def split(weight: QuantisedWeight) -> HostProduct:
    product = HostProduct(weight, Choice(split_int8, few=64))
    if not product.takes_few or torch.backends.quantized.engine not in ("x86", "fbgemm"):
        pytest.skip("this build of PyTorch has no product of 8 and 7 bits for x86")
    return product


def test_rows_in_two_numbers_of_7_bits_lose_next_to_nothing() -> None:
    weight = quantise(matrix(), "int8")
    rows = matrix(5) * torch.tensor([1e-6, 1.0, 1e4, 1.0, 0.0])[:, None]
    rows[1, 7], rows[3] = 60.0, rows[3].abs()  # one number much larger than the others; none below zero

    found = split(weight)(rows)

    wanted = rows.double() @ dequantise(weight, torch.float64).t()
    assert float(found[4].abs().max()) < 1e-30
    assert float(((found - wanted).norm(dim=1) / wanted.norm(dim=1))[:4].max()) < 1e-3


def test_a_number_a_hundred_times_larger_costs_the_rest_of_its_row_half_a_percent_at_most() -> None:
    weight = quantise(matrix(columns=2048), "int8")
    rows = matrix(4, 2048)
    rows[:, 7] = 100.0

    found = split(weight)(rows)

    exact = dequantise(weight, torch.float64).t()
    wanted = rows.double() @ exact
    rest = wanted - rows[:, 7:8].double() * exact[7]
    assert float(((found - wanted).norm(dim=1) / rest.norm(dim=1)).max()) < 0.005


def test_a_row_is_multiplied_as_if_it_were_alone_even_beside_nan() -> None:
    rows = matrix(6) * torch.tensor([1.0, 1e-3, 1e3, 0.0, 1.0, 1.0])[:, None]
    rows[4, 3], rows[5, 9] = torch.nan, torch.inf
    product = split(quantise(matrix(), "int8"))

    found = product(rows)

    assert torch.equal(found[:3], torch.cat([product(row[None]) for row in rows[:3]]))
    assert torch.allclose(found[3], torch.zeros(()), atol=1e-30)
    assert not found[4:].isfinite().any()


@pytest.mark.parametrize("precision", ["int8", "fp8", "int4"])
def test_more_rows_are_multiplied_in_their_own_type_part_by_part(
    precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_products, "PART", 128 * 256)  # a part and a half
    weight, x = quantise(matrix(), precision), matrix(5)

    for pack in (None, *host_products._PACKS[precision]):
        found = HostProduct(weight, Choice(pack, few=4))(x)
        assert torch.allclose(found, x @ dequantise(weight, torch.float32).t(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("precision", ["int8", "fp8", "int4"])
def test_the_matrix_comes_back_exactly(precision: Precision) -> None:
    weight = quantise(matrix(), precision)
    for pack in (None, *host_products._PACKS[precision]):
        assert torch.equal(
            HostProduct(weight, Choice(pack, few=4)).matrix(torch.float32), dequantise(weight, torch.float32)
        )


@pytest.mark.parametrize("shape", [(192, 144), (190, 256)])  # groups of 16; rows that no block divides
def test_int4_that_the_packed_kernel_does_not_take_is_multiplied_all_the_same(shape: tuple[int, int]) -> None:
    weight, x = quantise(matrix(*shape), "int4"), matrix(2, shape[1])
    assert pack_int4(weight) is None
    found = HostProduct(weight, Choice(pack_int4, few=4))(x)
    assert torch.allclose(found, x @ dequantise(weight, torch.float32).t(), atol=1e-3)


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


def test_a_build_without_fbgemm_goes_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: object) -> torch.Tensor:
        raise RuntimeError("no such engine")

    monkeypatch.setattr(torch, "_make_per_channel_quantized_tensor", missing)
    assert split_int8(quantise(matrix(), "int8")) is None


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(host_products, "_SHAPE", (64, 64))
    measure.cache_clear()
    yield
    measure.cache_clear()


@pytest.mark.usefixtures("unmeasured")
def test_of_kernels_the_quickest_is_taken_up_to_the_rows_at_which_it_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(weight: QuantisedWeight) -> PlainInt8:
        return PlainInt8(weight)

    monkeypatch.setattr(host_products, "_PACKS", {"int8": (PlainInt8, other), "fp8": ()})
    # packed and in parts, at 1, 4 and 16 rows of one, and of the other
    times = iter([1.0, 2.0, 2.0, 2.0, 5.0, 4.0, 0.5, 2.0, 3.0, 2.0])
    monkeypatch.setattr(host_products, "_shortest", lambda run: next(times))
    assert measure("int8", torch.float32) == Choice(other, 1)
    assert measure("fp8", torch.float32) == Choice()
    assert next(times, None) is None


@pytest.mark.usefixtures("unmeasured")
def test_a_kernel_that_is_not_exact_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Coarse(PlainInt8):
        def multiply(self, x: torch.Tensor) -> torch.Tensor:
            return 1.02 * x @ self.rows(slice(None), torch.float32).t()

    monkeypatch.setattr(host_products, "_PACKS", {"int8": (Coarse,)})
    monkeypatch.setattr(host_products, "_limit", lambda *given: pytest.fail("its time was measured"))
    assert measure("int8", torch.float32) == Choice()
