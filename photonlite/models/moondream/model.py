"""The whole model: vision, text and region parts under the names of the public checkpoints."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from photonlite.images.crops import CropSpec
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.base import CropEncoder, Head, Heads, InputWeights, ModelShape, PromptDecoder, StepDecoder
from photonlite.models.layers import Attention
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.fused.decode import FusedDecode
from photonlite.models.moondream.fused.packed import PackedBlock, pack_blocks
from photonlite.models.moondream.fused.prefill import FusedPrefill
from photonlite.models.moondream.fused.vision import FusedEncoder, fastest_head_size
from photonlite.models.moondream.region import SIZE_OCTAVES, RegionHeads, coord_from_bin, size_from_bin
from photonlite.models.moondream.text import TextDecoder
from photonlite.models.moondream.vision import VisionEncoder


class MoondreamModel(nn.Module):
    """Modules `vision`, `text` and `region`; training, serving and the parity tests all run this code.

    Parameters are created without values: load a checkpoint or initialise them. For the methods see
    :class:`photonlite.models.base.Model`.
    """

    size_octaves: float = SIZE_OCTAVES

    def __init__(self, config: MoondreamConfig) -> None:
        super().__init__()
        self.config = config
        self.vision = VisionEncoder(config.vision)
        self.text = TextDecoder(config.text)
        self.region = RegionHeads(config.region)

    @property
    def shape(self) -> ModelShape:
        text = self.config.text
        return ModelShape(
            layers=text.n_layers,
            kv_heads=text.kv_heads,
            head_dim=text.head_dim,
            max_context=text.max_context,
            prefix_length=self.config.prefix_length,
            bos_id=self.config.tokenizer.bos_id,
            dim=text.dim,
            vocab_size=text.vocab_size,
        )

    @property
    def crop_spec(self) -> CropSpec:
        vision = self.config.vision
        return CropSpec(vision.crop_size, vision.enc_patch_size, vision.overlap_margin, vision.max_crops)

    def crop_encoder(self, *, fp8: bool = False) -> CropEncoder:
        """Return fused kernels on a card or for FP8, and the modules otherwise."""
        weight = self.vision.pos_emb
        if not fp8 and (not weight.is_cuda or weight.dtype == torch.float64):
            return self.vision
        return FusedEncoder(self.vision, fp8=fp8, head_size=fastest_head_size(self.vision))

    @functools.cached_property
    def packed_blocks(self) -> tuple[PackedBlock, ...]:
        """The decoder's weights for fused kernels; on first access its parameters become views of them."""
        return pack_blocks(self.text)

    def prompt_decoder(self, *, fp8: bool = False) -> PromptDecoder | None:
        """Return fused kernels on a card or for FP8, otherwise None."""
        words = self.text.wte
        if not fp8 and (not words.is_cuda or not HAS_TRITON or words.dtype == torch.float64):
            return None
        return FusedPrefill(self.config.text, self.packed_blocks, fp8=fp8)

    def step_decoder(self) -> StepDecoder | None:
        """Return fused kernels on a card, but None for float32, whose exactness tensor cores would cost."""
        words = self.text.wte
        if not words.is_cuda or not HAS_TRITON or words.dtype not in (torch.bfloat16, torch.float16):
            return None
        return FusedDecode(self.config.text, self.packed_blocks)

    def encode_image(self, pixels: Tensor, tiling: tuple[int, int]) -> Tensor:
        return self.vision.project(self.vision.encode(pixels), tiling)

    def kv_statistics(self) -> Sequence[tuple[float, float]]:
        return self.text.kv_statistics()

    def embed(self, ids: Tensor) -> Tensor:
        return self.text.embed(ids)

    def embed_coordinates(self, values: Tensor) -> Tensor:
        return self.region.encode_coord(values)

    def embed_sizes(self, values: Tensor) -> Tensor:
        return self.region.encode_size(values)

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        return self.text(x, positions, attention)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.text.logits(hidden)

    def coordinate_logits(self, hidden: Tensor) -> Tensor:
        return self.region.coord_logits(hidden)

    def size_logits(self, hidden: Tensor) -> Tensor:
        return self.region.size_logits(hidden)

    def coordinate_of(self, index: Tensor, bins: int) -> Tensor:
        return coord_from_bin(index, bins)

    def size_of(self, index: Tensor, bins: int) -> Tensor:
        return size_from_bin(index, bins)

    @property
    def heads(self) -> Heads:
        text, region = self.text, self.region
        return Heads(
            _head(text.post_ln, text.lm_head),
            _head(region.ln, region.coord_decoder),
            _head(region.ln, region.size_decoder),
        )

    @property
    def input_weights(self) -> InputWeights:
        encoder = self.region.size_encoder
        return InputWeights(self.text.wte, self.region.size_features, encoder.weight, encoder.bias)


def _head(norm: nn.Module, decoder: nn.Module) -> Head:
    layers = [layer for layer in decoder.modules() if isinstance(layer, nn.Linear)]  # in the order of their use
    weights = (norm.weight, norm.bias, norm.eps) if isinstance(norm, nn.LayerNorm) else None
    return Head(weights, tuple((layer.weight, layer.bias) for layer in layers))
