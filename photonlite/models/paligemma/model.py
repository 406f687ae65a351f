"""The whole model: a vision tower and a text decoder, as the engine runs them (`models.base.Model`)."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from photonlite.device.collectives import RankGroup
from photonlite.models.base import ModelShape
from photonlite.models.layers import Attention
from photonlite.models.paligemma.config import PaliGemmaConfig
from photonlite.models.paligemma.fused import FusedDecode, block_weights, rotary_rows, step_obstacle
from photonlite.models.paligemma.images import SquareImages
from photonlite.models.paligemma.text import TextDecoder
from photonlite.models.paligemma.vision import VisionTower

LOCATIONS = 1024
"""Bins of a coordinate, each with a token of its own; the first one is at 0, the last one at 1."""


class PaliGemmaModel(nn.Module):
    """Modules `vision` and `text`, created without values.

    Location tokens are coordinates for the engine: one id stands for all of them, the bin is chosen among their logits,
    and what is fed back is the embedding of the token that was meant. `first_location` is the id of bin 0.
    """

    input_weights = None
    heads = None  # fused heads have no soft cap
    size_octaves = 0.0  # there are no sizes

    def __init__(self, config: PaliGemmaConfig, first_location: int) -> None:
        super().__init__()
        self.config, self.first_location = config, first_location
        self.crop_spec = SquareImages.of(config.vision)
        self.vision = VisionTower(config.vision, config.text.dim)
        self.text = TextDecoder(config.text)

    @functools.cached_property
    def shape(self) -> ModelShape:
        text = self.config.text
        return ModelShape(
            layers=text.layers,
            kv_heads=text.kv_heads,
            head_dim=text.head_dim,
            max_context=text.max_context,
            prefix_length=None,
            bos_id=None,
            dim=text.dim,
            vocab_size=text.vocab_size,
            prefix_lm=True,
        )

    def crop_encoder(self, *, fp8: bool = False) -> VisionTower:
        return self.vision

    def prompt_decoder(self, *, fp8: bool = False) -> None: ...

    def step_decoder(self, ranks: RankGroup | None = None) -> FusedDecode | None:
        if ranks is not None or step_obstacle(self.text):
            return None
        return FusedDecode(block_weights(self.text), rotary_rows(self.config.text, self.text.words.device))

    def plain_parts(self) -> dict[str, str]:
        rules = "fused attention of prompts has neither soft caps nor windows"
        parts = {"image encoder": "this family has no fused kernels for it", "prompts": rules}
        reason = step_obstacle(self.text)
        return parts if reason is None else parts | {"decode steps": reason}

    def kv_statistics(self) -> Sequence[tuple[float, float]]:
        return self.text.kv_statistics()

    def embed(self, ids: Tensor) -> Tensor:
        return self.text.embed(ids)

    def forward(self, x: Tensor, positions: Tensor, attention: Attention, deepstack: Tensor | None = None) -> Tensor:
        return self.text(x, positions, attention)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.text.logits(hidden)

    def turns(self, parts: Sequence[int | tuple[int, int]]) -> None: ...

    # ---- locations, see `models.base.NumberHeads`

    @property
    def numbers(self) -> "PaliGemmaModel":
        return self

    def embed_coordinates(self, values: Tensor) -> Tensor:
        return self.embed(self.first_location + (values * (LOCATIONS - 1)).round().long())

    def coordinate_logits(self, hidden: Tensor) -> Tensor:
        return self.text.logits(hidden, self.first_location, LOCATIONS)

    def coordinate_of(self, index: Tensor, bins: int) -> Tensor:
        return index.to(torch.float32) / (bins - 1)
