"""Runs the kernel that chooses on the CPU by Triton's interpreter; see `interpreter.py`."""

import random
from typing import get_args

import torch

from photonlite.kernels import sampling, triton_utils
from photonlite.kernels.reference import sampling as reference
from photonlite.runner.sampling_params import Variant
from tests.kernels.sampling_cases import assert_same, new_target, random_case

VARIANTS: tuple[Variant, ...] = get_args(Variant)
CPU = torch.device("cpu")


def main() -> None:
    torch.manual_seed(0)
    rng = random.Random(0)
    sampling.BLOCK = 64
    for variant in VARIANTS:
        for rows, vocab in ((1, 70), (5, 200), (9, 64), (6, 33)):
            for _ in range(2):
                case = random_case(rng, variant, rows, vocab, torch.float32)
                wanted = new_target(rows)
                found = wanted._replace(results=wanted.results.clone(), pending=wanted.pending.clone())
                reference.sample_tokens(*case, *wanted, sampled=False)
                sampling.sample_tokens(*case, *found, sampled=False)
                assert_same(found, wanted)
                assert not triton_utils.arrival_counters(CPU, rows).any(), "counters are left for the next launch"
    print("interpreted kernels agree")
