"""Rows of a finalize and what they take, for tests that have no runner."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from photonlite.grammar.decoding.grammars import MaskCache
from photonlite.request import Allowed
from photonlite.runner import sampling_params
from photonlite.runner.sampling_params import Variant, write_params, write_unused


class SamplingParams(NamedTuple):
    """How one row's token is sampled."""

    allowed: Allowed
    temperature: float
    top_p: float
    seed: int
    index: int
    top_k: int = 0
    penalty: float = 1.0


def write_choice(
    choice: SamplingParams | None, row: npt.NDArray[np.int32], mask: npt.NDArray[np.int32], masks: MaskCache
) -> None:
    """Write a row's params and mask; None is a row whose token is not wanted."""
    if choice is None:
        write_unused(row)
    else:
        write_params(row, mask, masks, *choice)


def variant_of(choices: Iterable[SamplingParams | None]) -> tuple[Variant, bool]:
    """The variant of heads for these rows, and whether any of them draws."""
    needs = 0
    for choice in choices:
        if choice is not None:
            needs |= sampling_params.required_heads(choice.allowed, choice.temperature, choice.penalty)
    return sampling_params.variant_of(needs)
