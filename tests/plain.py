"""The oracle: the simplest code that answers one request at a time; the engine must give equal answers.

```
encode ─ prefill_image ─ extend(prompt) ─┬─ next_token ─ grammar ─ extend(token) ─┐
                                         └────────────────────<───────────────────┘   until the grammar has finished
```

A dense cache for each request, no batches, no masks, no pipeline; ids are chosen among those that a grammar lists.
Where the engine's cache is in FP8, the dense one keeps numbers that have been rounded to it.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from photonlite.errors import NumericalError
from photonlite.images.crops import ImageCrops
from photonlite.kernels.reference.attention import dequantise, quantise
from photonlite.models.base import Model, ModelShape
from photonlite.models.layers import attend
from photonlite.request import Allowed, Completion, Request, SamplingSettings, Token
from photonlite.results import Metrics
from photonlite.runner.buffers import KvFormat
from photonlite.runner.sampling_params import uniform
from photonlite.runner.tokens import coordinate_radius, size_radius

ID_LANE, VALUE_LANE = 0, 1


class PlainEngine:
    """Runs requests on one model, lazily.

    Args:
        model: In evaluation mode, on the device.
        device: Where it is.
        dtype: Of its weights.
        kv: How keys and values are rounded; not at all unless given.
    """

    def __init__(self, model: Model, device: torch.device, dtype: torch.dtype, kv: KvFormat | None = None) -> None:
        self.shape = model.shape
        self.runner = PlainRunner(model, device, dtype, kv)

    def generate(self, request: Request, crops: ImageCrops | None = None) -> "PlainGeneration":
        """Begin a request."""
        return PlainGeneration(self, request, crops)

    def steps(self, request: Request, crops: ImageCrops | None) -> Iterator[Token]:
        grammar, runner = request.grammar, self.runner
        before = 1 if crops is None else self.shape.prefix_length
        # The last token produced is never fed back.
        cache = runner.new_cache(before + len(request.prompt) + request.budget - 1)
        if crops is not None:
            runner.prefill_image(cache, runner.encode(crops.pixels, crops.tiling))
        hidden = runner.extend(cache, request.prompt)
        sampler = Sampler(request.settings, seen=frozenset(token.id for token in request.prompt if not token.values))
        while True:
            token = runner.next_token(hidden, grammar.allowed, sampler)
            grammar.accept(token)
            yield token
            if grammar.finish_reason is not None:
                return
            hidden = runner.extend(cache, (token,))
            sampler = sampler.next(token)


class PlainGeneration(Iterator[Token]):
    """A running request: an iterator that computes tokens on demand."""

    def __init__(self, engine: PlainEngine, request: Request, crops: ImageCrops | None) -> None:
        self._request = request
        self._steps = engine.steps(request, crops)
        self._tokens: list[Token] = []
        self._size = None if crops is None else crops.picture_size
        self._prompt_tokens = (1 if crops is None else engine.shape.prefix_length) + len(request.prompt)

    def __next__(self) -> Token:
        self._tokens.append(next(self._steps))
        return self._tokens[-1]

    def complete(self) -> Completion:
        """Compute the remaining tokens and return the completion, without measured times."""
        for _ in self:
            pass
        metrics = Metrics(prompt_tokens=self._prompt_tokens, output_tokens=len(self._tokens))
        return Completion(tuple(self._tokens), self._request.grammar.finish_reason, metrics, self._size)


class DenseCache:
    """Keys and values of one sequence, allocated once; the attention that a model's forward pass calls.

    Args:
        shape: Of the model.
        capacity: Positions.
        device: Where the model is.
        dtype: Of keys and values.
        kv: How they are rounded; not at all unless given.
    """

    def __init__(
        self,
        shape: ModelShape,
        capacity: int,
        device: torch.device,
        dtype: torch.dtype,
        kv: KvFormat | None = None,
    ) -> None:
        self._kv = kv
        size = (shape.layers, 1, capacity, shape.kv_heads, shape.head_dim)
        self.keys = torch.empty(size, device=device, dtype=dtype).unbind()  # per layer: [1, capacity, H_kv, D]
        self.values = torch.empty(size, device=device, dtype=dtype).unbind()
        self.capacity = capacity
        self.num_computed_tokens = 0
        self._start = 0
        self._mask: Tensor | None = None

    def reserve(self, count: int, *, bidirectional: bool = False) -> Tensor:
        """Reserve the positions of the next forward pass.

        Args:
            count: How many.
            bidirectional: Whether they see each other in both directions; else each sees those up to itself.

        Returns:
            The positions, int64 ``[count]``.
        """
        if self.num_computed_tokens + count > self.capacity:
            raise ValueError(f"{count} positions after {self.num_computed_tokens} exceed the cache's {self.capacity}")
        self._start, self.num_computed_tokens = self.num_computed_tokens, self.num_computed_tokens + count
        device = self.keys[0].device
        self._mask = None
        if count > 1 and not bidirectional:
            self._mask = torch.ones(count, self.num_computed_tokens, dtype=torch.bool, device=device).tril(self._start)
        return torch.arange(self._start, self.num_computed_tokens, device=device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the reserved positions of one layer and attend to all positions; see `models.layers.Attention`."""
        keys, values = self.keys[layer], self.values[layer]
        if self._kv is not None:
            k_scale, v_scale = self._kv.scales[layer]
            k = dequantise(quantise(k, self._kv.dtype, k_scale), k.dtype, k_scale)
            v = dequantise(quantise(v, self._kv.dtype, v_scale), v.dtype, v_scale)
        keys[:, self._start : self.num_computed_tokens] = k
        values[:, self._start : self.num_computed_tokens] = v
        return attend(q, keys[:, : self.num_computed_tokens], values[:, : self.num_computed_tokens], self._mask)

    def copy_from(self, other: "DenseCache") -> None:
        """Copy all positions of another cache."""
        for mine, theirs in zip((*self.keys, *self.values), (*other.keys, *other.values), strict=True):
            mine[:, : other.num_computed_tokens] = theirs[:, : other.num_computed_tokens]
        self.num_computed_tokens = other.num_computed_tokens


