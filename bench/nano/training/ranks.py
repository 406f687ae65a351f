"""Data-parallel training: one process per card, started by torchrun, each with its own scenes."""

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


class Ranks:
    """The processes of a run; without torchrun all methods are no-ops."""

    def __init__(self, device: str) -> None:
        self.rank, self.count = 0, 1
        self.device = torch.device(device)
        if dist.is_torchelastic_launched():
            if self.device.type == "cuda":
                self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
                torch.cuda.set_device(self.device)
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")
            self.rank, self.count = dist.get_rank(), dist.get_world_size()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over all processes, in one message."""
        if self.count == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        flat /= self.count
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        torch._foreach_copy_(list(tensors), [part.view_as(t) for part, t in zip(parts, tensors, strict=True)])

    def broadcast(self, value: float) -> float:
        """Send every process the value of the first; waits for the device."""
        if self.count == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.broadcast(shared, 0)
        return float(shared)

    def wait(self) -> None:
        if self.count > 1:
            dist.barrier()

    def close(self) -> None:
        if self.count > 1:
            dist.destroy_process_group()
