"""Rows of random keys and values of which a cache holds the first positions."""

import random

import torch
from torch import Tensor

from photonlite.kernels.reference.attention import FP8, dequantise, quantise
from photonlite.models.base import ModelShape
from photonlite.models.layers import attend
from photonlite.runner.buffers import PagedCache
from tests.tiny import CPU

PAGE, PAGES_A_ROW, KV_HEADS, HEADS, DIM = 4, 6, 2, 4, 8
SHAPE = ModelShape(2, KV_HEADS, DIM, PAGE * PAGES_A_ROW, 6, 0, HEADS * DIM, 10)


class Rows:
    """Random keys and values of some rows, and a cache that holds their first positions among NaN.

    With scales the cache is in FP8.
    """

    def __init__(self, cached: list[int], seed: int, scales: tuple[tuple[float, float], ...] = ()) -> None:
        generator = torch.Generator().manual_seed(seed)
        count = len(cached)
        size = (count, PAGE * PAGES_A_ROW, KV_HEADS, DIM)
        self.k, self.v = (torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(2))
        self.q = torch.randn(count, PAGE * PAGES_A_ROW, HEADS, DIM, generator=generator, dtype=torch.float64)
        pages = 1 + count * PAGES_A_ROW
        self.cache = PagedCache(SHAPE, pages, PAGE, CPU, FP8 if scales else torch.float64, scales)
        k_scale, v_scale = self.cache.scales[1]
        k, v = quantise(self.k, self.cache.keys.dtype, k_scale), quantise(self.v, self.cache.keys.dtype, v_scale)
        self.seen_k, self.seen_v = dequantise(k, torch.float64, k_scale), dequantise(v, torch.float64, v_scale)
        for kept in (self.cache.keys, self.cache.values):
            kept.fill_(torch.nan)
        ids = random.Random(seed).sample(range(1, pages), pages - 1)
        self.table = torch.tensor(ids).view(count, PAGES_A_ROW)
        for row, filled in enumerate(cached):
            for position in range(filled):
                page, place = self.table[row, position // PAGE], position % PAGE
                self.cache.keys[1, page, place] = k[row, position]
                self.cache.values[1, page, place] = v[row, position]

    def slots(self, positions: Tensor) -> Tensor:
        return self.table.gather(1, positions // PAGE) * PAGE + positions % PAGE

    def seen(self, row: int, start: int, length: int, block: int) -> Tensor:
        """What positions from `start` on see without a cache: those up to themselves, and those of their block."""
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        mask[:block, :block] = True
        q, k, v = (x[row : row + 1, :length] for x in (self.q, self.seen_k, self.seen_v))
        return attend(q, k, v, mask)[0, start:]
