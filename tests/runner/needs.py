"""What a finalize of several rows takes, for tests that have no runner."""

from collections.abc import Iterable

from photonlite.batch import SamplingParams
from photonlite.runner.sampling_params import RequiredHeads, Variant


def variant_of(choices: Iterable[SamplingParams | None]) -> tuple[Variant, bool]:
    """The variant of heads for these rows, and whether any of them draws."""
    needs = RequiredHeads()
    for choice in choices:
        if choice is not None:
            needs.add(choice)
    return needs.variant, needs.sampled
