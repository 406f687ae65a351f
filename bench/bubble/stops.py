"""Stops that only the device knows: a model whose sequences all end at one position, so that no host can foresee it.

```
forward   hidden state ── + mark where the position has reached the stop ──> hidden state
logits    of the end id: far above all others where the mark is, far below them where it is not
```
"""

import torch
from torch import Tensor

from photonlite.models.base import KvPages, Model, ModelView, NextPositions, PackedPrompts, PromptDecoder, StepDecoder
from photonlite.models.layers import Attention
from photonlite.runner import tokens

_LIMIT = 2.0**14
"""Far above what the first number of a hidden state or a logit ever is; twice as much still fits float16."""


class StopModel(ModelView):
    """A model that goes on up to a position and ends there, whatever the inner one would say.

    A text ends with the first token chosen at the position or behind it; a list of objects where it may end. All of it
    is tensor code of fixed shapes, so that CUDA graphs can hold it: four or five small kernels a step.

    Args:
        model: Does everything else.
        stop: The position.
        end: The id that ends texts and lists.
        device: Where the model is.
        dtype: Of its hidden states.
    """

    def __init__(self, model: Model, *, stop: int, end: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(model)
        self._end = end
        # The padding of a prompt may reach past the context: by less than another context.
        self._marks = torch.zeros(2 * model.shape.max_context, device=device, dtype=dtype)
        self._marks[stop:] = 2 * _LIMIT

    def ending_at(self, stop: int) -> "StopModel":
        """Return a model of the same weights that ends its sequences at another position."""
        return StopModel(self._model, stop=stop, end=self._end, device=self._marks.device, dtype=self._marks.dtype)

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Run the model, and mark the first number of the hidden states from the stop on."""
        hidden = self._model.forward(x, positions, attention)
        hidden[..., 0] += self._marks[positions]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Give the model's logits, those of the end id aside."""
        logits = tokens.text_logits(self._model, hidden)
        logits[..., self._end] = hidden[..., 0] - _LIMIT
        return logits

    def prompt_decoder(self, *, fp8: bool = False) -> PromptDecoder | None:
        """The model's, and marks."""
        inner = self._model.prompt_decoder(fp8=fp8)
        return None if inner is None else _MarkedPrompts(inner, self._marks)

    def step_decoder(self) -> StepDecoder | None:
        """The model's, and marks."""
        inner = self._model.step_decoder()
        return None if inner is None else _MarkedSteps(inner, self._marks)

    @property
    def heads(self) -> None:
        """None: the logits of the end id are not those of the model's head."""

    def coordinate_logits(self, hidden: Tensor) -> Tensor:
        """As the engine does with the model."""
        return tokens.coordinate_logits(self._model, hidden)

    def size_logits(self, hidden: Tensor) -> Tensor:
        """As the engine does with the model."""
        return tokens.size_logits(self._model, hidden)


class _MarkedPrompts:
    """Marks the hidden states that a decoder of prompts gives."""

    def __init__(self, inner: PromptDecoder, marks: Tensor) -> None:
        self._inner = inner
        self._marks = marks

    def __call__(self, x: Tensor, prompts: PackedPrompts, cache: KvPages) -> Tensor:
        """Run the decoder, and mark rows whose last position has reached the stop."""
        hidden = self._inner(x, prompts, cache)
        hidden[:, 0] += self._marks[(prompts.lengths - 1).clamp(min=0)]
        return hidden

    def activation_bytes(self, positions: int) -> int:
        """The decoder's."""
        return self._inner.activation_bytes(positions)


class _MarkedSteps:
    """Marks the hidden states that a decoder of steps gives."""

    def __init__(self, inner: StepDecoder, marks: Tensor) -> None:
        self._inner = inner
        self._marks = marks

    def __call__(self, x: Tensor, rows: NextPositions, cache: KvPages) -> Tensor:
        """Take the step, and mark rows whose position has reached the stop."""
        hidden = self._inner(x, rows, cache)
        hidden[:, 0] += self._marks[rows.positions]
        return hidden
