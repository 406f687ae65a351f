"""A rank's share of a model, as the runner sees it."""

import dataclasses
import functools
from collections.abc import Sequence

from torch import Tensor

from photonlite.device.collectives import RankGroup
from photonlite.models.base import Heads, Model, ModelShape, ModelView, StepDecoder, UnfusedModel
from photonlite.runner.tokens import head_logits

_REASON = "'tensor_parallel' divides the decoder, whose fused prompts do not add up over ranks"


class RankModel(ModelView):
    """Its prompts run in operations of PyTorch; rank 0 has the fused image encoder."""

    def __init__(self, model: Model, ranks: RankGroup) -> None:
        super().__init__(model)
        self.ranks = ranks

    def unfused(self) -> "RankModel":
        return RankModel(UnfusedModel(self._model), self.ranks)

    @functools.cached_property
    def shape(self) -> ModelShape:
        """The sizes on this rank: the cache holds its own heads."""
        whole: ModelShape = self._model.shape
        return dataclasses.replace(whole, kv_heads=whole.kv_heads // self.ranks.count)

    def prompt_decoder(self, *, fp8: bool = False) -> None: ...

    def step_decoder(self, ranks: RankGroup | None = None) -> StepDecoder | None:
        decoder: StepDecoder | None = self._model.step_decoder(self.ranks)
        return decoder

    def plain_parts(self) -> dict[str, str]:
        return {**self._model.plain_parts(), "prompts": _REASON}

    @property
    def heads(self) -> Heads | None:
        whole: Heads | None = self._model.heads
        return None if whole is None else dataclasses.replace(whole, text=None)

    def logits(self, hidden: Tensor) -> Tensor:
        """Map raw hidden states ``[..., dim]`` to ``[..., vocab]``; every rank takes part."""
        return self.ranks.concat(head_logits(self._model, "text", hidden))


class NoEncoder:
    """Stands for the image encoder on ranks that get embeddings from rank 0."""

    def encode(self, pixels: Tensor, grids: Sequence[tuple[int, int]] = ()) -> Tensor:
        """Return embeddings of no size: only launches that measure memory come here."""
        return pixels.new_empty(0, 0, 0)

    def project(self, features: Tensor, tiling: tuple[int, int]) -> Tensor:
        return features
