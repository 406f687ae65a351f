"""The plain runner: one sequence at a time, each with a dense cache of its own.

```
encode          crops ──> picture embeddings [P, dim]
prefill_image   BOS + picture ──> cache, every position sees every other
extend          prompt, then token after token ──> cache, causal ──> raw hidden state of the last position [dim]
next_token      hidden state ──> heads, mask, sample ──> Token, on the host
```
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from photonlite.models.base import Model, ModelShape
from photonlite.models.layers import attend
from photonlite.request import Allowed, Token
from photonlite.runner.sampler import Sampler, choose_bins, choose_id, coordinate_radius, size_radius


class DenseCache:
    """Keys and values of one sequence, allocated once; the attention that a model's forward pass calls.

    Args:
        shape: Of the model.
        capacity: Positions.
        device: Where the model is.
        dtype: Of keys and values.
    """

    def __init__(self, shape: ModelShape, capacity: int, device: torch.device, dtype: torch.dtype) -> None:
        size = (shape.layers, 1, capacity, shape.kv_heads, shape.head_dim)
        self.keys = torch.empty(size, device=device, dtype=dtype).unbind()  # per layer: [1, capacity, H_kv, D]
        self.values = torch.empty(size, device=device, dtype=dtype).unbind()
        self.capacity = capacity
        self.filled = 0
        self._start = 0
        self._mask: Tensor | None = None

    def reserve(self, count: int, *, bidirectional: bool = False) -> Tensor:
        """Make room for the positions of the next forward pass.

        Args:
            count: How many.
            bidirectional: Whether they see each other in both directions; else each sees those up to itself.

        Returns:
            The positions, int64 ``[count]``.
        """
        if self.filled + count > self.capacity:
            raise ValueError(f"{count} positions after {self.filled} exceed the cache's {self.capacity}")
        self._start, self.filled = self.filled, self.filled + count
        device = self.keys[0].device
        self._mask = None
        if count > 1 and not bidirectional:
            self._mask = torch.ones(count, self.filled, dtype=torch.bool, device=device).tril(self._start)
        return torch.arange(self._start, self.filled, device=device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the reserved positions of one layer and attend to all so far; see `models.layers.Attention`."""
        keys, values = self.keys[layer], self.values[layer]
        keys[:, self._start : self.filled] = k
        values[:, self._start : self.filled] = v
        return attend(q, keys[:, : self.filled], values[:, : self.filled], self._mask)

    def copy_from(self, other: "DenseCache") -> None:
        """Begin with all positions of another cache."""
        for mine, theirs in zip((*self.keys, *self.values), (*other.keys, *other.values), strict=True):
            mine[:, : other.filled] = theirs[:, : other.filled]
        self.filled = other.filled


class PlainRunner:
    """Runs a model step by step; encoding, prefilling a picture and choosing return when they are done.

    Args:
        model: In evaluation mode, on the device.
        device: Where it is.
        dtype: Of its weights.
    """

    def __init__(self, model: Model, device: torch.device, dtype: torch.dtype) -> None:
        self._model = model
        self._shape = model.shape
        self._device = device
        self._dtype = dtype

    def new_cache(self, capacity: int) -> DenseCache:
        """Allocate the cache of one sequence, for so many positions."""
        with torch.inference_mode():
            return DenseCache(self._shape, capacity, self._device, self._dtype)

    @torch.inference_mode()
    def encode(self, pixels: npt.NDArray[np.uint8], tiling: tuple[int, int]) -> Tensor:
        """Encode the crops of one picture, uint8 ``[n, C, C, 3]``, as embeddings ``[P, dim]``."""
        embeddings = self._model.encode_image(torch.from_numpy(pixels).to(self._device), tiling)
        self._wait()
        return embeddings

    @torch.inference_mode()
    def prefill_image(self, cache: DenseCache, embeddings: Tensor) -> Tensor:
        """Put BOS and a picture ``[P, dim]`` into an empty cache; returns the last raw hidden state ``[dim]``."""
        hidden = self._forward(cache, torch.cat((self._bos(), embeddings[None]), dim=1), bidirectional=True)
        self._wait()
        return hidden

    @torch.inference_mode()
    def copy(self, source: DenseCache, target: DenseCache) -> None:
        """Begin a cache with all that another one holds."""
        target.copy_from(source)

    @torch.inference_mode()
    def extend(self, cache: DenseCache, tokens: Sequence[Token]) -> Tensor:
        """Append tokens to a cache, BOS first if it is empty; returns the last raw hidden state ``[dim]``."""
        x = self._embed(tokens)[None]
        return self._forward(cache, x if cache.filled else torch.cat((self._bos(), x), dim=1))

    @torch.inference_mode()
    def next_token(self, hidden: Tensor, allowed: Allowed, sampler: Sampler) -> Token:
        """Choose what follows a raw hidden state ``[dim]``; heads that the choice does not need are not computed.

        Raises:
            NumericalError: Logits are not finite.
        """
        token_id, probability = allowed.forced, 1.0
        if token_id is None:
            token_id, probability = choose_id(self._model.logits(hidden), allowed, sampler)
        if token_id == allowed.coordinate:
            logits = self._model.coordinate_logits(hidden)[None]  # [1, bins]
            bins = logits.shape[-1]
            index, masses = choose_bins(logits, coordinate_radius(bins), sampler)
            return Token(token_id, tuple(self._model.coordinate_of(index, bins).tolist()), probability, masses)
        if token_id == allowed.size:
            logits = self._model.size_logits(hidden)  # [2, bins]
            bins = logits.shape[-1]
            index, masses = choose_bins(logits, size_radius(bins, self._model.size_octaves), sampler)
            return Token(token_id, tuple(self._model.size_of(index, bins).tolist()), probability, masses)
        return Token(token_id)

    def _wait(self) -> None:
        """Wait for the device, so that times add up to what was waited for; choosing a token waits by itself."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _forward(self, cache: DenseCache, x: Tensor, *, bidirectional: bool = False) -> Tensor:
        positions = cache.reserve(x.shape[1], bidirectional=bidirectional)
        return self._model.forward(x, positions, cache)[0, -1]

    def _bos(self) -> Tensor:
        return self._model.embed(torch.tensor([[self._shape.bos_id]], device=self._device))

    def _embed(self, tokens: Sequence[Token]) -> Tensor:
        """Embed tokens as ``[T, dim]``: words by their ids, coordinates and sizes by their values."""
        x = self._model.embed(torch.tensor([token.id for token in tokens], device=self._device))
        for count, embed in ((1, self._embed_coordinates), (2, self._model.embed_sizes)):
            rows = [row for row, token in enumerate(tokens) if len(token.values) == count]
            if rows:
                values = torch.tensor([tokens[row].values for row in rows], dtype=torch.float32, device=self._device)
                x[rows] = embed(values)
        return x

    def _embed_coordinates(self, values: Tensor) -> Tensor:
        return self._model.embed_coordinates(values[:, 0])
