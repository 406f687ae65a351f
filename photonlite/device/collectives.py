"""Collective operations between the ranks of tensor parallelism: NCCL between cards, Gloo between processes on the CPU.

On a card they run on the current stream and can be captured in CUDA graphs. The process groups are made here rather
than by `torch.distributed.init_process_group`, whose one default group belongs to the program around photonlite.
"""

import contextlib
import importlib
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor

from photonlite.device.peer_memory import PeerMemory

c10d: Any = importlib.import_module("torch._C._distributed_c10d")  # its classes have no type hints

_CONNECT_S: Final = 300.0  # seconds for all ranks to meet; nothing else here has a limit that healthy ranks could meet
_LOOPBACK: Final = "127.0.0.1"
_PEER_BYTES: Final = 16 * 2**20  # three times 64 rows of 16,384 numbers, and what says where ranks are


class RankGroup:
    """One rank's place among `count`; every rank calls the same operations in the same order, with equal shapes."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank = rank
        self.count = count
        self.peers: PeerMemory | None = None  # on cards that reach each other's memory
        self._group: Any = None
        self._abortable = False

    def connect(self, store: int, device: torch.device) -> None:
        """Meet the other ranks through an empty file that all have open; RuntimeError where one does not come."""
        limit = timedelta(seconds=_CONNECT_S)
        place = c10d.FileStore(f"/proc/self/fd/{store}", self.count)
        place.set_timeout(limit)
        if device.type == "cuda":
            options = c10d.ProcessGroupNCCL.Options()
            options._timeout = limit
            self._group = c10d.ProcessGroupNCCL(place, self.rank, self.count, options)
            self._abortable = True
        else:
            options = c10d.ProcessGroupGloo._Options()
            options._devices = [c10d.ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
            options._timeout = limit
            self._group = c10d.ProcessGroupGloo(place, self.rank, self.count, options)
        self.sum(torch.zeros(1, device=device))  # NCCL connects with the first operation
        if device.type == "cuda":
            self._open_peers(place, device)

    def _open_peers(self, place: Any, device: torch.device) -> None:
        """Share memory between the cards, if all of them can."""
        peers = PeerMemory.open(place, self.rank, self.count, _PEER_BYTES, device)
        able = self.sum(torch.tensor([0 if peers is None else 1], device=device))
        if peers is not None and int(able) < self.count:
            peers.close()
            peers = None
        self.peers = peers

    def sum(self, x: Tensor) -> Tensor:
        """Add up a contiguous tensor over all ranks, in place, and return it."""
        _wait(self._group.allreduce([x], _blocking(c10d.AllreduceOptions())))
        return x

    def concat(self, x: Tensor) -> Tensor:
        """Join the tensors of all ranks along the last dimension, in their order."""
        parts = x.new_empty(self.count * len(x), *x.shape[1:])
        _wait(self._group._allgather_base(parts, x.contiguous(), _blocking(c10d.AllgatherOptions())))
        return parts.view(self.count, *x.shape).movedim(0, -2).flatten(-2)

    def broadcast(self, x: Tensor) -> None:
        """Overwrite a contiguous tensor with that of rank 0."""
        _wait(self._group.broadcast([x], _blocking(c10d.BroadcastOptions())))

    def abort(self) -> None:
        """End operations on a card that wait for a lost rank, with undefined results; from any thread.

        Between processes on the CPU they raise by themselves.
        """
        group, peers = self._group, self.peers
        if peers is not None:
            with contextlib.suppress(RuntimeError):
                peers.abort()
        if group is not None and self._abortable:
            with contextlib.suppress(RuntimeError):
                group.abort()

    def close(self) -> None:
        """Free the connections; all operations have ended."""
        self.abort()  # waits for no other rank
        self._group = None
        if self.peers is not None:
            self.peers.close()
            self.peers = None


def _blocking(options: Any) -> Any:
    """Make a collective run on the current stream, not on one of its own that must be waited for."""
    options.asyncOp = False
    return options


def _wait(work: Any) -> None:
    if work is not None:  # NCCL gives none for what runs on the current stream
        work.wait()
