"""Other ways to divide decode steps among programs: for a part of the card, or to leave SMs to other work.

Kernels of decode steps are not persistent: a product has a program for each tile of its weight, attention has at least
one for each head of each row. So a step can leave SMs free only by tiles so large that there are fewer programs than
SMs. That is possible for products, down to 56 programs of 256 rows for the first one of a block; attention of 8 streams
already has 256 programs, of which an SM takes many, and the hardware spreads them over all SMs. cuBLAS takes a number
of SMs for its own products, and PyTorch passes it on.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from bench.steps.tune import divided
from photonlite.kernels.decode_attention import AttentionConfig
from photonlite.kernels.tilings import Tiling
from photonlite.models.moondream.config import TextConfig
from photonlite.tuning.lanes import Card, Lane, Replay
from photonlite.tuning.paces import alone
from photonlite.tuning.works import Decoding

GAIN = 0.005  # share of its time by which a candidate must beat the best so far
TRIAL_S = 0.04  # that a candidate is measured
AGREE = 0.05  # largest difference of logits from those of the usual tilings, as a share of the largest logit

IN = [
    Tiling(64, 128, 1, 4, 3, 2),
    Tiling(64, 128, 1, 4, 2, 4),
    Tiling(64, 128, 1, 4, 3, 3),
    Tiling(64, 256, 1, 4, 3),
    Tiling(128, 64, 1, 4, 3, 2),
    Tiling(128, 128, 1, 8, 3),
    Tiling(256, 64, 1, 8, 4),
]
OUT = [
    *(Tiling(64, 128, parts, 4, 4, together) for parts, together in ((1, 1), (2, 1), (2, 2), (3, 2), (4, 2), (4, 3))),
    Tiling(64, 256, 2, 4, 3),
    Tiling(32, 256, 1, 4, 4),
]
ATTENTION = [
    *(AttentionConfig(16, parts, 1, 4, dot=True) for parts in (1, 2, 3, 4, 6, 8)),
    AttentionConfig(32, 1, 2, 3, dot=True),
]
FEW = {
    "in": Tiling(256, 64, 1, 8, 4),
    "out": Tiling(64, 128, 1, 4, 5),
    "head": Tiling(256, 64, 1, 8, 4),
}
"""The fewest programs of each product."""

Choices = Mapping[str, Any]


class Kinds:
    """Kinds of kernels of a step, by the sizes of their weights.

    Args:
        text: Of the model.
    """

    def __init__(self, text: TextConfig) -> None:
        qkv = (text.n_heads + 2 * text.kv_heads) * text.head_dim
        self._sizes = {
            "in": (qkv + text.ff_dim, text.dim),
            "out": (text.dim, text.n_heads * text.head_dim + text.ff_dim),
            "head": (text.vocab_size, text.dim),
            "attention": (0, 0),
        }
        self.candidates: Mapping[str, Sequence[Any]] = {"in": IN, "attention": ATTENTION, "out": OUT}

    @contextlib.contextmanager
    def chosen(self, choices: Choices) -> Iterator[None]:
        """Divide kernels as `choices` say; those that they leave out as usual."""
        with contextlib.ExitStack() as stack:
            for name, choice in choices.items():
                stack.enter_context(divided(name, *self._sizes[name], choice))
            yield

    def programs(self, choices: Choices) -> str:
        """Say how many programs the products of `choices` have."""
        counts = {name: -(-self._sizes[name][0] // choice.outs) * choice.parts for name, choice in choices.items()}
        return ", ".join(f"{name} {count}" for name, count in counts.items())

    def capture(self, lane: Lane, work: Callable[[], object], choices: Choices) -> Replay:
        """Capture work on a lane with some choices."""
        with self.chosen(choices):
            return lane.capture(work)

    def search(self, card: Card, lane: Lane, step: Decoding, until: float, say: Callable[[str], None]) -> Choices:
        """Return the choices that make a step fastest on a lane, one kind of kernel after the other.

        Begins no candidate after `until`, a time of `time.perf_counter`. Candidates that do not fit are left out.

        Raises:
            AssertionError: A step with the choices computes something else.
        """
        usual = self.capture(lane, step, {})
        best, chosen = alone(card, lane, usual, TRIAL_S).mean, dict[str, Any]()
        expected = _logits(step)
        for name, candidates in self.candidates.items():
            for candidate in candidates:
                if time.perf_counter() > until:
                    break
                trial = {**chosen, name: candidate}
                try:
                    seconds = alone(card, lane, self.capture(lane, step, trial), TRIAL_S).mean
                except Exception as error:  # does not fit the card, or does not compile for it
                    say(f"  {lane.sms} SMs, {name}: {candidate}: {type(error).__name__}: {error!s:.160}")
                    continue
                if seconds < best * (1 - GAIN):
                    best, chosen = seconds, trial
                    say(f"  {lane.sms} SMs, {name}: {1e3 * seconds:.3f} ms with {candidate}")
        alone(card, lane, self.capture(lane, step, chosen), TRIAL_S)
        gap = float((_logits(step) - expected).abs().max() / expected.abs().max())
        if not gap <= AGREE:
            raise AssertionError(f"logits of a step divided as {chosen} are {gap:.1%} away from those as usual")
        return chosen


def _logits(step: Decoding) -> torch.Tensor:
    if step.logits is None:
        raise AssertionError("the step has not run")
    return step.logits.float().clone()


@contextlib.contextmanager
def fewer_sms(sms: int, total: int) -> Iterator[None]:
    """Let cuBLAS's products that are captured inside use `sms` SMs of `total`, as far as it obeys; a CPU has none."""
    if not torch.cuda.is_available():
        yield
        return
    usual = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library("cublaslt")  # only these products take a number
    torch._C._set_sm_carveout_experimental(total - sms)
    try:
        yield
    finally:
        torch._C._set_sm_carveout_experimental(None)
        torch.backends.cuda.preferred_blas_library(usual)
