"""How large keys and values will be, told from the weights: an FP8 cache needs a scale before the first request.

A layer norm gives numbers ``gamma * z + beta`` in which `z` has mean 0 and variance 1. With the entries of `z` taken
for independent, row `i` of the projection ``W x + b`` has

```
mean      sum_j W_ij beta_j + b_i
variance  sum_j (W_ij gamma_j)**2
```

and a layer's mean square is the mean over its rows of ``mean**2 + variance``. Rotary embedding turns pairs of rows into
each other, which changes no sum of squares.
"""

import torch
from torch import Tensor, nn

from photonlite.models.moondream.text import Block, TextDecoder


@torch.no_grad()
def kv_statistics(text: TextDecoder) -> tuple[tuple[float, float], ...]:
    """Estimate the root mean square of keys and of values, layer by layer.

    Args:
        text: The decoder.
    """
    found = [_of_block(block) for block in text.blocks if isinstance(block, Block)]
    return tuple((key, value) for key, value in torch.stack(found).tolist())


def _of_block(block: Block) -> Tensor:
    """Give the root mean squares of a block's keys and values, float32 ``[2]``."""
    attention = block.attn
    rows = attention.kv_heads * attention.head_dim  # of keys, and as many of values, behind those of queries
    square = _mean_squares(block.ln, attention.qkv.weight[-2 * rows :], attention.qkv.bias[-2 * rows :])
    return square.view(2, rows).mean(dim=1).sqrt()


def _mean_squares(norm: nn.LayerNorm, weight: Tensor, bias: Tensor) -> Tensor:
    """Give the expected square of each row of a projection behind a layer norm, float32 ``[rows]``."""
    weight = weight.float()
    mean = weight @ norm.bias.float() + bias.float()
    return mean.square() + weight.square() @ norm.weight.float().square()
