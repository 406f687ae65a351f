"""Runs the kernel that chooses on the CPU by Triton's interpreter; see `interpreted.py`."""

import os
import random
from dataclasses import replace
from typing import get_args

os.environ["TRITON_INTERPRET"] = "1"

import torch

from photonlite.kernels import choosing, reference_choosing, skinny
from photonlite.runner.choices import Variant
from tests.kernels.choices import assert_same, new_target, random_case

VARIANTS: tuple[Variant, ...] = get_args(Variant)
CPU = torch.device("cpu")


def main() -> None:
    torch.manual_seed(0)
    rng = random.Random(0)
    choosing.BLOCK = 64
    for variant in VARIANTS:
        for rows, vocab in ((1, 70), (5, 200), (13, 64), (13, 33), (5, 40)):
            for _ in range(3):
                case = random_case(rng, variant, rows, vocab, torch.float32)
                wanted = new_target(rows)
                found = replace(wanted, results=wanted.results.clone(), pending=wanted.pending.clone())
                reference_choosing.choose(*case, wanted, sampled=False)
                choosing.triton_choose(*case, found)
                assert_same(found, wanted)
                assert not skinny.arrival_counters(CPU, rows).any(), "counters are left for the next launch"
    print("interpreted kernels agree")


if __name__ == "__main__":
    main()
