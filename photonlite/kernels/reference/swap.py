"""Moving pages between the KV cache and contiguous memory, in plain PyTorch."""

from torch import Tensor


def gather_pages(keys: Tensor, values: Tensor, pages: Tensor, staging: Tensor) -> None:
    """Copy `pages`, int64 ``[N]``, of both caches, ``[layers, P, W]``, to `staging`, ``[N, 2, layers, W]``."""
    staging[:, 0] = keys[:, pages].transpose(0, 1)
    staging[:, 1] = values[:, pages].transpose(0, 1)


def scatter_pages(staging: Tensor, pages: Tensor, keys: Tensor, values: Tensor) -> None:
    """Copy `staging`, ``[N, 2, layers, W]``, to `pages`, int64 ``[N]``, of both caches, ``[layers, P, W]``."""
    keys[:, pages] = staging[:, 0].transpose(0, 1)
    values[:, pages] = staging[:, 1].transpose(0, 1)
