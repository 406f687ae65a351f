"""The whole model: vision, text and region parts under the names of the public checkpoints.

The region heads read and write sizes on a logarithmic scale of ten octaves, coordinates on a linear one:

```
coordinate of bin k of n:  k / n                       (the public reference's rule; `region.coord_scale` changes it)
size of bin k of n:        2 ** (10 k / (n - 1) - 10)  from 1/1024 to 1
```
"""

import functools
import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from photonlite.device.collectives import RankGroup
from photonlite.errors import SettingsError
from photonlite.images.crops import CropSpec
from photonlite.kernels import cards
from photonlite.kernels.cards import HALF, Need
from photonlite.models.base import CropEncoder, Head, Heads, InputWeights, ModelShape, PromptDecoder, StepDecoder
from photonlite.models.layers import MLP, Attention, layer_norm
from photonlite.models.moondream.config import MoondreamConfig, RegionConfig
from photonlite.models.moondream.fused.decode import FusedDecode, RankDecode
from photonlite.models.moondream.fused.layers import PackedBlock, pack_blocks
from photonlite.models.moondream.fused.mixture_decode import MixtureDecode
from photonlite.models.moondream.fused.mixture_prefill import MixturePrefill
from photonlite.models.moondream.fused.prefill import FusedPrefill
from photonlite.models.moondream.fused.vision import FusedEncoder
from photonlite.models.moondream.text import DecoderBlock, TextDecoder
from photonlite.models.moondream.vision import VisionEncoder
from photonlite.models.quantised import QuantisedLinear, fused_obstacle, obstacle, refuse_fp8, stored_weight

SIZE_OCTAVES = 10


def coord_from_bin(index: Tensor, bins: int) -> Tensor:
    """Return the coordinate in [0, 1) of each bin, float32."""
    return index.float() / bins


def size_from_bin(index: Tensor, bins: int) -> Tensor:
    """Return the width or height in [1/1024, 1] of each bin, float32."""
    # In float64: float32 powers differ in their last bit between vector and scalar instructions of some processors.
    return torch.exp2(index.double() * (SIZE_OCTAVES / (bins - 1)) - SIZE_OCTAVES).float()


def fourier_features(value: Tensor, frequencies: Tensor) -> Tensor:
    """Return ``[cos(2 pi v W), sin(2 pi v W)]`` (Tancik et al., 2020), in the type of W as in the reference."""
    angle = (2 * math.pi * value.to(frequencies.dtype)) @ frequencies
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


