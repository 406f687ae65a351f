"""What decode steps and prompts of a decoder with temperatures or experts share: the input of its attention."""

import torch
from torch import Tensor

from photonlite.kernels.temperature import temperatures
from photonlite.models.layers import rotary_table
from photonlite.models.moondream.config import TextConfig
from photonlite.models.moondream.fused.layers import PackedBlock


class MixtureTables:
    """Tables over positions: `rotary`, float32 ``[2, positions, R / 2]``, and logarithms for temperatures."""

    def __init__(self, config: TextConfig, blocks: tuple[PackedBlock, ...]) -> None:
        weight = blocks[0].ln_weight
        positions = torch.arange(config.max_context, device=weight.device)
        angles = rotary_table(positions, config.rotary_dim, config.rope_theta)
        self.rotary = torch.stack(angles).squeeze(2).contiguous()
        self.width = config.n_heads * config.head_dim  # of queries, and of what attention returns
        self.qkv_width = self.width + 2 * config.kv_heads * config.head_dim
        rounded = torch.float32 if config.tau_positions == "float32" else weight.dtype
        wide = torch.promote_types(weight.dtype, torch.float32)
        self._logs = (positions.to(rounded) + 1).log().to(wide)

    def factors(self, block: PackedBlock, qkv: Tensor, positions: Tensor) -> Tensor | None:
        """Return the factors of queries and values ``[T, H + H_kv]``; None for a block without temperatures."""
        tau = block.tau
        if tau is None:
            return None
        return temperatures(qkv, tau.weight, tau.alpha, self._logs, positions, tanh_gelu=tau.tanh_gelu)
