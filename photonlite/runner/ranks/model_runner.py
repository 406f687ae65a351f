"""What a rank computes of a step, collective operations included; every rank runs the same methods in the same order.

```
rank 0    images ── embeddings ─┐            ┌ logits ─ sample ─ pending table ─┐
          tokens ───────────────┼─ forward ──┤                                  ├─ next forward
others    tokens ───────────────┘            └ part of the logits    (copied) ──┘
                    broadcast ──┘   2 sums a layer      joined       broadcast ─┘
```

Inputs of a step are the same on all ranks, and sums give all of them the same numbers: only what rank 0 alone computes
is sent, embeddings of images and sampled tokens.
"""

from typing import Any

from photonlite.device.collectives import RankGroup
from photonlite.models.base import PromptDecoder
from photonlite.runner.buffers import Buffers
from photonlite.runner.context import ForwardContext
from photonlite.runner.prefill import ImagePart, Prefill
from photonlite.runner.sampling_params import WITH_IDS, Variant
from photonlite.runner.torch_model_runner import TorchModelRunner


class RankRunner(TorchModelRunner):
    """A model runner over a `ranks.model.RankModel`; images and sampling are rank 0's."""

    def __init__(self, ranks: RankGroup, *arguments: Any, **options: Any) -> None:
        self._ranks = ranks
        super().__init__(*arguments, **options)

    def _make_prefill(self, decoder: PromptDecoder | None) -> Prefill:
        return RankPrefill(self._ranks, decoder, self._context)

    def _finalize(self, buffers: Buffers, count: int, variant: Variant, sampled: bool) -> None:
        if self._ranks.rank == 0:
            super()._finalize(buffers, count, variant, sampled)
        elif variant in WITH_IDS:
            self._model.logits(buffers.hidden[:count])  # rank 0 joins the parts
        self._ranks.broadcast(self._pending)


class RankPrefill(Prefill):
    """Prompts whose images are embedded by rank 0."""

    def __init__(self, ranks: RankGroup, decoder: PromptDecoder | None, context: ForwardContext) -> None:
        super().__init__(decoder, context)
        self._ranks = ranks

    def _embed_image(self, part: ImagePart, places: slice) -> None:
        if self._ranks.rank == 0:
            super()._embed_image(part, places)
        self._ranks.broadcast(self._x[places])
        for features in () if self._deepstack is None else self._deepstack:
            self._ranks.broadcast(features[places])
