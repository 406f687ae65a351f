"""Temperatures of queries and values in PyTorch; see `kernels.temperature`."""

import torch
from torch import Tensor
from torch.nn import functional


def temperatures(
    qkv: Tensor, weight: Tensor, alpha: Tensor, logs: Tensor, positions: Tensor, *, tanh_gelu: bool
) -> Tensor:
    features = functional.gelu(qkv, approximate="tanh" if tanh_gelu else "none")
    wide = torch.promote_types(qkv.dtype, torch.float32)
    learned = functional.linear(features, weight).to(wide).tanh()
    place = 0.5 + torch.sigmoid(logs.to(wide)[positions.long(), None] * alpha.to(wide))  # [T, H]
    return learned + torch.cat((place, place), dim=1)
