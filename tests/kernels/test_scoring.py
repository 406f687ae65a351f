import math

import numpy as np
import pytest
import torch

from photonlite.kernels.scoring import score_ids


def bits(*ids: int) -> list[int]:
    words = [sum(1 << one % 32 for one in ids if one // 32 == word) for word in range(2)]
    return np.array(words, np.uint32).view(np.int32).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_probabilities_are_those_among_the_allowed_ids(dtype: torch.dtype) -> None:
    logits = torch.zeros(2, 40, dtype=dtype)
    logits[0, [3, 35]], logits[0, 9] = 1.0, 50.0
    masks = torch.tensor([bits(3, 7, 35), bits(0, 39)], dtype=torch.int32)
    ids = torch.tensor([[35, 7, 9, -1], [39, -1, -1, -1]], dtype=torch.int32)
    scores = torch.full((2, 4), 7.0)
    score_ids(logits, masks, ids, scores)

    whole = 2 * math.e + 1
    assert scores[0, :3].tolist() == pytest.approx([math.e / whole, 1 / whole, 0], rel=1e-6)
    assert scores[1, 0].item() == 0.5


def test_logits_beyond_all_measure_give_probabilities_still() -> None:
    logits = torch.tensor([[1e30, -1e30, 1e30, 5.0]])
    scores = torch.zeros(1, 3)
    score_ids(logits, torch.tensor([[0b0111]], dtype=torch.int32), torch.tensor([[0, 1, 2]], dtype=torch.int32), scores)

    assert scores.tolist() == [[0.5, 0.0, 0.5]]
