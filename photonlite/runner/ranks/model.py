"""A rank's share of a model, as the runner sees it."""

import dataclasses
import functools
from collections.abc import Sequence

from torch import Tensor

from photonlite.device.collectives import RankGroup
from photonlite.models.base import Model, ModelShape, ModelView

_REASON = "'tensor_parallel' divides the decoder, whose fused kernels do not add up over ranks"


class RankModel(ModelView):
    """Its decoder runs in operations of PyTorch, captured in CUDA graphs; rank 0 has the fused image encoder."""

    heads = None

    def __init__(self, model: Model, ranks: RankGroup) -> None:
        super().__init__(model)
        self.ranks = ranks

    @functools.cached_property
    def shape(self) -> ModelShape:
        """The sizes on this rank: the cache holds its own heads."""
        whole: ModelShape = self._model.shape
        return dataclasses.replace(whole, kv_heads=whole.kv_heads // self.ranks.count)

    def prompt_decoder(self, *, fp8: bool = False) -> None: ...
    def step_decoder(self) -> None: ...

    def plain_parts(self) -> dict[str, str]:
        return {**self._model.plain_parts(), "prompts": _REASON, "decode steps": _REASON}

    def logits(self, hidden: Tensor) -> Tensor:
        """Map raw hidden states ``[..., dim]`` to ``[..., vocab]``; every rank takes part."""
        return self.ranks.concat(self._model.logits(hidden))


class NoEncoder:
    """Stands for the image encoder on ranks that get embeddings from rank 0."""

    def encode(self, pixels: Tensor, grids: Sequence[tuple[int, int]] = ()) -> Tensor:
        """Return embeddings of no size: only launches that measure memory come here."""
        return pixels.new_empty(0, 0, 0)

    def project(self, features: Tensor, tiling: tuple[int, int]) -> Tensor:
        return features
