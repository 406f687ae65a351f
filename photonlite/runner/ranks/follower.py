"""The program of all ranks but the first: loads a share of the model, then does what the records of rank 0 say.

An exception ends the process, and with it the engine: the other ranks are in the middle of the same step.
"""

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection

import torch

from photonlite.batch import PageCopy
from photonlite.config import KvDtype
from photonlite.device.collectives import RankGroup
from photonlite.device.cpu import compute_threads, in_passing
from photonlite.device.names import open_device
from photonlite.models.checkpoint import load_files
from photonlite.runner.buffers import kv_format, transfer
from photonlite.runner.graphs import GraphOptions
from photonlite.runner.memory import device_memory
from photonlite.runner.prefill import PromptRow
from photonlite.runner.ranks.memory import SharedDevice, SharedMemory, gather_memory
from photonlite.runner.ranks.model import NoEncoder, RankModel
from photonlite.runner.ranks.model_runner import RankRunner
from photonlite.runner.ranks.process import RankSetup, read_setup
from photonlite.runner.sampling_params import Variant
from photonlite.runner.slots import Slot
from photonlite.runner.torch_model_runner import FusedParts, RunnerLimits


class FollowerRunner(RankRunner):
    """A runner whose inputs are in arrays that rank 0 has filled; it copies them on the compute stream."""

    def run_prompts(self, slot: Slot, rows: Sequence[PromptRow]) -> None:
        buffers, tokens = self._buffers[slot.index], sum(row.tokens for row in rows)
        self.upload_rows(slot, len(rows))
        transfer(buffers.tokens[:tokens], slot.tokens[:tokens])
        self._prefill.upload(buffers, slot, rows)
        self._run_prompts(slot, rows)

    def run_decode(self, slot: Slot, count: int) -> None:
        self.upload_rows(slot, count)
        self.decode(slot, count)


class Follower:
    """The records of rank 0 by name; see `ranks.leader.LeaderRunner` for who sends them."""

    def __init__(self, setup: RankSetup, model: RankModel, memory: SharedMemory) -> None:
        self._setup = setup
        self._model = model
        self._ranks: RankGroup = model.ranks
        self._runner: FollowerRunner
        self._before = 0
        self._slots: list[Slot] = []
        self._device = SharedDevice(open_device(setup.device), memory)

    def make(self, limits: RunnerLimits, kv_dtype: KvDtype, fused_steps: bool) -> None:
        device, dtype = self._setup.device, self._setup.dtype
        spread = None
        if device.type == "cuda":
            self._before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
        else:
            spread = compute_threads(self._setup.cpu_threads)
        own = replace(limits, max_crops=0, image_bytes=0)
        kv = kv_format(kv_dtype, self._model, device, dtype)
        # Its head must round as that of rank 0.
        model = self._model if fused_steps else self._model.unfused()
        fused = FusedParts(NoEncoder(), steps=model.step_decoder())
        self._runner = FollowerRunner(self._ranks, model, device, dtype, own, fused=fused, kv=kv, spread=spread)

    def rehearse(self, positions: int) -> None:
        self._runner.rehearse(positions, 0)

    def gather_memory(self, fraction: float) -> None:
        """Tell rank 0 how much memory this rank's card has, and what the rehearsal took of it."""
        device = self._setup.device
        activations = torch.cuda.max_memory_allocated(device) - self._before
        gather_memory(self._ranks, device, device_memory(device, fraction, self._before), activations)

    def capture(self, options: GraphOptions) -> None:
        self._runner.capture(options)

    def open_slots(self, depth: int) -> None:
        self._slots = [Slot(index, self._device, self._runner.shape) for index in range(depth)]

    def prefill(self, slot: int, rows: Sequence[PromptRow]) -> None:
        self._run(lambda: self._runner.run_prompts(self._slots[slot], rows))

    def decode(self, slot: int, count: int) -> None:
        self._run(lambda: self._runner.run_decode(self._slots[slot], count))

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        self._run(lambda: self._runner.copy_pages(copies))

    def finalize(self, slot: int, count: int, variant: Variant, sampled: bool) -> None:
        self._run(lambda: self._runner.finalize(self._slots[slot], count, variant, sampled=sampled))

    def free_memory(self) -> None:
        self._run(self._runner.free_memory)

    def close(self) -> None:
        self._run(self._runner.close)

    def _run(self, work: Callable[[], None]) -> None:
        self._device.compute.run(lambda: _or_exit(work))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))
    setup = read_setup(connection)
    threading.Thread(target=_exit_with, args=(setup.parent,), daemon=True).start()
    if setup.device.type == "cuda":
        torch.cuda.set_device(setup.device)  # or it would open a context on the first card too
    follower = _load(setup, connection)
    while True:
        try:
            name, arguments = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):  # rank 0 is done with this process, or has ended
            os._exit(0)
        _or_exit(partial(getattr(follower, name), *arguments))


def _load(setup: RankSetup, connection: Connection) -> Follower:
    ranks = RankGroup(setup.rank, setup.count)
    try:
        loaded = in_passing(
            lambda: load_files(
                setup.files, device=setup.device, dtype=setup.dtype, max_context=setup.max_context, ranks=ranks
            )
        )
    except BaseException as error:
        connection.send(f"{type(error).__name__}: {error}")
        raise
    connection.send(None)
    ranks.connect(setup.store, setup.device)
    memory = SharedMemory(setup.memory, page_lock=setup.device.type == "cuda")
    return Follower(setup, RankModel(loaded.model, ranks), memory)


def _or_exit(work: Callable[[], None]) -> None:
    """Do something; end the process where it raises, on any thread."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _exit_with(parent: int) -> None:
    """End this process within a second of its parent, also while it waits for another rank."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
