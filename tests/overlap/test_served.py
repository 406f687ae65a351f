from pathlib import Path

import pytest

from bench.overlap import __main__ as command


@pytest.mark.long
def test_the_command_rehearses_the_engine_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "engine.md"
    options = ["--engine", "--device", "cpu", "--tiny", "--window", "0.2", "--rounds", "1", "--output", str(page)]

    assert command.main([*options, "--streams", "2", "--clients", "2"]) == 0, capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.read_text().splitlines()]
    found = [row for row in rows if row[:1] == ["2"]]
    assert [row[1] for row in found] == ["turns", "beside", "parts, 68 SMs"]
    assert all(float(cell) > 0 for row in found for cell in row[2:5])
