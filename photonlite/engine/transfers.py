"""Copies of pages between device and host memory, from the scheduler's choice to their end. No torch."""

import logging
import time
from collections import deque

from photonlite.batch import Executor, Transfer
from photonlite.observe.metrics import EngineMetrics
from photonlite.observe.trace import Tracer
from photonlite.scheduler.scheduler import Scheduler

_logger = logging.getLogger("photonlite")


class Transfers:
    """Hands copies to the executor, and tells the scheduler which have ended."""

    def __init__(self, scheduler: Scheduler, runner: Executor, metrics: EngineMetrics, tracer: Tracer) -> None:
        self.open: deque[Transfer] = deque()  # queued on the device, oldest first
        self._scheduler = scheduler
        self._runner = runner
        self._metrics = metrics
        self._tracer = tracer

    def start(self) -> None:
        """Queue the copies that the scheduler has decided on, and trace its choices."""
        swap = self._scheduler.running.swap
        for transfer in swap.take_new():
            self._runner.transfer(transfer)
            self.open.append(transfer)
        for choice in swap.take_choices():
            now = time.perf_counter()
            self._tracer.span("host", choice.way, now, now, **choice._asdict())

    def finish(self, *, wait: bool) -> bool:
        """Note the copies that have ended, and wait for the oldest if told to; returns whether one has.

        A copy that failed loses nothing: its sequence is computed again.
        """
        metrics, moved = self._metrics, False
        while self.open and self._runner.transferred(self.open[0], wait=wait and not moved):
            transfer, moved = self.open.popleft(), True
            if transfer.failure is not None:
                _logger.warning("copying pages %s failed: they are computed again", transfer.direction)
            elif transfer.direction == "out":
                metrics.pages_swapped_out += len(transfer.pages)
            else:
                metrics.pages_swapped_in += len(transfer.pages)
            self._scheduler.finish_transfer(transfer)
        return moved
