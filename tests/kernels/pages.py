"""Sequences of any lengths, scattered over pages that are full of NaN elsewhere."""

import torch
from torch import Tensor

from photonlite.kernels.reference.attention import FP8, quantise

Case = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def scattered(
    lengths: list[int], heads: int, kv_heads: int, dim: int, page: int, dtype: torch.dtype, device: str = "cpu"
) -> Case:
    """Arguments of `paged_attention`; the tables end in ids of pages that do not exist."""
    counts = [-(-length // page) for length in lengths]
    pages = sum(counts) + 3
    order = iter((torch.randperm(pages - 1) + 1).tolist())
    table = torch.full((len(lengths), max(counts) + 2), 10**6, dtype=torch.int32)
    keys = torch.full((pages, page, kv_heads, dim), torch.nan, dtype=dtype)
    values = keys.clone()
    for row, length in enumerate(lengths):
        for index in range(counts[row]):
            table[row, index] = number = next(order)
            filled = min(page, length - index * page)
            keys[number, :filled] = torch.randn(filled, kv_heads, dim).to(dtype)
            values[number, :filled] = torch.randn(filled, kv_heads, dim).to(dtype)
    q = torch.randn(len(lengths), heads, dim).to(dtype)
    found = torch.tensor(lengths, dtype=torch.int32)
    return q.to(device), keys.to(device), values.to(device), table.to(device), found.to(device)


def in_fp8(case: Case, k_scale: float, v_scale: float) -> Case:
    """The same sequences, stored in FP8."""
    q, keys, values, table, lengths = case
    return q, quantise(keys, FP8, k_scale), quantise(values, FP8, v_scale), table, lengths


def random_caches(layers: int, words: int, count: int, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Make keys and values of nine pages, int32 ``[layers, 9, words]``, and choose some pages, int64 ``[count]``."""
    keys, values = (
        torch.randint(-(2**31), 2**31 - 1, (layers, 9, words), dtype=torch.int32, device=device) for _ in range(2)
    )
    return keys, values, torch.randperm(9, device=device)[:count]
