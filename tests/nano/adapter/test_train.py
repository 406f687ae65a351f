import torch
from torch import nn

from bench.nano.adapter.train import LowRank, read_adapter, save_adapter


def test_a_stored_adapter_can_be_trained_further(tmp_path):
    terms, others = ({"text.blocks.0.mlp.fc1": LowRank(nn.Linear(6, 4))} for _ in range(2))
    [term], [other] = terms.values(), others.values()
    nn.init.normal_(term.b)
    save_adapter(terms, tmp_path)
    read_adapter(others, tmp_path)

    assert torch.equal(other.a, term.a.half().float())
    assert torch.equal(other.b, term.b.half().float())
    assert other.a.requires_grad
