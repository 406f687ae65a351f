import pytest
import torch
from torch import nn
from torch.nn import functional

from bench.nano.training.graphs import Graphed
from bench.nano.training.muon import BatchedMuon

CARD = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])


def trained(device, graphed):
    """Train a small model for some steps at a changing rate; return its losses and its weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8)).to(device)
    rate, on_card = torch.zeros((), device=device), device == "cuda"
    adamw = torch.optim.AdamW([model[0].bias, model[1].bias], lr=rate, fused=on_card, capturable=on_card)
    muon = BatchedMuon([model[0].weight, model[1].weight], lr=rate)
    inputs = torch.randn(12, 5, 8).to(device)

    def backward(batch):
        model.zero_grad(set_to_none=True)
        loss = functional.mse_loss(model(batch), batch)
        loss.backward()
        return loss.detach()

    def update():
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        muon.step()

    if graphed:
        backward, update = (Graphed(function, torch.device(device)) for function in (backward, update))
    losses = []
    for step, batch in enumerate(inputs):
        losses.append(float(backward(batch)))
        rate.fill_(0.02 / (1 + step))
        update()
    return losses, [value.detach().clone() for value in model.parameters()]


@pytest.mark.parametrize("device", ["cpu", CARD])
def test_training_in_graphs_is_training_without(device):
    losses, weights = trained(device, graphed=True)
    expected, weights_expected = trained(device, graphed=False)
    assert losses == pytest.approx(expected, rel=1e-3)
    torch.testing.assert_close(weights, weights_expected, rtol=1e-3, atol=1e-4)
    assert losses[-1] < losses[0]
