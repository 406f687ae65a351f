"""Runs the products of a serial block on the CPU by Triton's interpreter; see `interpreter.py`."""

import torch
from torch import Tensor

from photonlite.kernels import serial_block as module
from photonlite.kernels import tilings, triton_utils
from photonlite.kernels.reference import serial_block as reference
from photonlite.kernels.small_batch_gemm import Scales
from photonlite.kernels.tilings import Tiling
from tests.kernels.steps import SerialCase, serial_case

# rows, width of the residual stream, columns of queries, keys and values, inside of the MLP
SIZES = [(1, 72, 48, 80), (3, 56, 168, 96), (17, 40, 24, 42), (1, 56, 40, 25), (64, 32, 16, 48)]
MANY = [Tiling(64, 64), Tiling(16, 32, 3, ahead=64), Tiling(32, 16, 2)]
SINGLE = [Tiling(8, 256, 1, 1, 0), Tiling(16, 64, 1, 1, 0), Tiling(4, 32, 1, 1, 0)]


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def filled(case: SerialCase, scales: Scales) -> Scales:
    """Check what the stream's scales become by the kernel, and return them."""
    wanted = Scales(torch.empty_like(scales.rows), torch.empty_like(scales.squares), scales.eps)
    reference.scale_stream(case.x, case.gain, wanted)
    module.scale_stream(case.x, case.gain, scales)
    close(scales.rows, wanted.rows)
    close(scales.squares, wanted.squares)
    return scales


def check(case: SerialCase) -> None:
    rows, dim = case.x.shape
    made = [module.empty_scales(rows, dim, case.w_out.shape[1], case.eps, case.x) for _ in range(3)]
    scales = filled(case, made[0])
    for weight, bias, gated in ((case.w_in, case.b_in, False), (case.w_in, None, False), (case.w_gated, None, True)):
        outs = len(weight) // (2 if gated else 1)
        found, wanted = torch.full((rows, outs + 3), torch.nan)[:, 3:], torch.empty(rows, outs)
        module.norm_linear(scales, weight, bias, found, gated=gated)
        reference.norm_linear(scales, weight, bias, wanted, gated=gated)
        close(found, wanted)
    for norm in (None, (case.gain, made[1])):
        found, wanted = case.x.clone(), case.x.clone()
        module.add_linear(case.inside, case.w_out, found, norm)
        reference.add_linear(case.inside, case.w_out, wanted, None if norm is None else (case.gain, made[2]))
        close(found, wanted)
    close(made[1].rows, made[2].rows)
    close(made[1].squares, made[2].squares)
    assert not triton_utils.arrival_counters(torch.device("cpu"), 1).any(), "counters are left for the next launch"


def main() -> None:
    torch.manual_seed(0)
    module.supported = lambda x, weight: True  # type: ignore[assignment]
    for sizes in SIZES:
        for tiling in MANY + SINGLE if sizes[0] == 1 else MANY:
            tilings.tiling_of = lambda *_, chosen=tiling, **__: chosen  # type: ignore[assignment]
            check(serial_case(*sizes).to(torch.float32))
    print("interpreted kernels agree")
