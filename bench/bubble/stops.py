"""Stops that only the device knows: a model whose sequences all end at one position, which the host cannot predict.

```
forward   hidden state ── + mark where the position has reached the stop ──> hidden state
logits    of the end id: far above all others where the mark is, far below them where it is not
```
"""

import torch
from torch import Tensor

from photonlite.models.base import KvPages, Model, ModelView, NextPositions, PackedPrompts, PromptDecoder, StepDecoder
from photonlite.models.layers import Attention
from photonlite.runner.tokens import head_logits

_LIMIT = 2.0**14
"""Far above what the first number of a hidden state or a logit ever is; twice as much still fits float16."""


class StopModel(ModelView):
    """A model whose sequences end at one position, whatever the inner model samples.

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
        """Return the model's logits with that of the end id replaced."""
        logits = head_logits(self._model, "text", hidden)
        logits[..., self._end] = hidden[..., 0] - _LIMIT
        return logits

    def prompt_decoder(self, *, fp8: bool = False) -> PromptDecoder | None:
        """Return the model's decoder, wrapped to mark hidden states."""
        inner = self._model.prompt_decoder(fp8=fp8)
        return None if inner is None else _MarkedPrompts(inner, self._marks)

    def step_decoder(self) -> StepDecoder | None:
        """Return the model's decoder, wrapped to mark hidden states."""
        inner = self._model.step_decoder()
        return None if inner is None else _MarkedSteps(inner, self._marks)

    @property
    def heads(self) -> None:
        """None: the logits of the end id are not those of the model's head."""

    def coordinate_logits(self, hidden: Tensor) -> Tensor:
        """Return what the engine computes with the inner model."""
        return head_logits(self._model, "coordinate", hidden)

    def size_logits(self, hidden: Tensor) -> Tensor:
        """Return what the engine computes with the inner model."""
        return head_logits(self._model, "size", hidden)


class _MarkedPrompts:
    """A prompt decoder that marks hidden states."""

    def __init__(self, inner: PromptDecoder, marks: Tensor) -> None:
        self._inner = inner
        self._marks = marks

    def __call__(self, x: Tensor, prompts: PackedPrompts, cache: KvPages) -> Tensor:
        """Run the decoder, and mark rows whose last position has reached the stop."""
        hidden = self._inner(x, prompts, cache)
        hidden[:, 0] += self._marks[(prompts.lengths - 1).clamp(min=0)]
        return hidden

    def activation_bytes(self, positions: int) -> int:
        """Return the upper bound of the inner decoder."""
        return self._inner.activation_bytes(positions)


class _MarkedSteps:
    """A step decoder that marks hidden states."""

    def __init__(self, inner: StepDecoder, marks: Tensor) -> None:
        self._inner = inner
        self._marks = marks

    def __call__(self, x: Tensor, rows: NextPositions, cache: KvPages) -> Tensor:
        """Take the step, and mark rows whose position has reached the stop."""
        hidden = self._inner(x, rows, cache)
        hidden[:, 0] += self._marks[rows.positions]
        return hidden