class PlainRunner:
    """Runs a model step by step.

    Args:
        model: In evaluation mode, on the device.
        device: Where it is.
        dtype: Of its weights.
        kv: How keys and values are rounded; not at all unless given.
    """

    def __init__(self, model: Model, device: torch.device, dtype: torch.dtype, kv: KvFormat | None = None) -> None:
        self._kv = kv
        self._model = model
        self._shape = model.shape
        self._device = device
        self._dtype = dtype

    def new_cache(self, capacity: int) -> DenseCache:
        """Allocate the cache of one sequence, for so many positions."""
        with torch.inference_mode():
            return DenseCache(self._shape, capacity, self._device, self._dtype, self._kv)

    @torch.inference_mode()
    def encode(self, pixels: npt.NDArray[np.uint8], tiling: tuple[int, int]) -> Tensor:
        """Encode the crops of one image, uint8 ``[n, C, C, 3]``, as embeddings ``[P, dim]``."""
        return self._model.encode_image(torch.from_numpy(pixels).to(self._device), tiling)

    @torch.inference_mode()
    def prefill_image(self, cache: DenseCache, embeddings: Tensor) -> Tensor:
        """Put BOS and an image ``[P, dim]`` into an empty cache; returns the last raw hidden state ``[dim]``."""
        return self._forward(cache, torch.cat((self._bos(), embeddings[None]), dim=1), bidirectional=True)

    @torch.inference_mode()
    def copy(self, source: DenseCache, target: DenseCache) -> None:
        """Return a copy of a cache."""
        target.copy_from(source)

    @torch.inference_mode()
    def extend(self, cache: DenseCache, tokens: Sequence[Token]) -> Tensor:
        """Append tokens to a cache, BOS first if it is empty; returns the last raw hidden state ``[dim]``."""
        x = self._embed(tokens)[None]
        return self._forward(cache, x if cache.num_computed_tokens else torch.cat((self._bos(), x), dim=1))

    @torch.inference_mode()
    def next_token(self, hidden: Tensor, allowed: Allowed, sampler: "Sampler") -> Token:
        """Sample the token after a raw hidden state ``[dim]``; computes only the heads it needs.

        Raises:
            NumericalError: Logits are not finite.
        """
        token_id, probability, scores = allowed.forced, 1.0, ()
        if token_id is None:
            token_id, probability = choose_id(self._model.logits(hidden), allowed, sampler)
        if allowed.scored:
            scores = score_ids(self._model.logits(hidden), allowed)
        if (numbers := self._model.numbers) is None:
            return Token(token_id, scores=scores)
        if token_id == allowed.coordinate:
            logits = numbers.coordinate_logits(hidden)[None]  # [1, bins]
            bins = logits.shape[-1]
            index, masses = choose_bins(logits, coordinate_radius(bins), sampler)
            return Token(token_id, tuple(numbers.coordinate_of(index, bins).tolist()), probability, masses, scores)
        if token_id == allowed.size:
            logits = numbers.size_logits(hidden)  # [2, bins]
            bins = logits.shape[-1]
            index, masses = choose_bins(logits, size_radius(bins, numbers.size_octaves), sampler)
            return Token(token_id, tuple(numbers.size_of(index, bins).tolist()), probability, masses, scores)
        return Token(token_id, scores=scores)

    def _forward(self, cache: DenseCache, x: Tensor, *, bidirectional: bool = False) -> Tensor:
        positions = cache.reserve(x.shape[1], bidirectional=bidirectional)
        return self._model.forward(x, positions, cache)[0, -1]

    def _bos(self) -> Tensor:
        return self._model.embed(torch.tensor([[self._shape.bos_id]], device=self._device))

    def _embed(self, tokens: Sequence[Token]) -> Tensor:
        """Embed tokens as ``[T, dim]``: text by ids, coordinates and sizes by values."""
        x = self._model.embed(torch.tensor([token.id for token in tokens], device=self._device))
        for count in (1, 2):
            rows = [row for row, token in enumerate(tokens) if len(token.values) == count]
            if rows and (numbers := self._model.numbers) is not None:
                values = torch.tensor([tokens[row].values for row in rows], dtype=torch.float32, device=self._device)
                x[rows] = numbers.embed_sizes(values) if count == 2 else numbers.embed_coordinates(values[:, 0])
        return x


