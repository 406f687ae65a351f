"""Choosing: ids among what a grammar allows, bins of coordinates and sizes, and how sure the model was of them.

Choices follow the request's settings. Probabilities that end up in scores do not: they are the model's own, at
temperature 1 and over the whole distribution, in float32.
"""

import math

import torch
from torch import Tensor

from photonlite.errors import NumericalError
from photonlite.request import Allowed, SamplingSettings

COORDINATE_SHARE = 0.01
"""Bins within this share of the picture of the chosen one count towards a coordinate's mass."""

SIZE_RATIO = 1.1
"""Bins within this factor of the chosen one count towards a size's mass."""


class Sampler:
    """Chooses for one request.

    Args:
        settings: Temperature, top-p and seed.
        device: Where the logits are; random numbers come from a generator of this request's own there.
    """

    def __init__(self, settings: SamplingSettings, device: torch.device) -> None:
        self._settings = settings
        self._generator: torch.Generator | None = None
        if not settings.greedy:
            self._generator = torch.Generator(device)
            if settings.seed is None:
                self._generator.seed()
            else:
                self._generator.manual_seed(int(settings.seed))

    def pick(self, logits: Tensor) -> Tensor:
        """Choose from the last dimension.

        Greedy: the largest, the first among equals. Else, as the public reference does: the softmax of logits /
        temperature; an entry goes when those before it in descending order already hold more than top-p; one of the
        rest is drawn.

        Args:
            logits: float32 ``[..., N]``.

        Returns:
            int64 ``[...]``.
        """
        if self._generator is None:
            return logits.argmax(dim=-1)
        # The largest becomes 0 first: no temperature, however small, turns it into infinity, or 0 / 0 into a NaN.
        temperature = max(float(self._settings.temperature), torch.finfo(torch.float32).tiny)
        shifted = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
        probability, order = shifted.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
        before = probability.cumsum(dim=-1) - probability
        probability = probability.masked_fill(before > float(self._settings.top_p), 0.0)
        rows = probability.reshape(-1, probability.shape[-1])  # divided by their sums by multinomial itself
        drawn = torch.multinomial(rows, 1, generator=self._generator).view(*logits.shape[:-1], 1)
        return order.gather(-1, drawn).squeeze(-1)


def choose_id(logits: Tensor, allowed: Allowed, sampler: Sampler) -> tuple[int, float]:
    """Choose the next id.

    Args:
        logits: ``[vocab]``, any floating type.
        allowed: What may be chosen; not a forced id, for which no logits are needed.
        sampler: The request's.

    Returns:
        The id (where the position decides whether to go on, `allowed.end` or `allowed.coordinate`), and the
        probability of going on: 1 - P(end) over the deciding ids, or 1 where the position decides nothing.

    Raises:
        NumericalError: The logits hold a NaN, or nothing finite.
    """
    logits = logits.float()
    if allowed.ids is not None:
        ids = torch.tensor(allowed.ids, device=logits.device)
        logits = logits[ids]
    elif allowed.suppressed:
        logits = logits.index_fill(0, torch.tensor(allowed.suppressed, device=logits.device), -math.inf)
    check_finite(float(logits.amax()), "the logits of the next token")
    index = int(sampler.pick(logits))
    token_id = index if allowed.ids is None else allowed.ids[index]
    if allowed.end is None:
        return token_id, 1.0
    end = allowed.end if allowed.ids is None else allowed.ids.index(allowed.end)
    others = logits.index_fill(0, torch.tensor(end, device=logits.device), -math.inf)
    probability = float(torch.sigmoid(others.logsumexp(dim=0) - logits[end]))
    if token_id != allowed.end and allowed.coordinate is not None:
        token_id = allowed.coordinate
    return token_id, probability


def choose_bins(logits: Tensor, radius: float, sampler: Sampler) -> tuple[Tensor, tuple[float, ...]]:
    """Choose a bin in each row.

    Args:
        logits: ``[..., bins]``, any floating type.
        radius: Bins on either side of the chosen one that count towards its mass.
        sampler: The request's.

    Returns:
        The bins, int64 ``[...]``, and the probability mass around each, flat.

    Raises:
        NumericalError: The logits hold a NaN, or nothing finite.
    """
    logits = logits.float()
    probability = logits.softmax(dim=-1)
    # A NaN anywhere in a row makes its whole softmax NaN: it is seen before anything is drawn from it.
    check_finite(float(probability.sum()), "the logits of a coordinate or size")
    index = sampler.pick(logits)
    distance = (torch.arange(logits.shape[-1], device=logits.device) - index[..., None]).abs()
    mass = (probability * (distance <= radius)).sum(dim=-1)
    return index, tuple(min(1.0, value) for value in mass.flatten().tolist())


def coordinate_radius(bins: int) -> float:
    """Give the bins on either side that count towards a coordinate's mass: 1 % of the picture."""
    return bins * COORDINATE_SHARE


def size_radius(bins: int, octaves: float) -> float:
    """Give the bins on either side that count towards a size's mass: 10 %, on their logarithmic scale."""
    return math.log2(SIZE_RATIO) * (bins - 1) / octaves


def check_finite(value: float, what: str) -> None:
    """Refuse a value that stands for a whole tensor when it is NaN or infinite.

    Raises:
        NumericalError: It is.
    """
    if not math.isfinite(value):
        raise NumericalError(
            f"{what} are not finite: the weights are damaged, or too large for their number type; "
            "try dtype='float32', or download the checkpoint again"
        )
