"""Rows of all kinds that want a choice: coarse logits, so that ties abound, some of them damaged."""

import math
import random
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from photonlite.grammar.automata.tables import words
from photonlite.grammar.decoding.grammars import MaskCache
from photonlite.kernels.columns import FINITE, PARAM_COLUMNS, PENDING_COLUMNS, RESULT_COLUMNS
from photonlite.kernels.reference.sampling import Logits
from photonlite.request import Allowed
from photonlite.runner.sampling_params import WITH_COORDINATES, WITH_IDS, WITH_SIZES, Variant
from tests.runner.needs import SamplingParams, write_choice

END, X, WH = 0, 5, 6
DIM, COORDINATES, SIZES = 40, 100, 37
DAMAGE = (math.nan, -math.nan, math.inf, -math.inf)
FORCED = {"coordinate": Allowed((X,), coordinate=X), "size": Allowed((WH,), size=WH), "word": Allowed((7,))}
Case = tuple[Logits, Tensor, Tensor, Tensor]


class Target(NamedTuple):
    """Where sampled tokens are written."""

    results: Tensor
    pending: Tensor
    rows: Tensor


def kinds_of(variant: Variant, vocab: int) -> list[Allowed]:
    """What rows of a variant may be allowed; two words that differ most lie at the ends of the vocabulary."""
    last = vocab - 1
    words_only = [Allowed(), Allowed(suppressed=(1, 2, last)), Allowed((3, 31, 32, last)), Allowed((last, 3))]
    decides = [
        Allowed(None, (1,), coordinate=X),
        Allowed((X, END), coordinate=X, end=END),
        Allowed((END, X), coordinate=X, end=END),
        Allowed(None, coordinate=X, end=END),
        Allowed(None, (1, 2), coordinate=X, end=last),
        Allowed((last, 3, X, 12), coordinate=X, end=last),
        Allowed((3, 12, last), end=last),
        Allowed((3, 12), coordinate=X, end=last),
        Allowed((X,), coordinate=X, end=END),
    ]
    both = [Allowed((4, X, WH), coordinate=X, size=WH), Allowed((X, 9), coordinate=X, size=X)]
    kinds = {
        "text": words_only,
        "coordinate": [FORCED["coordinate"]],
        "size": [FORCED["size"]],
        "decide": [*words_only, *decides, FORCED["coordinate"]],
        "mixed": [*words_only, *decides, *both, *FORCED.values()],
        "scored": [*words_only, *decides, *both, *FORCED.values(), Allowed((3, 12, last), scored=(last, 3))],
    }
    kinds["penalized"] = kinds["scored"]
    return [*kinds[variant], FORCED["word"]]


def random_case(rng: random.Random, variant: Variant, rows: int, vocab: int, dtype: torch.dtype) -> Case:
    """Arguments of `choose` on the CPU; unused rows are among them, and masks that are not written hold garbage."""
    params = np.zeros((rows, PARAM_COLUMNS), np.int32)
    masks = np.full((rows, words(vocab)), -0x5A5A5A5B, np.int32)
    cache = MaskCache(vocab)
    for row, mask in zip(params, masks, strict=True):
        allowed = rng.choice([*kinds_of(variant, vocab), None])
        write_choice(allowed and SamplingParams(allowed, 0.0, 1.0, 0, 0), row, mask, cache)

    def head(*size: int) -> Tensor:
        logits = torch.randn(rows, *size)
        for row in logits:
            if rng.random() < 0.5:  # many ties, at zeros of both signs too
                row.copy_((row * 2).round().clamp(max=rng.choice([0.0, 9.0])) / 2)
            damage, numbers = rng.random(), row.view(-1)
            if damage < 0.2:
                numbers[rng.choice((END, -1, rng.randrange(len(numbers))))] = rng.choice(DAMAGE)
            elif damage < 0.25:
                row.fill_(rng.choice(DAMAGE))
        return logits.to(dtype)

    logits = Logits(
        ids=head(vocab) if variant in WITH_IDS else None,
        coordinate=head(COORDINATES) if variant in WITH_COORDINATES else None,
        size=head(2, SIZES) if variant in WITH_SIZES else None,
        coordinate_radius=1.0,
        size_radius=2.3,
    )
    hidden = torch.where(torch.rand(rows, DIM) < 0.002, rng.choice(DAMAGE), torch.randn(rows, DIM)).to(dtype)
    return logits, hidden, torch.from_numpy(params), torch.from_numpy(masks)


def new_target(rows: int, device: str = "cpu") -> Target:
    """Results, and a pending table in which each row has another place."""
    pending = torch.full((2 * rows + 1, PENDING_COLUMNS), -7, dtype=torch.int32, device=device)
    table = torch.randperm(2 * rows + 1, dtype=torch.int32)[:rows, None].expand(-1, 3).contiguous()
    return Target(torch.zeros(rows, RESULT_COLUMNS, dtype=torch.int32, device=device), pending, table.to(device)[:, 0])


def assert_same(found: Target, wanted: Target) -> None:
    """Ids, bins and finiteness equal; probabilities and masses nearly; what is not finite is void."""
    results, others = found.results.cpu(), wanted.results.cpu()
    assert torch.equal(results[:, FINITE], others[:, FINITE])
    fine = others[:, FINITE] != 0
    assert torch.equal(results[fine, : FINITE + 1], others[fine, : FINITE + 1])
    fractions, wished = (rows[fine, FINITE + 1 :].contiguous().view(torch.float32) for rows in (results, others))
    torch.testing.assert_close(fractions, wished, rtol=1e-5, atol=1e-6)
    rows = wanted.rows.cpu().long()
    pending = found.pending.cpu()
    assert torch.equal(pending[rows], results[:, :PENDING_COLUMNS])
    untouched = torch.ones(len(pending), dtype=torch.bool).index_fill_(0, rows, False)
    assert (pending[untouched] == -7).all()