@dataclasses.dataclass(frozen=True)
class Sampler:
    """Chooses one token of a request.

    Attributes:
        settings: Temperature, top-p and seed; no seed is seed 0 here.
        index: Which token.
        seen: Words of the prompt and of the answer so far, which a repetition penalty is for.
    """

    settings: SamplingSettings
    index: int = 0
    seen: frozenset[int] = frozenset()

    def next(self, token: Token) -> "Sampler":
        """Return the sampler of the token after this one."""
        seen = self.seen if token.values else self.seen | {token.id}
        return dataclasses.replace(self, index=self.index + 1, seen=seen)

    def penalize(self, logits: Tensor) -> Tensor:
        """Apply the repetition penalty to logits ``[vocab]``, id by id."""
        penalty, penalized = float(self.settings.repetition_penalty), logits.clone()
        for index in self.seen if penalty != 1 else ():
            penalized[index] = logits[index] * penalty if logits[index] < 0 else logits[index] / penalty
        return penalized

    def pick(self, logits: Tensor, lane: int) -> Tensor:
        """Choose from the last dimension.

        Greedy: the largest, the first among equals. Else, as the public reference does: the softmax of logits /
        temperature; an entry goes when those before it in descending order already hold more than top-p; one of the
        rest is drawn by the inverse of their cumulative distribution.

        Args:
            logits: float32 ``[rows, N]``.
            lane: Of the random number of the first row; that of each further row is one more.

        Returns:
            int64 ``[rows]``.
        """
        if self.settings.greedy:
            return logits.argmax(dim=-1)
        seed = int(self.settings.seed or 0)
        return torch.stack([self._draw(row, uniform(seed, self.index, lane + n)) for n, row in enumerate(logits)])

    def _draw(self, logits: Tensor, number: float) -> Tensor:
        # The largest becomes 0 first: no temperature, however small, turns it into infinity, or 0 / 0 into a NaN.
        temperature = max(float(self.settings.temperature), torch.finfo(torch.float32).tiny)
        probability, order = ((logits - logits.max()) / temperature).softmax(0).sort(descending=True, stable=True)
        if (limit := self.settings.top_k) is not None:
            probability = torch.cat((probability[:limit] / probability[:limit].sum(), 0 * probability[limit:]))
        before = probability.cumsum(0) - probability
        kept = probability.masked_fill(before > float(self.settings.top_p), 0.0)
        mass = kept.cumsum(0)
        return order[((mass > number * mass[-1]) & (kept > 0)).nonzero()[0, 0]]


