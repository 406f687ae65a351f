"""Rank 0: the runner and the executor of an engine whose steps run on several ranks."""

import contextlib
import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from photonlite.batch import PageCopy, ScheduledBatch, Step
from photonlite.config import KvDtype
from photonlite.device.base import Device
from photonlite.models.base import Model, UnfusedModel
from photonlite.models.checkpoint import LoadedModel, load_files
from photonlite.models.loading import ModelFiles
from photonlite.observe.trace import Tracer
from photonlite.request import Token
from photonlite.runner.graphs import Capturer, GraphOptions, GraphReport
from photonlite.runner.prefill import make_rows
from photonlite.runner.ranks.memory import SharedDevice
from photonlite.runner.ranks.model import RankModel
from photonlite.runner.ranks.model_runner import RankRunner
from photonlite.runner.ranks.team import Team
from photonlite.runner.sampling_params import Variant
from photonlite.runner.slots import Slot
from photonlite.runner.step_executor import ModelRunner, StepExecutor
from photonlite.runner.torch_model_runner import FusedParts, RunnerLimits


class TeamModel(RankModel):
    """Rank 0's share of a model, and the ranks that have the rest."""

    def __init__(self, model: Model, team: Team) -> None:
        super().__init__(model, team.ranks)
        self.team = team

    def unfused(self) -> "TeamModel":
        return TeamModel(UnfusedModel(self._model), self.team)


def load_team(
    files: ModelFiles, count: int, *, device: torch.device, dtype: torch.dtype, max_context: int | None = None
) -> LoadedModel:
    """Start `count` ranks and load a model, a share on each; raises as `models.checkpoint.load_files` and `Team`."""
    team = Team(files, count, device, dtype, max_context)
    team.start()
    try:
        loaded = load_files(files, device=device, dtype=dtype, max_context=max_context, ranks=team.ranks)
    except BaseException:
        team.stop()
        raise
    model = TeamModel(loaded.model, team)
    weakref.finalize(model, team.stop)
    return dataclasses.replace(loaded, model=model)


class LeaderRunner(RankRunner):
    """Sends a record of all work on the compute stream to the other ranks, and does its share.

    Slots are filled before that, in memory that all ranks map.
    """

    def __init__(
        self,
        team: Team,
        model: Model,
        device: torch.device,
        dtype: torch.dtype,
        limits: RunnerLimits,
        *,
        kv_dtype: KvDtype,
        fused: FusedParts,
        **options: Any,
    ) -> None:
        self._team = team
        with team.leading("make", limits, kv_dtype, fused.steps is not None):
            super().__init__(team.ranks, model, device, dtype, limits, fused=fused, **options)

    def capture(self, options: GraphOptions, capturer: Capturer | None = None, *parts: Any) -> GraphReport:
        with self._team.leading("capture", options):
            return super().capture(options, capturer, *parts)

    def rehearse(self, positions: int, images: int) -> None:
        with self._team.leading("rehearse", positions):
            super().rehearse(positions, images)

    def prefill(self, slot: Slot, plan: ScheduledBatch) -> None:
        rows = make_rows(plan.rows)
        with self._team.leading("prefill", slot.index, [dataclasses.replace(row, turns=None) for row in rows]):
            self._run_prompts(slot, rows)

    def decode(self, slot: Slot, count: int) -> None:
        with self._team.leading("decode", slot.index, count):
            super().decode(slot, count)

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        if copies:
            with self._team.leading("copy_pages", copies):
                super().copy_pages(copies)

    def finalize(self, slot: Slot, count: int, variant: Variant, *, sampled: bool) -> None:
        with self._team.leading("finalize", slot.index, count, variant, sampled):
            super().finalize(slot, count, variant, sampled=sampled)

    def free_memory(self) -> None:
        with self._team.leading("free_memory"):
            super().free_memory()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a rank that is lost has nothing to free
            self._team.send("close")
        super().close()


class TeamExecutor(StepExecutor):
    """Runs steps on all ranks; its slots are in memory that all of them map."""

    def __init__(self, team: Team, device: Device, runner: ModelRunner, depth: int, tracer: Tracer) -> None:
        super().__init__(SharedDevice(device, team.memory), runner, depth, tracer)
        self._team = team
        with team.leading("open_slots", depth):
            pass

    def collect(self, step: Step) -> list[Token | Exception | None]:
        found = super().collect(step)
        self._team.check()  # a lost rank ends what waits for it, and leaves numbers without meaning
        return found

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._team.stop()
