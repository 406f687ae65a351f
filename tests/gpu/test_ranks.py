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
