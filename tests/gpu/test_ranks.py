import multiprocessing
import re
import sys
import time
from pathlib import Path

import pytest

from bench import ranks


@pytest.mark.long
def test_steps_on_ranks_are_timed_beside_those_on_one(tmp_path: Path) -> None:
    page = tmp_path / "ranks.md"
    rehearsal = ["--device", "cpu", "--tiny", "--rounds", "1", "--context", "50", "--streams", "2"]

    assert ranks.main([*rehearsal, "--output", str(page)]) == 0

    steps, sums = (part.split("\n\n", 1)[1] for part in page.read_text().split("\n## ")[1:])
    rows = [line.strip("|").split("|") for line in steps.splitlines()[2:]]
    assert [row[0].strip() for row in rows] == ["moondream2, 2 streams", "qwen3-vl-8b, 2 streams"]
    assert all(float(row[column]) > 0 for row in rows for column in (1, 2, 7, 9))
    assert len(sums.strip().splitlines()) == 2 + 2


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
@pytest.mark.parametrize("delay", [0.0, 0.001])
def test_ranks_that_end_at_the_same_time_are_waited_for_once(delay: float) -> None:
    fork = multiprocessing.get_context("fork")
    for _ in range(30):
        at = time.monotonic() + 0.05
        processes = [fork.Process(target=_end_at, args=(at + rank * delay,)) for rank in range(3)]
        for process in processes:
            process.start()
        assert ranks.await_all(processes) == 0


@pytest.mark.long
def test_ranks_that_would_wait_for_one_that_has_failed_are_killed() -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=time.sleep, args=(3600,)), spawn.Process(target=sys.exit, args=(3,))]
    for process in processes:
        process.start()

    assert ranks.await_all(processes) == 1
    assert [process.exitcode for process in processes] == [-9, 3]


def _end_at(moment: float) -> None:
    while time.monotonic() < moment:
        pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "1"], "--ranks is 1: it must be at least 2"),
        (["--ranks", "3"], r"moondream2: .* is 3, which does not divide"),
        (["--shape", "moondream3"], r"moondream3: .* cannot be divided"),
        (["--ranks", "4", "--shape", "qwen2.5-vl-3b"], r"qwen2.5-vl-3b: .* takes 1, 2$"),
    ],
)
def test_ranks_that_a_shape_does_not_take_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        ranks.main(["--device", "cpu", *arguments])

    assert re.search(message, " ".join(capsys.readouterr().err.split()))
