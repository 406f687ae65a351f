"""Runs the kernels that move pages on the CPU by Triton's interpreter; see `interpreter.py`."""

import itertools

import torch

from photonlite.kernels.reference import swap as reference
from photonlite.kernels.swap import gather_pages, scatter_pages
from tests.kernels.pages import random_caches


def main() -> None:
    torch.manual_seed(0)
    for layers, words, count in itertools.product((1, 3), (8, 5000), (3,)):
        keys, values, pages = random_caches(layers, words, count)
        found, wanted = (torch.zeros(count, 2, layers, words, dtype=torch.int32) for _ in range(2))
        gather_pages(keys, values, pages, found)
        reference.gather_pages(keys, values, pages, wanted)
        assert torch.equal(found, wanted)
        assert torch.equal(found[0, 1, -1], values[-1, pages[0]])

        back, expected = [keys.clone(), values.clone()], [keys.clone(), values.clone()]
        scatter_pages(found + 1, pages, *back)
        reference.scatter_pages(found + 1, pages, *expected)
        assert all(map(torch.equal, back, expected))
        assert torch.equal(back[0][:, pages], keys[:, pages] + 1)
        assert int((back[0] != keys).sum()) == layers * count * words
    print("interpreted kernels agree")
