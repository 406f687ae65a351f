import pytest
import torch
from torch import nn

from bench.nano.training.muon import BatchedMuon, orthogonalised

SHAPES = [(12, 8), (8, 12), (12, 8), (8, 8), (12, 8)]


def parameters(seed=0):
    torch.manual_seed(seed)
    return [nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def give_gradients(matrices, seed):
    generator = torch.Generator().manual_seed(seed)
    for matrix in matrices:
        matrix.grad = torch.randn(matrix.shape, generator=generator)


def test_steps_are_those_of_the_library_optimizer():
    ours, theirs = parameters(), parameters()
    batched = BatchedMuon(ours, lr=0.02, weight_decay=0.1)
    plain = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for step in range(6):
        for matrices, optimizer in ((ours, batched), (theirs, plain)):
            give_gradients(matrices, step)
            optimizer.step()
    start = parameters()
    for mine, reference, before in zip(ours, theirs, start, strict=True):
        # The products run in bfloat16, in another order.
        assert float((mine - reference).detach().abs().max()) < 0.02 * float((reference - before).detach().abs().max())


def test_singular_values_come_near_one():
    torch.manual_seed(1)
    for shape in ((3, 16, 6), (3, 6, 16), (2, 8, 8)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)))
        assert float(values.min()) > 0.5
        assert float(values.max()) < 1.4


def test_a_matrix_of_zeros_stays_one():
    assert float(orthogonalised(torch.zeros(1, 4, 4)).abs().max()) == 0


def test_the_rate_can_change_between_steps():
    matrices = parameters()
    optimizer = BatchedMuon(matrices, lr=1.0, weight_decay=0.0)
    optimizer.param_groups[0]["lr"] = 0.0
    before = [matrix.detach().clone() for matrix in matrices]
    give_gradients(matrices, 0)
    optimizer.step()
    assert all(torch.equal(matrix, old) for matrix, old in zip(matrices, before, strict=True))


def test_only_matrices_are_taken():
    with pytest.raises(ValueError, match="matrices"):
        BatchedMuon([nn.Parameter(torch.zeros(3))], lr=1.0)
