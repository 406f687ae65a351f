import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

from photonlite.config import Precision
from photonlite.kernels import host_products
from photonlite.kernels.host_products import (
    HostProduct,
    Pack,
    PlainInt8,
    Stored,
    int4_block,
    kernel,
    pack_int4,
    plain_int8,
    split_int8,
)
from photonlite.kernels.reference.quantised import QuantisedWeight, dequantise, quantise


def matrix(rows: int = 192, columns: int = 256) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("pack", [split_int8, plain_int8, pack_int4])
@pytest.mark.parametrize("rows", [1, 3, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_number_of_rows_is_multiplied_with_the_rounding_of_the_kernel(
    pack: Pack, rows: int, dtype: torch.dtype
) -> None:
    weight, x = quantise(matrix(), "int4" if pack is pack_int4 else "int8"), matrix(rows).to(dtype)
    product = packed(pack, weight)

    found = product.multiply(x)

    wanted = x.double() @ dequantise(weight, torch.float64).t()
    error = float((found - wanted).norm() / wanted.norm())
    assert error < (0.001 if pack is split_int8 else 0.005)
    # int4 and plain int8 give bfloat16 at any number of rows.
    assert torch.equal(found, found.bfloat16().to(found.dtype)) is (pack is not split_int8)


@pytest.mark.parametrize("pack", [split_int8, plain_int8, pack_int4])
@pytest.mark.parametrize("shape", [(192, 256), (128, 2048), (64, 96)])
@pytest.mark.parametrize("rows", [1, 2, 5, 16, 31, 64, 257, 600])
def test_a_row_has_the_same_product_however_many_are_multiplied_with_it(
    pack: Pack, shape: tuple[int, int], rows: int
) -> None:
    product = packed(pack, quantise(matrix(*shape), "int4" if pack is pack_int4 else "int8"))
    x = matrix(600, shape[1])

    whole = product.multiply(x)

    assert torch.equal(product.multiply(x[:rows]), whole[:rows])
    assert torch.equal(product.multiply(x[-rows:]), whole[-rows:])


@pytest.mark.parametrize("pack", [split_int8, pack_int4])
def test_a_packed_matrix_is_held_once(pack: Pack) -> None:
    weight = quantise(matrix(), "int4" if pack is pack_int4 else "int8")
    values = weakref.ref(weight.values)
    product = packed(pack, weight)
    del weight

    assert values() is None
    assert product.matrix(torch.float32).shape == (192, 256)


@pytest.mark.parametrize(("columns", "takes"), [(40, False), (48, True)])
def test_int8_whose_last_columns_the_kernel_would_read_behind_the_matrix_goes_without_it(
    columns: int, takes: bool
) -> None:
    assert (plain_int8(quantise(matrix(columns=columns), "int8")) is not None) is takes


def packed(pack: Pack, weight: QuantisedWeight) -> HostProduct:
    product = pack(weight)
    if product is None or (pack is split_int8 and torch.backends.quantized.engine not in ("x86", "fbgemm")):
        pytest.skip("this build of PyTorch has no such kernel")
    return product


def split(weight: QuantisedWeight) -> Callable[[torch.Tensor], torch.Tensor]:
    return packed(split_int8, weight).multiply


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
def test_without_a_kernel_rows_are_multiplied_in_their_own_type_part_by_part(
    precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_products, "PART", 128 * 256)  # a part and a half
    weight, x = quantise(matrix(), precision), matrix(5)

    found = Stored(weight).multiply(x)

    assert torch.allclose(found, x @ dequantise(weight, torch.float32).t(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("precision", ["int8", "fp8", "int4"])
def test_the_matrix_comes_back_exactly(precision: Precision) -> None:
    weight = quantise(matrix(), precision)
    for pack in (Stored, *host_products._PACKS[precision]):
        if (product := pack(weight)) is not None:
            assert torch.equal(product.matrix(torch.float32), dequantise(weight, torch.float32))


@pytest.mark.parametrize("shape", [(192, 144), (190, 256)])  # groups of 16; rows that no block divides
def test_int4_that_the_packed_kernel_does_not_take_goes_without_it(shape: tuple[int, int]) -> None:
    assert pack_int4(quantise(matrix(*shape), "int4")) is None


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
def untried() -> Iterator[None]:
    kernel.cache_clear()
    yield
    kernel.cache_clear()


@pytest.mark.usefixtures("untried")
def test_the_first_kernel_that_is_there_and_errs_little_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Coarse(PlainInt8):
        def multiply(self, x: torch.Tensor) -> torch.Tensor:
            return 1.02 * x @ self.matrix(torch.float32).t()

    def missing(weight: QuantisedWeight) -> None:
        return None

    monkeypatch.setattr(host_products, "_PACKS", {"int8": (missing, Coarse, plain_int8), "int4": (missing,), "fp8": ()})
    assert kernel("int8") is plain_int8
    assert kernel("int4") is kernel("fp8") is None
