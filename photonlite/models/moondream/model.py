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
from photonlite.models.moondream.fused_decode import FusedDecode
from photonlite.models.moondream.fused_prefill import FusedPrefill
from photonlite.models.moondream.fused_vision import FusedEncoder
from photonlite.models.moondream.head_size import quickest_head_size
from photonlite.models.moondream.kv_statistics import kv_statistics
from photonlite.models.moondream.packed import PackedBlock, pack_blocks
from photonlite.models.moondream.region import SIZE_OCTAVES, RegionHeads, coord_from_bin, size_from_bin
from photonlite.models.moondream.text import TextDecoder
from photonlite.models.moondream.vision import VisionEncoder


class MoondreamModel(nn.Module):
    """Modules `vision`, `text` and `region`; training, serving and the parity tests all run this code.

    Parameters are created without values: load a checkpoint or initialise them. The methods are those of
    :class:`photonlite.models.base.Model`, by which a runner knows it.
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
        """Sizes of cache and context."""
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
        """How an image is cut for :meth:`encode_image`."""
        vision = self.config.vision
        return CropSpec(vision.crop_size, vision.enc_patch_size, vision.overlap_margin, vision.max_crops)

    def kv_statistics(self) -> Sequence[tuple[float, float]]:
        """Estimate the root mean square of each layer's keys and of its values; see :mod:`.kv_statistics`."""
        return kv_statistics(self.text)

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Run the text decoder over embeddings ``[B, T, dim]``; see :meth:`TextDecoder.forward`."""
        return self.text(x, positions, attention)

    def crop_encoder(self, *, fp8: bool = False) -> CropEncoder:
        """Give the plain encoder on the CPU, and fused kernels with its parameters on a card or for FP8."""
        weight = self.vision.pos_emb
        if not fp8 and (not weight.is_cuda or weight.dtype == torch.float64):
            return self.vision
        return FusedEncoder(self.vision, fp8=fp8, head_size=quickest_head_size(self.vision))

    @functools.cached_property
    def packed_blocks(self) -> tuple[PackedBlock, ...]:
        """The decoder's weights for fused kernels; from the first look on its parameters are views of them."""
        return pack_blocks(self.text)

    def prompt_decoder(self, *, fp8: bool = False) -> PromptDecoder | None:
        """Give none on the CPU, and fused kernels with the decoder's parameters on a card or for FP8."""
        words = self.text.wte
        if not fp8 and (not words.is_cuda or not HAS_TRITON or words.dtype == torch.float64):
            return None
        return FusedPrefill(self.config.text, self.packed_blocks, fp8=fp8)

    def step_decoder(self) -> StepDecoder | None:
        """Give none on the CPU and for float32, whose exactness tensor cores would cost; else fused kernels."""
        words = self.text.wte
        if not words.is_cuda or not HAS_TRITON or words.dtype not in (torch.bfloat16, torch.float16):
            return None
        return FusedDecode(self.config.text, self.packed_blocks)

    def encode_image(self, pixels: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Map the crops of one image, uint8 ``[n, C, C, 3]``, to embeddings ``[P, dim]``."""
        return self.vision.project(self.vision.encode(pixels), tiling)

    def embed(self, ids: Tensor) -> Tensor:
        """Embed ids ``[...]`` as ``[..., dim]``."""
        return self.text.embed(ids)

    def embed_coordinates(self, values: Tensor) -> Tensor:
        """Embed coordinates ``[N]`` as ``[N, dim]``."""
        return self.region.encode_coord(values)

    def embed_sizes(self, values: Tensor) -> Tensor:
        """Embed widths and heights ``[N, 2]`` as ``[N, dim]``."""
        return self.region.encode_size(values)

    def logits(self, hidden: Tensor) -> Tensor:
        """Map raw hidden states ``[..., dim]`` to logits over ids ``[..., vocab]``."""
        return self.text.logits(hidden)

    def coordinate_logits(self, hidden: Tensor) -> Tensor:
        """Map raw hidden states ``[..., dim]`` to logits over coordinate bins ``[..., bins]``."""
        return self.region.coord_logits(hidden)

    def size_logits(self, hidden: Tensor) -> Tensor:
        """Map raw hidden states ``[..., dim]`` to logits ``[..., 2, bins]``: width first, then height."""
        return self.region.size_logits(hidden)

    def coordinate_of(self, index: Tensor, bins: int) -> Tensor:
        """Give the coordinate of each bin; see :func:`coord_from_bin`."""
        return coord_from_bin(index, bins)

    def size_of(self, index: Tensor, bins: int) -> Tensor:
        """Give the width or height of each bin; see :func:`size_from_bin`."""
        return size_from_bin(index, bins)

    @property
    def heads(self) -> Heads:
        """The heads as data: norms and linear layers, whose parameters they share."""
        text, region = self.text, self.region
        return Heads(
            _head(text.post_ln, text.lm_head),
            _head(region.ln, region.coord_decoder),
            _head(region.ln, region.size_decoder),
        )

    @property
    def input_weights(self) -> InputWeights:
        """What words and sizes are embedded with."""
        encoder = self.region.size_encoder
        return InputWeights(self.text.wte, self.region.size_features, encoder.weight, encoder.bias)


def _head(norm: nn.Module, decoder: nn.Module) -> Head:
    layers = [layer for layer in decoder.modules() if isinstance(layer, nn.Linear)]  # in the order of their use
    given = (norm.weight, norm.bias, norm.eps) if isinstance(norm, nn.LayerNorm) else None
    return Head(given, tuple((layer.weight, layer.bias) for layer in layers))
