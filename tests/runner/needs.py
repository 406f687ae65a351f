"""What a finalize of several rows takes, for tests that have no runner."""

from collections.abc import Iterable

from photonlite.batch import SamplingParams
from photonlite.runner import sampling_params
from photonlite.runner.sampling_params import Variant


def variant_of(choices: Iterable[SamplingParams | None]) -> tuple[Variant, bool]:
    """The variant of heads for these rows, and whether any of them draws."""
    needs = 0
    for choice in choices:
        if choice is not None:
            needs |= sampling_params.required_heads(choice)
    return sampling_params.variant_of(needs)
