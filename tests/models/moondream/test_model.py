from typing import Any

import pytest
import torch
from torch import Tensor

from photonlite.models.layers import attend
from tests.models.moondream.golden import CASES, SKILLS, TOLERANCE, distance, embeddings, expected, loaded
from tests.tiny import tiny_config, tiny_model

PREFIX = 730


class PrefixAttention:
    """Attention over whole sequences: bidirectional in the prefix, causal behind it. Keeps layer 0's keys."""

    def __init__(self, prefix: int) -> None:
        self.prefix = prefix
        self.keys: Tensor | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer == 0:
            self.keys = k
        mask = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril()
        mask[: self.prefix, : self.prefix] = True
        return attend(q, k, v, mask)


@pytest.mark.long
@pytest.mark.parametrize("skill", SKILLS)
@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_a_prompt_gives_the_logits_of_the_reference(case: dict[str, Any], skill: str) -> None:
    model = loaded().model
    ids = torch.tensor([0, *case[f"{skill}_prompt_ids"]])
    words = model.embed(ids)
    x = torch.cat((words[:1], embeddings(case), words[1:]))[None]
    attention = PrefixAttention(PREFIX)

    hidden = model.forward(x, torch.arange(x.shape[1]), attention)[0]
    logits = model.logits(hidden[-1])

    assert distance(hidden[PREFIX - 1], expected(case, "prefix_hidden_last")) <= TOLERANCE
    assert distance(hidden[-1], expected(case, f"{skill}.hidden_last")) <= TOLERANCE
    assert distance(logits, expected(case, f"{skill}.logits")) <= TOLERANCE
    assert int(logits.argmax()) == case[f"{skill}_argmax"]
    assert attention.keys is not None
    assert distance(interleave(attention.keys[0, PREFIX - 1]), expected(case, "prefix_k0_last")) <= TOLERANCE


def interleave(keys: Tensor) -> Tensor:
    """Convert the half-split layout of the rotated dimensions to the reference's interleaved one."""
    half = keys.shape[-1] // 2
    order = [j // 2 + half // 2 * (j % 2) for j in range(half)]
    return torch.cat((keys[..., order], keys[..., half:]), dim=-1)


def test_the_shape_follows_the_configuration() -> None:
    shape = tiny_model(tiny_config(text={"n_layers": 5})).shape

    assert (shape.layers, shape.kv_heads, shape.head_dim) == (5, 1, 8)
    assert (shape.max_context, shape.prefix_length, shape.bos_id) == (120, 26, 0)


def test_crops_follow_the_configuration() -> None:
    spec = tiny_model(tiny_config()).crop_spec

    assert (spec.crop_size, spec.patch_size, spec.overlap_margin, spec.max_crops) == (20, 4, 1, 6)
