"""Logits at Moondream 2's shape, random weights, against those of full precision; and the time of a decode step."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.bubble.report import table
from bench.quantised.models import LongContext, bytes_of_release, quantised_copy
from photonlite.models.layers import MaskedAttention
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.precisions import Precisions


@dataclass(frozen=True, slots=True)
class Variant:
    """A precision of the decoder's weights, and the type of everything else."""

    precisions: Precisions
    dtype: torch.dtype

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{self.precisions.text}, else {name}" if self.precisions.text else name


VARIANTS = (
    Variant(Precisions(), torch.float32),
    Variant(Precisions(), torch.bfloat16),
    Variant(Precisions("int8"), torch.float32),
    Variant(Precisions("int8"), torch.bfloat16),
    Variant(Precisions("int4"), torch.float32),
    Variant(Precisions("int4"), torch.bfloat16),
)
LOGITS = (VARIANTS[1], VARIANTS[2], Variant(Precisions("fp8"), torch.float32), VARIANTS[4])


@torch.inference_mode()
def compare_logits(model: MoondreamModel, words: int, variants: Sequence[Variant] = LOGITS) -> str:
    """Write how far the logits of each variant are from those of a model in float32."""
    ids = torch.randint(21, model.shape.vocab_size, (1, words), generator=torch.Generator().manual_seed(0))
    truth = _logits(model, ids)
    rows = []
    for variant in variants:
        rows.append(
            [str(variant), *_against(truth, _logits(quantised_copy(model, variant.precisions, variant.dtype), ids))]
        )
    head = ["weights", "KL divergence, mean (nats)", "same greedy token", "error / deviation"]
    return table(head, rows)


def _logits(model: MoondreamModel, ids: Tensor) -> Tensor:
    """Return the logits behind each word, float32 ``[words, vocab]``."""
    count = ids.shape[1]
    mask = torch.ones(count, count, dtype=torch.bool).tril()
    return model.logits(model.forward(model.embed(ids), torch.arange(count), MaskedAttention(mask)))[0].float()


def _against(truth: Tensor, found: Tensor) -> list[str]:
    log_p, log_q = truth.log_softmax(dim=-1), found.log_softmax(dim=-1)
    divergence = (log_p.exp() * (log_p - log_q)).sum(dim=-1).mean()
    agree = (truth.argmax(dim=-1) == found.argmax(dim=-1)).float().mean()
    error = ((found - truth) / truth.std(dim=-1, keepdim=True)).square().mean().sqrt()
    return [f"{float(divergence):.2e}", f"{float(agree):.1%}", f"{float(error):.3f}"]


@torch.inference_mode()
def time_steps(model: MoondreamModel, rounds: int, variants: Sequence[Variant] = VARIANTS) -> str:
    """Write tokens a second of one stream and bytes of weights; variants take turns, the shortest step counts."""
    models = [quantised_copy(model, one.precisions, one.dtype) for one in variants]
    contexts = [LongContext(model, one.dtype) for one in variants]
    times: list[list[float]] = [[] for _ in variants]
    for _ in range(rounds + 1):
        for made, context, own in zip(models, contexts, times, strict=True):
            begun = time.perf_counter()
            hidden = made.forward(made.embed(torch.tensor([[7]])), torch.tensor([900]), context)
            made.logits(hidden).argmax().item()
            own.append(time.perf_counter() - begun)
    best = [min(own[1:]) for own in times]
    full = min(seconds for seconds, one in zip(best, variants, strict=True) if not one.precisions)
    rows = []
    for one, seconds in zip(variants, best, strict=True):
        sizes = [bytes_of_release(Precisions(one.precisions.text, vision), one.dtype) for vision in (None, "int8")]
        rows.append([str(one), f"{1 / seconds:.2f}", f"{full / seconds:.2f}", *(f"{size / 1e9:.2f}" for size in sizes)])
    head = ["weights", "tokens a second", "against the best of full precision"]
    return table([*head, "GB of weights", "with the encoder in int8"], rows)
