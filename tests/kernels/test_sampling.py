import importlib.util
import math
import random
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from photonlite.kernels import sampling
from photonlite.kernels.columns import PARAM_COLUMNS, PENALTY
from photonlite.kernels.reference import sampling as reference
from photonlite.kernels.reference.sampling import Logits
from photonlite.kernels.sampling import penalize, sample_tokens, score_ids
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.runner.sampling_params import Variant
from tests.conftest import Ended
from tests.kernels.sampling_cases import Case, Target, assert_same, kinds_of, new_target, random_case
from tests.runner.needs import SamplingParams, variant_of

VARIANTS: tuple[Variant, ...] = get_args(Variant)


def on_card(case: Case) -> Case:
    logits, *tensors = case
    heads = {name: getattr(logits, name) for name in ("ids", "coordinate", "size")}
    moved = {name: None if head is None else head.cuda() for name, head in heads.items()}
    hidden, params, masks = (tensor.cuda() for tensor in tensors)
    return replace(logits, **moved), hidden, params, masks


def wanted_of(case: Case, like: Target) -> Target:
    results, pending = torch.zeros_like(like.results.cpu()), torch.full_like(like.pending.cpu(), -7)
    wanted = Target(results, pending, like.rows.cpu())
    reference.sample_tokens(*case, *wanted, sampled=False)
    return wanted


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_cases_are_those_of_their_variants(variant: Variant) -> None:
    penalty = 1.5 if variant == "penalized" else 1.0
    rows = [SamplingParams(allowed, 0.0, 1.0, 0, 0, penalty=penalty) for allowed in kinds_of(variant, 70)]
    assert variant_of(rows) == (variant, False)


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
def test_a_result_that_the_kernel_could_not_write_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "use_triton", lambda x: True)
    case = random_case(random.Random(0), "text", 2, 70, torch.float32)
    target = new_target(2)
    apart = torch.zeros(2, 9, dtype=torch.int32)[:, :7]
    with pytest.raises(ValueError, match="whole rows"):
        sample_tokens(*case, *target._replace(results=apart), sampled=False)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long
@pytest.mark.program("tests.kernels.interpreter", "tests.kernels.interpreted_sampling")
def test_the_kernel_agrees_with_the_reference_in_tritons_interpreter(ended: Ended) -> None:
    # The interpreter is chosen when Triton is imported, which another test of this process may have done.
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout


def bits(*ids: int) -> list[int]:
    words = [sum(1 << one % 32 for one in ids if one // 32 == word) for word in range(2)]
    return np.array(words, np.uint32).view(np.int32).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_penalty_changes_logits_as_the_processor_of_transformers_does(dtype: torch.dtype) -> None:
    from transformers import RepetitionPenaltyLogitsProcessor  # takes seconds, which a collection need not wait for

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 70, generator=generator).to(dtype)
    logits[:, 3], logits[1, 5] = 0.0, -math.inf
    seen = [[0, 3, 5, 31, 32, 69], [5, 64], [], [7, 8]]
    penalties = [1.3, 0.7, 1.05, 1.0]
    words = torch.tensor([bits(*(one for one in ids if one < 64)) for ids in seen], dtype=torch.int32)
    last = torch.tensor([[sum(1 << one - 64 for one in ids if one >= 64)] for ids in seen], dtype=torch.int32)
    params = torch.zeros(4, PARAM_COLUMNS, dtype=torch.int32)
    params.view(torch.float32)[:, PENALTY] = torch.tensor(penalties)

    found = penalize(logits, torch.cat((words, last), dim=1), params)

    for row, ids, penalty, raw in zip(found, seen, penalties, logits.float(), strict=True):
        if ids:
            assert torch.equal(row, RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([ids]), raw[None])[0])
        else:
            assert torch.equal(row, raw)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_probabilities_are_those_among_the_allowed_ids(dtype: torch.dtype) -> None:
    logits = torch.zeros(2, 40, dtype=dtype)
    logits[0, [3, 35]], logits[0, 9] = 1.0, 50.0
    masks = torch.tensor([bits(3, 7, 35), bits(0, 39)], dtype=torch.int32)
    ids = torch.tensor([[35, 7, 9, -1], [39, -1, -1, -1]], dtype=torch.int32)
    scores = torch.full((2, 4), 7.0)
    score_ids(logits, masks, ids, scores)

    whole = 2 * math.e + 1
    assert scores[0, :3].tolist() == pytest.approx([math.e / whole, 1 / whole, 0], rel=1e-6)
    assert scores[1, 0].item() == 0.5


def test_logits_beyond_all_measure_give_probabilities_still() -> None:
    logits = torch.tensor([[1e30, -1e30, 1e30, 5.0]])
    scores = torch.zeros(1, 3)
    score_ids(logits, torch.tensor([[0b0111]], dtype=torch.int32), torch.tensor([[0, 1, 2]], dtype=torch.int32), scores)

    assert scores.tolist() == [[0.5, 0.0, 0.5]]


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_kernel_agrees_with_the_reference_on_the_device(variant: Variant, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    rng = random.Random(1)
    for rows, vocab in ((1, 51200), (1, 51200), (1, 1023), (7, 2049), (64, 51200), (100, 300)):
        case = random_case(rng, variant, rows, vocab, dtype)
        found = new_target(rows, "cuda")
        sample_tokens(*on_card(case), *found, sampled=False)
        assert_same(found, wanted_of(case, found))


@pytest.mark.gpu
@gpu
def test_replays_of_a_graph_leave_the_same_bits_again_and_again() -> None:
    torch.manual_seed(2)
    case = random_case(random.Random(2), "mixed", 64, 51200, torch.bfloat16)
    logits, hidden, params, masks = on_card(case)
    found = new_target(64, "cuda")
    sample_tokens(logits, hidden, params, masks, *found, sampled=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sample_tokens(logits, hidden, params, masks, *found, sampled=False)

    first = found.results.clone()
    for _ in range(200):
        found.results.zero_()
        graph.replay()
        assert torch.equal(found.results, first)
    assert_same(found, wanted_of(case, found))


@pytest.mark.gpu
@gpu
def test_double_precision_stays_with_the_reference() -> None:
    logits = torch.zeros(1, 70, dtype=torch.float64)
    logits[0, 9] = 1e-12
    _, _, params, masks = random_case(random.Random(0), "text", 1, 70, torch.float32)
    params[0, :4] = -1
    found = new_target(1, "cuda")
    hidden = torch.zeros(1, 4).cuda()
    sample_tokens(Logits(logits.cuda()), hidden, params.cuda(), (masks * 0 - 1).cuda(), *found, sampled=False)
    assert found.results[0, 0].item() == 9