class RegionHeads(nn.Module):
    """Parameters of the encoders and decoders of coordinates and sizes."""

    def __init__(self, config: RegionConfig) -> None:
        super().__init__()
        self.coord_features = nn.Parameter(torch.empty(1, config.coord_feat_dim // 2))
        self.size_features = nn.Parameter(torch.empty(2, config.size_feat_dim // 2))
        self.coord_encoder = nn.Linear(config.coord_feat_dim, config.dim)
        self.size_encoder = nn.Linear(config.size_feat_dim, config.dim)
        self.coord_decoder, self.size_decoder = (
            nn.Linear(config.dim, bins) if config.decoder == "linear" else MLP(config.dim, config.inner_dim, bins)
            for bins in (config.coord_out_dim, config.size_out_dim)
        )
        self.ln = layer_norm(config.dim) if config.norm else nn.Identity()


class MoondreamModel(nn.Module):
    """Modules `vision`, `text` and `region`, created without values; for the methods see `models.base.Model`."""

    size_octaves: float = SIZE_OCTAVES
    size_of = staticmethod(size_from_bin)

    def __init__(self, config: MoondreamConfig) -> None:
        super().__init__()
        self.config = config
        self.vision = VisionEncoder(config.vision)
        self.text = TextDecoder(config.text)
        self.region = RegionHeads(config.region)

    @functools.cached_property
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
    def numbers(self) -> Self:
        return self

    @property
    def crop_spec(self) -> CropSpec:
        return self.config.vision.crops

    def crop_encoder(self, *, fp8: bool = False) -> CropEncoder:
        weight = self.vision.pos_emb
        if fp8:
            refuse_fp8(self)
        elif not weight.is_cuda or weight.dtype == torch.float64 or obstacle(self.vision) is not None:
            return self.vision
        return FusedEncoder(self.vision, fp8=fp8)

    @functools.cached_property
    def packed_blocks(self) -> tuple[PackedBlock, ...]:
        """The decoder's weights for fused kernels; on first access its parameters become views of them."""
        return pack_blocks(self.text)

    def prompt_decoder(self, *, fp8: bool = False) -> PromptDecoder | None:
        if self.text.is_mixture:
            if fp8:
                raise SettingsError(
                    "engine setting 'fp8_linears' is on, but the decoder of this model has temperatures or experts, "
                    "whose prompts have no FP8 products: leave the setting off (experts may be stored in FP8)"
                )
            return None if self._prompt_obstacle() else MixturePrefill(self.config.text, self.packed_blocks)
        if not fp8 and self._prompt_obstacle() is not None:
            return None
        return FusedPrefill(self.config.text, self.packed_blocks, fp8=fp8)

    def step_decoder(self, ranks: RankGroup | None = None) -> StepDecoder | None:
        """Return fused kernels on a card, but None for float32, whose exactness tensor cores would cost."""
        if self._step_obstacle() is not None:
            return None
        if ranks is not None:
            return RankDecode(self.config.text, self.packed_blocks, ranks)
        decoder = MixtureDecode if self.text.is_mixture else FusedDecode
        return decoder(self.config.text, self.packed_blocks)

    def plain_parts(self) -> dict[str, str]:
        card = cards.card_of(self.text.wte.device)
        reasons = {
            "image encoder": obstacle(self.vision) or cards.obstacle(card, cards.encoder_needs()),
            "prompts": self._prompt_obstacle(),
            "decode steps": self._step_obstacle(),
        }
        return {part: reason for part, reason in reasons.items() if reason is not None}

    def _prompt_obstacle(self) -> str | None:
        """Return what keeps prompts from fused kernels; experts also need half precision."""
        text = self.config.text
        half = HALF if self.text.is_mixture else (*HALF, torch.float32)
        return self._obstacle(half, cards.prompt_needs(text.head_dim, text.n_heads // text.kv_heads))

    def _step_obstacle(self) -> str | None:
        """Return what keeps decode steps from fused kernels, whose tensor cores would round wider types."""
        text = self.config.text
        return self._obstacle(HALF, cards.step_needs(text.head_dim, text.n_heads // text.kv_heads))

    def _obstacle(self, dtypes: Sequence[torch.dtype], needs: list[Need]) -> str | None:
        words, moe = self.text.wte, self.config.text.moe
        if (reason := self._quantised_obstacle()) is not None:
            return reason
        if moe is not None and moe.fp8:
            needs = [*needs, *cards.fp8_needs("experts")]
        return cards.wrong_type(words.dtype, dtypes) or cards.obstacle(cards.card_of(words.device), needs)

    def _quantised_obstacle(self) -> str | None:
        if obstacle(self.text) is None:
            return None
        block = self.text.blocks[0]
        assert isinstance(block, DecoderBlock)
        return fused_obstacle(self.text, block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)

    def encode_image(self, pixels: Tensor, tiling: tuple[int, int]) -> Tensor:
        return self.vision.project(self.vision.encode(pixels), tiling)

    def kv_statistics(self) -> Sequence[tuple[float, float]]:
        return self.text.kv_statistics()

    def embed(self, ids: Tensor) -> Tensor:
        return nn.functional.embedding(ids, self.text.wte)

    def embed_coordinates(self, values: Tensor) -> Tensor:
        region = self.region
        return region.coord_encoder(fourier_features(values[:, None], region.coord_features))

    def embed_sizes(self, values: Tensor) -> Tensor:
        region = self.region
        return region.size_encoder(fourier_features(values, region.size_features))

    def turns(self, parts: Sequence[int | tuple[int, int]]) -> None: ...

    def forward(self, x: Tensor, positions: Tensor, attention: Attention, deepstack: Tensor | None = None) -> Tensor:
        return self.text(x, positions, attention)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.text.lm_head(self.text.post_ln(hidden))

    def coordinate_of(self, index: Tensor, bins: int) -> Tensor:
        """Return the coordinate in [0, 1] of each bin, float32."""
        return coord_from_bin(index, bins if self.config.region.coord_scale == "bins" else bins - 1)

    def coordinate_logits(self, hidden: Tensor) -> Tensor:
        return self.region.coord_decoder(self._region_input(hidden))

    def size_logits(self, hidden: Tensor) -> Tensor:
        return self.region.size_decoder(self._region_input(hidden)).unflatten(-1, (2, -1))

    def _region_input(self, hidden: Tensor) -> Tensor:
        normed = self.config.region.input == "normed"
        return self.region.ln(self.text.post_ln(hidden) if normed else hidden)

    @property
    def heads(self) -> Heads | None:
        text, region = self.text, self.region
        if self.config.region.input == "normed":  # a second norm has no place in a head as data
            return None
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
    linear = (nn.Linear, QuantisedLinear)
    layers = [layer for layer in decoder.modules() if isinstance(layer, linear)]  # in the order of their use
    weights = (norm.weight, norm.bias, norm.eps) if isinstance(norm, nn.LayerNorm) else None
    return Head(weights, tuple((stored_weight(layer), layer.bias) for layer in layers))
