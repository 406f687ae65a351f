"""Decoder weights packed for fused kernels: two matrices a block instead of four, the parameters views of them.

```
w_in   [q | k | v | fc1, dim]        one product of the normalised input: queries, keys, values, inner MLP
w_out  [dim, attention | ff]         one product of attention and GELU outputs, side by side: what is added
```

The parameters keep their names, shapes and values: the modules compute with the same memory.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from photonlite.models.moondream.text import DecoderBlock, TextDecoder


@dataclass(frozen=True, slots=True)
class PackedBlock:
    """One block's weights."""

    w_in: Tensor  # [(H + 2 H_kv) D + ff, dim]
    b_in: Tensor  # [(H + 2 H_kv) D + ff]
    w_out: Tensor  # [dim, H D + ff]
    b_out: Tensor  # [dim]: the biases of both output layers, summed in float32 at least
    ln_weight: Tensor  # [dim]
    ln_bias: Tensor  # [dim]
    eps: float


def pack_blocks(text: TextDecoder) -> tuple[PackedBlock, ...]:
    """Pack the blocks of a decoder in evaluation mode, one by one: at most one block's weights exist twice."""
    return tuple(_pack(block) for block in text.blocks if isinstance(block, DecoderBlock))


@torch.no_grad()
def _pack(block: DecoderBlock) -> PackedBlock:
    qkv, fc1, proj, fc2 = block.attn.qkv, block.mlp.fc1, block.attn.proj, block.mlp.fc2
    w_in = torch.cat((qkv.weight, fc1.weight))
    b_in = torch.cat((qkv.bias, fc1.bias))
    w_out = torch.cat((proj.weight, fc2.weight), dim=1)
    rows, columns = len(qkv.weight), proj.weight.shape[1]
    _share(qkv, w_in[:rows], b_in[:rows])
    _share(fc1, w_in[rows:], b_in[rows:])
    _share(proj, w_out[:, :columns], proj.bias)
    _share(fc2, w_out[:, columns:], fc2.bias)
    wide = torch.promote_types(proj.bias.dtype, torch.float32)
    b_out = (proj.bias.to(wide) + fc2.bias.to(wide)).detach()
    return PackedBlock(w_in, b_in, w_out, b_out, block.ln.weight.detach(), block.ln.bias.detach(), block.ln.eps)


def _share(layer: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    layer.weight = nn.Parameter(weight, requires_grad=False)
    layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
