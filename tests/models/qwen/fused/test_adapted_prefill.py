"""Prompts whose rows have adapters: fused ones against the decoder that adds terms in operations of PyTorch."""

import copy

import pytest
import torch

from photonlite.models.adapters.layers import AdapterBank
from tests.models.moondream.fused.test_adapted_prefill import index_of, rows_of
from tests.models.qwen.fused.steps import CONFIGS, random_decoder
from tests.models.qwen.fused.test_adapted_decode import bank_of
from tests.models.qwen.fused.test_prefill import LATER, SPANS, Case, fused_prefill, stored
from tests.tiny import CPU

SLOTS = [1, 0, 3, 2]


def adapted_case(case: Case, bank: AdapterBank) -> Case:
    """Return a case whose plain decoder is the bank's."""
    found = copy.copy(case)
    found.text = bank.model.text
    return found


@pytest.mark.parametrize("layers", [0, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_prompts_equal_those_of_the_plain_decoder_with_adapters(name: str, layers: int) -> None:
    text = random_decoder(*CONFIGS[name]).double()
    case, bare = Case(text, torch.float64, layers=layers, axes=layers != 0), fused_prefill(text)
    bank = bank_of(text, 3, 4)
    decoder = bare.adapted(bank)

    for spans, seed in ((SPANS, 0), (LATER, 1)):
        inputs = case.inputs(spans, seed)
        without = case.fused(bare, spans, inputs)
        with bank.running(index_of(spans, SLOTS, CPU)):
            found = case.fused(decoder, spans, inputs)
        wanted, first = [], 0
        for row, (span, slot) in enumerate(zip(spans, SLOTS, strict=True)):
            one = adapted_case(case, bank)
            one.table = case.table[row:]
            own = tuple(each[..., first : first + span.count, :] for each in inputs)
            with bank.running(rows_of([span], [slot], CPU)):
                wanted.append(one.plain([span], own))
            first += span.count
        torch.testing.assert_close(found, torch.cat(wanted), atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(stored(case.caches[0]), stored(case.caches[1]), atol=1e-9, rtol=1e-9)
        assert ((found - without).abs().amax(dim=1) > 1e-3).tolist() == [slot > 0 for slot in SLOTS]
