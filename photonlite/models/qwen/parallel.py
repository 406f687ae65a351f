"""A rank's share of a Qwen-VL model; see `models.parallel`."""

import torch
from torch import nn

from photonlite.device.collectives import RankGroup
from photonlite.models.parallel import SummedLinear, fewer_outputs, keep_own_heads
from photonlite.models.qwen.model import QwenModel
from photonlite.models.qwen.text import DecoderBlock


def keep_share(model: QwenModel, ranks: RankGroup) -> None:
    """Turn a whole model without values into that of a rank, without the image encoder on all ranks but the first."""
    text = model.text
    for block in (block for block in text.blocks if isinstance(block, DecoderBlock)):
        keep_own_heads(block.attn, ranks.count)
        block.attn.proj = SummedLinear(block.attn.proj, ranks)
        block.mlp.gate_up = fewer_outputs(block.mlp.gate_up, ranks.count)
        block.mlp.down = SummedLinear(block.mlp.down, ranks)
    if text.head is not None:
        text.head = fewer_outputs(text.head, ranks.count)
    if ranks.rank > 0:
        del model.vision


def share_tied_head(model: QwenModel, ranks: RankGroup) -> None:
    """Replace a head tied to the embedding by one over the rank's part of the vocabulary, without a copy."""
    text = model.text
    if text.head is None:
        own = text.words.chunk(ranks.count)[ranks.rank]
        with torch.device("meta"):
            text.head = nn.Linear(own.shape[1], len(own), bias=False)
        text.head.weight = nn.Parameter(own, requires_grad=False)
