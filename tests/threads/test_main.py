import psutil

from bench.threads.__main__ import DEFAULT, ONE, OURS, PASSIVE, Times, neighbours, table
from bench.threads.worker import measure, new_image


def test_ratios_are_to_the_best_environment_set_by_hand_and_to_one_thread() -> None:
    results = {
        ("idle", "detect", DEFAULT): Times([0.3, 0.2, 9.0], [0.6]),
        ("idle", "detect", PASSIVE): Times([0.25], [0.4]),
        ("idle", "detect", ONE): Times([0.2], [0.2]),
        ("idle", "detect", OURS): Times([0.1, 0.1], [0.2, 0.4]),
    }

    _, _, default, *_, ours = table(results)

    assert default == f"| idle | detect | {DEFAULT} | 300 ms | 600 ms | 1.50 | 3.00 |"
    assert ours == f"| idle | detect | {OURS} | 100 ms | 300 ms | 0.50 | 1.50 |"


def test_neighbours_are_there_meanwhile_and_gone_afterwards() -> None:
    before = set(psutil.Process().children())

    with neighbours(2):
        begun = set(psutil.Process().children()) - before

    assert len(begun) == 2
    assert not any(process.is_running() for process in begun)


def test_a_measurement_has_one_call_at_least_and_one_before_that_does_not_count() -> None:
    calls: list[None] = []

    found = measure(lambda: calls.append(None), 0.0)

    assert len(calls) == 2
    assert len(found["wall"]) == len(found["cpu"]) == 1


def test_no_two_images_are_the_same() -> None:
    assert len({new_image().tobytes() for _ in range(5)}) == 5
