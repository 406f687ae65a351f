"""Decode steps whose rows have adapters: all linear layers of the text blocks, rank 16."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import nn

from bench.steps.subjects import Rows, Subject
from photonlite.kernels.adapters import AdapterRows
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.adapters.terms import AdapterPlace, AdapterTerm, AdapterWeights
from photonlite.models.moondream.fused.decode import FusedDecode

RANK = 16
AIMS = {8: 1.12, 32: 1.08}
"""By streams, the most that a step with eight adapters should take, as a multiple of one without."""


def adapted_step(subject: Subject, streams: int, context: int, adapters: int) -> Callable[[], None]:
    """Return a step of rows that have so many adapters by turns."""
    model = subject.parallel
    if model is None:
        raise ValueError("only steps of parallel blocks without experts have adapters here")
    bank = AdapterBank(model, adapters, RANK)
    for slot in range(1, adapters + 1):
        bank.write(slot, AdapterWeights(f"{slot}", tuple(_terms(model.text.blocks.named_modules(), slot))))
    slots = [1 + index % adapters for index in range(streams)]
    index = AdapterRows.of(slots, [1] * streams, subject.words.device)
    with bank.running(index):
        decoder = FusedDecode(model.config.text, model.packed_blocks).adapted(bank)
    rows = Rows(replace(subject, fused=decoder), streams, context)

    def step() -> None:
        with bank.running(index):
            rows.fused()

    return step


def _terms(layers: Iterable[tuple[str, nn.Module]], seed: int) -> Iterable[AdapterTerm]:
    draw = torch.Generator().manual_seed(seed)
    for name, layer in layers:
        if isinstance(layer, nn.Linear):
            a = torch.randn(RANK, layer.in_features, generator=draw) * 0.02
            b = torch.randn(layer.out_features, RANK, generator=draw) * 0.02
            place = AdapterPlace(f"text.blocks.{name}", 0, layer.out_features)
            dtype = layer.weight.dtype
            yield AdapterTerm(place, a.to(dtype), b.to(dtype))
