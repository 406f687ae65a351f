"""A rank's share of a Moondream model without temperatures and experts; see `models.parallel`."""

from torch import Tensor, nn

from photonlite.device.collectives import RankGroup
from photonlite.models.layers import MLP, Attention
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.moondream.text import DecoderBlock
from photonlite.models.parallel import fewer_inputs, fewer_outputs, keep_own_heads

SUMMED_BIASES = (".attn.proj.bias", ".mlp.fc2.bias")
"""Ends of names of biases that are added once, by rank 0."""


class RankBlock(DecoderBlock):
    """A block whose branches are partial sums on each rank: both are added up at once."""

    def __init__(self, block: DecoderBlock, ranks: RankGroup) -> None:
        nn.Module.__init__(self)
        mlp = block.mlp
        assert isinstance(mlp, MLP), "experts are not divided"
        self.layer, self.ln, self.attn, self.mlp, self._ranks = block.layer, block.ln, block.attn, mlp, ranks
        keep_own_heads(self.attn, ranks.count)
        self.attn.proj = fewer_inputs(self.attn.proj, ranks.count)
        mlp.fc1, mlp.fc2 = fewer_outputs(mlp.fc1, ranks.count), fewer_inputs(mlp.fc2, ranks.count)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], positions: Tensor, attention: Attention) -> Tensor:
        of_attention, of_mlp = self.branches(x, rotary, positions, attention)
        return x + self._ranks.sum(of_attention + of_mlp)


def keep_share(model: MoondreamModel, ranks: RankGroup) -> None:
    """Turn a whole model without values into that of a rank, without the image encoder on all ranks but the first."""
    text = model.text
    text.blocks = nn.ModuleList(RankBlock(block, ranks) for block in text.blocks if isinstance(block, DecoderBlock))
    text.lm_head = fewer_outputs(text.lm_head, ranks.count)
    if ranks.rank > 0:
        del model.vision
