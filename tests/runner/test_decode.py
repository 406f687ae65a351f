import torch

from photonlite.runner.decode import decode_attention
from photonlite.runner.slots import PAGES
from tests.runner.cached import Rows


def test_a_decode_step_sees_all_positions_up_to_its_own() -> None:
    cached = [0, 3, 4, 17]
    rows = Rows(cached, seed=2)
    positions = torch.tensor(cached)[:, None]
    fixed = torch.cat((torch.zeros_like(positions), positions, rows.slots(positions), positions), dim=1)
    attention = decode_attention(rows.cache, torch.cat((fixed, rows.table), dim=1).int())
    index = torch.arange(4)[:, None], positions

    out = attention(1, rows.q[index], rows.k[index], rows.v[index])

    assert fixed.shape[1] == PAGES
    for row, position in enumerate(cached):
        assert torch.allclose(out[row], rows.seen(row, position, position + 1, 0), atol=1e-12)
