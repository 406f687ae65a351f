import pytest
import torch

from photonlite.config import Precision
from photonlite.kernels.reference import quantised
from photonlite.kernels.reference.quantised import (
    QuantisedWeight,
    dequantise,
    empty,
    group_of,
    join_columns,
    join_rows,
    quantise,
    unpack_codes,
)


def random_matrix(rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * columns)
    return torch.randn(rows, columns, generator=generator) * torch.rand(rows, 1, generator=generator)


@pytest.mark.parametrize(("precision", "noise"), [("int8", 0.012), ("fp8", 0.03), ("int4", 0.12)])
def test_a_matrix_comes_back_with_the_noise_of_its_precision(precision: Precision, noise: float) -> None:
    matrix = random_matrix(40, 256)

    weight = quantise(matrix, precision)
    error = dequantise(weight, torch.float32) - matrix

    assert (weight.shape, weight.precision, len(weight)) == ((40, 256), precision, 40)
    assert noise / 4 < float(error.norm() / matrix.norm()) < noise


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_no_number_is_off_by_more_than_half_a_step(precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "_WIDTHS", (1.0,))
    matrix = random_matrix(24, 128)
    weight = quantise(matrix, precision)
    half = weight.scale.float().repeat_interleave(weight.group, dim=1) / 2

    # Rounded scales and shifts may cut the ends of a group by a part of a step.
    assert bool(((dequantise(weight, torch.float32) - matrix).abs() <= half * 1.1).all())


@pytest.mark.parametrize("precision", ["int8", "fp8", "int4"])
def test_what_was_rounded_is_not_rounded_again(precision: Precision) -> None:
    once = dequantise(quantise(random_matrix(16, 128), precision), torch.float32)

    again = dequantise(quantise(once, precision), torch.float32)

    assert float((again - once).norm() / once.norm()) < 0.004


def test_a_group_takes_the_range_of_numbers_with_the_least_error(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = random_matrix(64, 512)

    def errors(*widths: float) -> torch.Tensor:
        monkeypatch.setattr(quantised, "_WIDTHS", widths)
        return (dequantise(quantise(matrix, "int4"), torch.float32) - matrix).view(64, 4, 128).square().sum(dim=2)

    whole, narrow, best = errors(1.0), errors(0.9), errors(1.0, 0.9)
    assert torch.allclose(best, torch.minimum(whole, narrow), rtol=0.02)
    assert 0.05 < float((narrow < whole).float().mean()) < 1


def test_of_a_group_each_byte_holds_columns_of_both_halves() -> None:
    codes = torch.arange(2 * 256).view(2, 256) % 16
    matrix = codes.float() - 8
    weight = quantise(matrix, "int4")

    assert torch.equal(weight.values[:, :64] & 15, codes[:, :64].byte())
    assert torch.equal(weight.values[:, :64] >> 4, codes[:, 64:128].byte())
    assert torch.equal(unpack_codes(weight.values, 2).flatten(1), codes.byte())


def test_groups_are_the_largest_powers_of_two_that_divide_a_row() -> None:
    assert [group_of(columns) for columns in (2048, 192, 400, 4304, 24)] == [128, 64, 16, 16, None]
    with pytest.raises(ValueError, match="multiple of 16 numbers, not of 24"):
        empty((4, 24), "int4", "cpu")


@pytest.mark.parametrize("precision", ["int8", "fp8", "int4"])
def test_zeros_stay_zeros_and_what_is_not_finite_is_refused(precision: Precision) -> None:
    zeros = torch.zeros(4, 32)
    assert dequantise(quantise(zeros, precision), torch.float32).abs().max() < 1e-9
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not finite"):
            quantise(zeros.index_fill(1, torch.tensor([3]), bad), precision)


@pytest.mark.parametrize("precision", ["int8", "fp8", "int4"])
def test_matrices_are_joined_both_ways_and_cut_into_rows(precision: Precision) -> None:
    first, second = (quantise(random_matrix(16, columns), precision) for columns in (128, 256))
    below = quantise(random_matrix(8, 128), precision)
    f32 = torch.float32

    beside = dequantise(join_columns([first, second]), f32)
    above = join_rows([first, below])

    assert torch.equal(beside, torch.cat((dequantise(first, f32), dequantise(second, f32)), dim=1))
    assert torch.equal(dequantise(above, f32), torch.cat((dequantise(first, f32), dequantise(below, f32))))
    assert torch.equal(dequantise(above[16:], f32), dequantise(below, f32))


def test_columns_without_a_common_group_are_not_joined() -> None:
    odd = quantise(random_matrix(16, 192), "int8")
    with pytest.raises(ValueError, match="do not divide"):
        join_columns([odd, odd])
    narrow, wide = (quantise(random_matrix(16, columns), "int4") for columns in (64, 128))
    with pytest.raises(ValueError, match="different sizes"):
        join_columns([narrow, wide])


def test_a_bfloat16_matrix_is_quantised_as_its_float32_numbers() -> None:
    matrix = random_matrix(8, 128).bfloat16()
    one, other = (quantise(given, "int4") for given in (matrix, matrix.float()))
    assert isinstance(one, QuantisedWeight)
    assert torch.equal(one.values, other.values)