def choose_id(logits: Tensor, allowed: Allowed, sampler: Sampler) -> tuple[int, float]:
    """Choose the next id.

    Args:
        logits: ``[vocab]``, any floating type.
        allowed: What may be chosen; not a forced id, for which no logits are needed.
        sampler: The token's.

    Returns:
        The id (where the position decides whether to go on, `allowed.end` or `allowed.coordinate`), and the
        probability of going on: 1 - P(end) over the deciding ids, or 1 where the position decides nothing.

    Raises:
        NumericalError: The logits hold a NaN, or nothing finite.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if allowed.free:
        logits = sampler.penalize(logits)
    allowed = listed(allowed, len(logits))
    if allowed.ids is not None:
        ids = torch.tensor(allowed.ids, device=logits.device)
        logits = logits[ids]
    elif allowed.suppressed:
        logits = logits.index_fill(0, torch.tensor(allowed.suppressed, device=logits.device), -math.inf)
    _check_finite(float(logits.amax()))
    index = int(sampler.pick(logits[None], ID_LANE))
    token_id = index if allowed.ids is None else allowed.ids[index]
    if allowed.end is None:
        return token_id, 1.0
    end = allowed.end if allowed.ids is None else allowed.ids.index(allowed.end)
    others = logits.index_fill(0, torch.tensor(end, device=logits.device), -math.inf)
    probability = float(torch.sigmoid(others.logsumexp(dim=0) - logits[end]))
    if token_id != allowed.end and allowed.coordinate is not None:
        token_id = allowed.coordinate
    return token_id, probability


def listed(allowed: Allowed, vocab_size: int) -> Allowed:
    """Return the ids of a mask in ascending order."""
    if allowed.mask is None:
        return allowed
    ids = tuple(index for index in range(vocab_size) if allowed.permits(index))
    return dataclasses.replace(allowed, ids=ids, mask=None)


def score_ids(logits: Tensor, allowed: Allowed) -> tuple[float, ...]:
    """Return the probabilities of the scored ids among the allowed ones.

    Args:
        logits: ``[vocab]``, any floating type.
        allowed: What may be chosen.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    shares = [math.exp(float(logit)) * allowed.permits(index) for index, logit in enumerate(logits - logits.max())]
    whole = math.fsum(shares)
    return tuple(shares[index] / whole for index in allowed.scored)


def choose_bins(logits: Tensor, radius: float, sampler: Sampler) -> tuple[Tensor, tuple[float, ...]]:
    """Choose a bin in each row.

    Args:
        logits: ``[rows, bins]``, any floating type.
        radius: Bins on either side of the chosen one that count towards its mass.
        sampler: The token's.

    Returns:
        The bins, int64 ``[rows]``, and the probability mass around each.

    Raises:
        NumericalError: The logits hold a NaN, or nothing finite.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    probability = logits.softmax(dim=-1)
    # A NaN anywhere in a row makes its whole softmax NaN: it is seen before anything is drawn from it.
    _check_finite(float(probability.sum()))
    index = sampler.pick(logits, VALUE_LANE)
    distance = (torch.arange(logits.shape[-1], device=logits.device) - index[..., None]).abs()
    mass = (probability * (distance <= radius)).sum(dim=-1)
    return index, tuple(min(1.0, value) for value in mass.tolist())


def _check_finite(value: float) -> None:
    if not math.isfinite(value):
        raise NumericalError("the logits are not finite")
