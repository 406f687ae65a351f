"""Engines whose ranks are threads: what rank 0 alone computes reaches the others, in every pass."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from photonlite.models.checkpoint import load_files
from photonlite.runner.ranks.leader import TeamModel
from tests.equality import check
from tests.ranks import RankScene, ThreadTeam, divisible_config, saved
from tests.tiny import CPU


def divided(folder: Path, seed: int, count: int) -> TeamModel:
    files = saved(divisible_config(), folder, seed)
    team = ThreadTeam(files, count)
    return TeamModel(load_files(files, device=CPU, dtype=torch.float64, ranks=team.ranks).model, team)


def test_some_requests_on_two_threads_equal_the_oracle_at_both_depths(tmp_path: Path) -> None:
    seen = check(RankScene(3, 3, divided(tmp_path, 3, 2)), "two threads")

    assert seen["encodes"]


@pytest.mark.long
def test_many_requests_on_two_threads_equal_the_oracle_at_both_depths(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in (5, 8):
        seen.update(check(RankScene(seed, 20, divided(tmp_path, seed, 2)), f"seed {seed} on two threads"))

    assert all(seen[name] for name in ("cancelled", "preemptions", "zombies", "hits", "encodes", "forced")), seen
