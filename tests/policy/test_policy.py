import dataclasses

import pytest

from bench.policy import crowds
from bench.policy.__main__ import FRAME_S, SCENARIOS, main, make_limits, never_ready
from bench.policy.load import Group, Waits, World
from bench.policy.modelled import H200, at
from photonlite.config import EngineConfig


def after(*groups: Group, seconds: float = 4.0, **limits: float) -> list[Waits]:
    world = World(groups, make_limits(**limits), H200)
    world.run(seconds, warm_up_s=2.0)
    return world.waits


def test_a_curve_interpolates_and_extrapolates() -> None:
    curve = ((1, 2.0), (3, 4.0), (5, 8.0))

    assert [at(curve, size) for size in (1, 2, 3, 4, 5, 6)] == pytest.approx([2.0, 3.0, 4.0, 6.0, 8.0, 10.0])


def test_the_least_cost_of_a_request_is_its_share_of_the_cheapest_launches() -> None:
    encode, prefill = 9 * 11.7 / 9, 740 * 6.9 / 1480
    decode = 2 * (at(H200.decode, 64) + at(H200.finalize, 64)) / 64

    assert Group("answers").best_s(H200) == pytest.approx((encode + prefill + decode) / 1e3)


def test_many_clients_get_nearly_all_that_the_device_can_do() -> None:
    group = Group("answers", 64)
    (waits,) = after(group)

    assert len(waits.answers) * group.best_s(H200) / 4.0 > 0.965


def test_a_single_client_waits_only_for_its_own_work() -> None:
    (waits,) = after(Group("answers"))
    device_s = (11.7 + 3.7 + 2 * 0.82 + 3 * 0.06) / 1e3

    assert max(waits.answers) < device_s + 2e-3  # what the host does before the first launch and for the last result


def test_a_decoded_sequence_waits_at_most_a_pause_and_a_step() -> None:
    config = EngineConfig()
    caption, _ = after(Group("captions", tokens=100), Group("answers", 64))

    # What launches cost before their first crop or position is not part of a budget.
    assert max(caption.gaps) < config.max_pause_s + 3e-3
    assert max(caption.gaps) > 5 * config.launch_budget_s


def test_tokens_come_quickly_while_as_many_requests_run_as_wait() -> None:
    captions, answers = after(Group("captions", 8, tokens=100), Group("answers", 8))

    assert sorted(captions.gaps)[len(captions.gaps) * 99 // 100] < 0.012
    assert len(answers.answers) / 4.0 > 38


@pytest.mark.long
@pytest.mark.parametrize("other", [Group("clients", 64), Group("captions", 64, tokens=100)])
@pytest.mark.parametrize(("crops", "tokens"), [(1, 3), (9, 10)])
def test_a_robot_beside_64_clients_meets_its_deadlines_with_priority_and_misses_them_without(
    other: Group, crops: int, tokens: int
) -> None:
    robot = Group("robot", crops=crops, tokens=tokens, period_s=FRAME_S, deadline_s=FRAME_S)
    urgent, beside = after(dataclasses.replace(robot, realtime=True), other)
    patient, _ = after(robot, other)

    assert (urgent.missed, patient.missed) == (0.0, 1.0)
    assert len(urgent.answers) / 4.0 > 27
    assert len(beside.answers) / 4.0 > (20 if tokens < 10 else 8)  # others go on


def test_bulk_keeps_a_share_however_many_realtime_clients_there_are() -> None:
    urgent, others = after(Group("robots", 64, realtime=True), Group("answers", 8))

    assert len(others.answers) / len(urgent.answers) > 0.04


@pytest.mark.long
@pytest.mark.parametrize("rate", [100, 300, 1_000, 3_000])
def test_bulk_keeps_its_share_beside_requests_that_are_never_ready(rate: float) -> None:
    def answered(*others: Group) -> int:
        *_, clients = after(*others, Group("clients", 8), seconds=1.0)
        return len(clients.answers)

    # Launches are short while real-time requests are open, which costs a third.
    assert answered(never_ready(rate)) > 0.6 * answered()


def test_a_loop_meets_its_deadlines_and_bulk_keeps_its_share_beside_requests_that_are_never_ready() -> None:
    robot = Group("robot", crops=1, period_s=FRAME_S, deadline_s=FRAME_S, realtime=True)
    loop, _, clients = after(robot, never_ready(100), Group("clients", 8), seconds=2.0)

    assert loop.missed == 0.0
    assert len(clients.answers) / 2.0 > 20


def test_the_same_seed_gives_the_same_figures_and_another_seed_other_ones() -> None:
    def rate(seed: int) -> list[float]:
        world = World([Group("answers", rate=40.0)], make_limits(), H200, seed=seed)
        world.run(1.0)
        return world.waits[0].answers

    assert rate(1) == rate(1)
    assert rate(1) != rate(2)


@pytest.mark.long
def test_the_command_writes_a_row_for_each_group_of_clients(tmp_path, capsys) -> None:
    page = tmp_path / "page.md"
    assert main(["--seconds", "1", "--only", "robot", "captions", "--output", str(page)]) == 0

    text = page.read_text()
    assert text.endswith(capsys.readouterr().out)
    named = [scenario for scenario in SCENARIOS if "robot" in scenario.name or "captions" in scenario.name]
    for scenario in named:
        assert all(f"| {scenario.name}: {group.name}" in text for group in scenario.groups)
    assert len([line for line in text.splitlines() if line.startswith("|")]) == 2 + 2 * len(named)


def test_the_command_about_crowds_writes_a_row_for_each_size(capsys) -> None:
    assert crowds.main(["--counts", "3", "40"]) == 0

    first = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [cell for cell in first if cell.isdigit()] == ["3", "40", "0", "3", "40"]


@pytest.mark.parametrize("images", [True, False])
def test_thousands_of_requests_wait_while_others_are_decoded(images: bool) -> None:
    crowd = crowds.Crowd(100, images=images)
    scheduler = crowd.core.scheduler

    assert (len(scheduler.running), [one.realtime for one in scheduler.waiting]) == (crowds.DECODED, [True] * 100)
    crowd.expire()
    assert (len(scheduler.running), scheduler.num_waiting) == (crowds.DECODED, 0)
