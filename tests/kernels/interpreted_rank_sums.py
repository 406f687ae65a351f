"""Runs the kernel that adds up ranks on the CPU by Triton's interpreter, each rank a process; see `interpreter.py`."""

import multiprocessing
import random
import time
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.device.collectives import RankGroup
from photonlite.kernels.rank_sums import RankSums

STEPS, ROWS = 3, 4
FORK = multiprocessing.get_context("fork")


def values(rows: int, dim: int, *seed: int) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(hash(seed)))


def run(rank: int, memory: list[Tensor], dim: int, count: int, ended: Tensor, late: float) -> None:
    try:
        add(rank, memory, dim, count, ended, late)
    except BaseException:
        ended.fill_(1)  # the others would wait for ever
        raise


def add(rank: int, memory: list[Tensor], dim: int, count: int, ended: Tensor, late: float) -> None:
    """Make the sums of some steps, and check each of them and its norm; a rank is late now and then."""
    ranks = RankGroup(rank, len(memory))
    addresses = torch.tensor([one.data_ptr() for one in memory])  # processes have been forked: theirs are equal
    ranks.peers = SimpleNamespace(own=memory[rank], addresses=addresses, ended=ended)  # type: ignore[assignment]
    sums = RankSums(ranks, dim, count)
    chance = random.Random(rank)
    for step in range(STEPS):
        rows = 1 + step * 2 % ROWS
        x = values(rows, dim, step)
        for index in range(count):
            if chance.random() < 0.3:
                time.sleep(late)
            partial = sums.partial(x, index)
            partial.copy_(values(rows, dim, step, index, rank))
            weight, bias = 1 + values(1, dim, index)[0], values(1, dim, index, 1)[0]
            norm = (None, (weight, None, 1e-5), (weight, bias, 1e-5))[index % 3]
            wanted = x.clone()
            for other in range(len(memory)):
                wanted += values(rows, dim, step, index, other)
            found = sums.add(x, partial, index, norm)
            torch.testing.assert_close(x, wanted)
            if norm is not None and bias is not None:
                shifted = functional.layer_norm(wanted, (dim,), weight, bias, 1e-5)
                wanted = shifted if norm[1] is not None else functional.rms_norm(wanted, (dim,), weight, 1e-5)
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def shared(rank_count: int) -> list[Tensor]:
    """Memory of ranks whose counts are about to wrap around."""
    memory = [torch.zeros(2**18, dtype=torch.uint8).share_memory_() for _ in range(rank_count)]
    for one in memory:
        one[:4096].view(torch.int32).fill_(2**31 - 4)
    return memory


def on_processes(count: int, *arguments: Any) -> list[int | None]:
    memory = shared(count)
    processes = [FORK.Process(target=run, args=(rank, memory, *arguments)) for rank in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def waits_until(ended: Tensor) -> None:
    """Have one of two ranks wait for another that never comes, and end that."""
    memory = shared(2)

    def alone() -> None:
        ranks = RankGroup(0, 2)
        addresses = torch.tensor([one.data_ptr() for one in memory])
        ranks.peers = SimpleNamespace(own=memory[0], addresses=addresses, ended=ended)  # type: ignore[assignment]
        sums, x = RankSums(ranks, 24, 2), torch.zeros(1, 24)
        sums.add(x, sums.partial(x, 0), 0, None)

    process = FORK.Process(target=alone)
    process.start()
    process.join(1)
    assert process.is_alive(), "a rank did not wait for the other"
    ended.fill_(1)
    process.join()
    assert process.exitcode == 0


def main() -> None:
    torch.set_num_threads(1)
    ended = torch.zeros(1, dtype=torch.int32).share_memory_()
    for ranks, dim, sums in ((2, 40, 5), (4, 24, 2)):
        assert on_processes(ranks, dim, sums, ended, 0.01) == [0] * ranks
    waits_until(ended)
    print("interpreted kernels agree")


if __name__ == "__main__":
    main()
