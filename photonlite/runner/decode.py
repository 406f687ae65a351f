"""Decode steps: the next position of each row, whose input is in the pending table."""

import math

from torch import Tensor

from photonlite.kernels.paged_attention import paged_attention
from photonlite.kernels.reference.attention import ScoreRule, write_kv
from photonlite.models.base import Model, NextPositions, StepDecoder
from photonlite.models.layers import Attention
from photonlite.runner.buffers import PagedCache
from photonlite.runner.context import ForwardContext
from photonlite.runner.slots import PAGES, POSITION, TURN, WRITE_SLOT


class Decode:
    """Runs decode steps: up to `most` rows with a decoder, if there is one, else in the model's own operations.

    The model is the context's unless given. It is called in inference mode.
    """

    def __init__(
        self,
        decoder: StepDecoder | None,
        context: ForwardContext,
        model: Model | None = None,
        *,
        most: float = math.inf,
    ) -> None:
        self._decoder, self._context, self._most = decoder, context, most
        self._model = model or context.model

    def __call__(self, rows: Tensor) -> Tensor:
        """Map rows, int32 ``[B, 4 + P]``, to the raw hidden states of their next position, ``[B, dim]``."""
        context = self._context
        x = context.embed_pending(rows)
        if self._decoder is not None and len(rows) <= self._most:
            following = NextPositions(rows[:, POSITION], rows[:, WRITE_SLOT], rows[:, PAGES:], rows[:, TURN])
            return self._decoder(x, following, context.cache)
        positions = rows[:, TURN : TURN + 1]
        if context.shape.axes:
            positions = positions.expand(context.shape.axes, -1, -1)
        return self._model.forward(x[:, None], positions, decode_attention(context.cache, rows))[:, 0]


def decode_attention(cache: PagedCache, rows: Tensor) -> Attention:
    """Return attention for one position a row: it is stored, and sees all up to itself; q is ``[B, 1, H, D]``.

    `rows` are int32 ``[B, 4 + P]`` as in `runner.slots`.
    """
    slots, lengths, table = rows[:, WRITE_SLOT].long(), rows[:, POSITION] + 1, rows[:, PAGES:]

    def attention(layer: int, q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule | None = None) -> Tensor:
        keys, values = cache.layer(layer)
        scales = cache.scales[layer]
        write_kv(keys, values, k[:, 0], v[:, 0], slots, *scales)
        return paged_attention(q[:, 0], keys, values, table, lengths, *scales, rule)[:, None]

    return attention
