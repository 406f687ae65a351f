import torch

from bench.nano.scenes.batched.blend import tints
from bench.nano.scenes.batched.painting import uniform


def middle(shape, low, high, device):
    return torch.full(shape, (low + high) / 2, device=device)


def test_the_middle_of_all_ranges_changes_light_alone():
    made = tints(torch.zeros(1, 2, dtype=torch.bool), middle)
    assert torch.allclose(made, 0.975 * torch.eye(3, 4).expand(1, 2, 3, 4), atol=1e-6)


def test_grey_stays_grey_whatever_the_hue():
    def turned(shape, low, high, device):
        return torch.full(shape, high if low == -high else (low + high) / 2, device=device)

    made = tints(torch.tensor([[False, True]]), turned) / 0.975
    assert torch.allclose(made[..., :3].sum(-1), torch.ones(1, 2, 3), atol=1e-5)
    assert torch.allclose(made[0, 1], torch.eye(3, 4), atol=1e-5)  # a steady hue
    assert float(made[0, 0, 0, 1].abs()) > 0.05


def test_objects_differ():
    torch.manual_seed(0)
    made = tints(torch.zeros(2, 3, dtype=torch.bool), uniform).flatten(0, 1)
    assert all(not torch.allclose(made[i], made[j], atol=1e-2) for i in range(6) for j in range(i))
