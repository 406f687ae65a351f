"""Linear layers over a few rows in PyTorch; see `kernels.small_batch_gemm`."""

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.kernels.reference.row_adapters import RowTerms, add_terms
from photonlite.kernels.triton_utils import power_of_2


def small_batch_gemm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    norm: tuple[Tensor, Tensor | None, float] | None = None,
    gelu: bool = False,
) -> Tensor:
    if norm is not None and norm[1] is None:
        x = functional.rms_norm(x, x.shape[-1:], norm[0], norm[2])
    elif norm is not None:
        x = functional.layer_norm(x, x.shape[-1:], *norm)
    result = functional.linear(x, weight, bias)
    return functional.gelu(result, approximate="tanh") if gelu else result


def linear_in(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    norm: tuple[Tensor, Tensor, float] | None,
    qkv: Tensor,
    activated: Tensor,
    added: RowTerms | None = None,
) -> None:
    width = qkv.shape[1]
    result = functional.linear(x if norm is None else functional.layer_norm(x, x.shape[-1:], *norm), weight, bias)
    add_terms(result, added)
    qkv.copy_(result[:, :width])
    activated.copy_(functional.gelu(result[:, width:], approximate="tanh"))


def linear_out(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor, stats: Tensor | None, added: RowTerms | None = None
) -> None:
    result = functional.linear(x, weight)
    add_terms(result, added)
    residual.copy_(residual + result + bias)
    if stats is not None:
        stats.copy_(tile_statistics(residual, power_of_2(-(-residual.shape[1] // stats.shape[1]))))


def linear_into(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, *, gated: bool = False, gelu: bool = False
) -> None:
    result = functional.linear(x, weight)
    result = result if bias is None else result + bias  # which may be wider
    if gated:
        gate, value = result.chunk(2, dim=-1)
        result = (functional.gelu(gate, approximate="tanh") if gelu else functional.silu(gate)) * value
    out.copy_(result)


def tile_statistics(x: Tensor, width: int) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    parts = [
        (part.mean(dim=1), part.var(dim=1, correction=0) * part.shape[1]) for part in torch.split(wide, width, dim=1)
    ]
    return torch.stack([torch.stack(one) for one in zip(*parts, strict=True)])
