"""Runs the kernels that normalise and quantise on the CPU by Triton's interpreter; see `interpreter.py`."""

import itertools

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.kernels import activations, fp8, norms
from photonlite.kernels.reference import norms as reference_norms

EPS = 1e-5


def check_quantised(found: tuple[Tensor, Tensor], wanted: Tensor) -> None:
    """Values times scales are the rows. They are not rounded: the interpreter's conversion to e4m3 has a fault."""
    values, scale = found
    torch.testing.assert_close(values * scale, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scale, reference_norms.quantise_rows(wanted)[1], atol=1e-8, rtol=1e-4)
    assert values.abs().max() <= 448 * (1 + 1e-6)  # what conversion rounds


def check_norms(rows: int, dim: int, delta_rows: int, bias: bool, centred: bool) -> None:
    x = (torch.randn(rows, dim + 3) * 3 + 5)[:, :dim]  # rows lie apart
    delta = torch.randn(delta_rows, dim) if delta_rows else None
    delta_bias = torch.randn(dim) if bias else None
    weight, offset = torch.randn(dim), torch.randn(dim) if centred else None
    case = (x, delta, delta_bias, weight, offset, EPS)
    wanted, found = reference_norms.residual_norm(*case), norms.residual_norm(*case)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    total, *quantised = norms.residual_norm_fp8(*case)
    torch.testing.assert_close(total, wanted[0])
    check_quantised((quantised[0], quantised[1]), wanted[1])
    shift = torch.randn(dim)
    shifted = norms.shifted_norm(x, shift, weight, offset, EPS)
    stream, inside = x.clone(), torch.randn(rows, dim + 2)[:, :dim] * 4
    given = (inside, weight, None if bias else shift, EPS)
    found, wanted = ((stream.clone(), torch.full_like(stream, torch.nan)) for _ in range(2))
    norms.add_normed(found[0], *given, found[1])
    reference_norms.add_normed(wanted[0], *given, wanted[1])
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5, equal_nan=True)
    torch.testing.assert_close(
        shifted, reference_norms.shifted_norm(x, shift, weight, offset, EPS), atol=1e-5, rtol=1e-5
    )


def check_activations(rows: int, dim: int, bias: bool) -> None:
    x, offset = (torch.randn(rows, dim + 5) * 4)[:, :dim], torch.randn(dim) if bias else None
    x[-1] = 0
    activated = fp8.gelu_fp8(x, offset)
    check_quantised(activated, functional.gelu(x if offset is None else x + offset, approximate="tanh"))
    check_quantised(fp8.quantise_rows(x), x)
    if dim > 1:
        pairs = x[:, : dim // 2 * 2]
        found, wanted = activations.swiglu(pairs, gelu=bias), reference_norms.swiglu(pairs, gelu=bias)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
        check_quantised(fp8.swiglu_fp8(pairs), reference_norms.swiglu(pairs))


def check_pieces(left: int, right: int) -> None:
    """Rows whose pieces lie in two tensors; GELU is taken of one of them."""
    wide = torch.randn(3, left + right + 7) * 4
    parts = wide[:, :left], wide[:, -right:]
    wanted = torch.cat((parts[0], functional.gelu(parts[1], approximate="tanh")), dim=1)
    check_quantised(fp8.beside_gelu_fp8(*parts), wanted)


def check_rounding() -> None:
    """What is normalised is the rounded sum: in half precision few results differ, where else most would."""
    case = (*(torch.randn(size).half() for size in ((9, 70), (9, 70), (70,), (70,), (70,))), EPS)
    wanted, found = reference_norms.residual_norm(*case), norms.residual_norm(*case)
    assert torch.equal(found[0], wanted[0])
    assert (found[1] == wanted[1]).float().mean() > 0.95


def main() -> None:
    fp8.FP8 = norms.FP8 = torch.float32  # type: ignore[misc]
    torch.manual_seed(0)
    check_rounding()
    for dim, (delta_rows, bias) in itertools.product((1, 24, 130, 64), ((0, False), (6, True), (3, True), (6, False))):
        for centred in (True, False):
            check_norms(6, dim, delta_rows, bias, centred)
    for dim, bias in itertools.product((1, 24, 1030, 64), (False, True)):
        check_activations(4, dim, bias)
    for left, right in ((24, 33), (64, 256), (1, 5)):
        check_pieces(left, right)
    x = torch.randn(3, 8)
    x[1, 2] = torch.nan
    values, _ = fp8.gelu_fp8(x, None)
    assert values.isnan().any(dim=1).tolist() == [False, True, False]
    print("interpreted kernels agree")
