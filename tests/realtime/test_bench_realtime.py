from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from bench import realtime
from photonlite.errors import StepError
from photonlite.realtime.frames import Question
from photonlite.realtime.state import LoopState


@pytest.mark.long
def test_a_rehearsal_plays_both_cases_beside_bulk_load(tmp_path: Path) -> None:
    page = tmp_path / "realtime.md"
    arguments = ["--device", "cpu", "--tiny", "--seconds", "1", "--rate", "5", "--bulk", "0", "1", "--weights", "int8"]

    assert realtime.main([*arguments, "--output", str(page)]) == 0

    rows = [line for line in page.read_text().splitlines() if "| 5 Hz |" in " ".join(line.split())]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    names = ["detect, 3 objects, 640x480", "point, 1 point, 378x378"]
    assert [row[0] for row in cells] == [name for name in names for _ in range(2)]
    assert [row[2].endswith("to 1 clients") for row in cells] == [False, True, False, True]
    assert [row[5].split()[0] for row in cells] == ["0.5%", "3.0%"] * 2


def test_every_frame_without_a_result_in_time_is_missed() -> None:
    now = [0.0]
    state = LoopState(Question.of("detect", object="mug", deadline_ms=33), lambda: now[0])
    for seconds in (0.03, 0.04, 0.03):
        state.submit("a")
        state.submit("b")
        job = state.begin()
        assert job is not None
        now[0] += seconds
        state.finish(job, {})

    assert realtime.missed_share(state.stats()) == pytest.approx(4 / 6)


def test_frames_of_the_clip_never_repeat() -> None:
    first, second = next(realtime.clip_frames()), next(realtime.clip_frames())

    assert first.size == second.size == (480, 320)
    assert first.tobytes() != second.tobytes()


def test_a_client_s_error_is_told_where_its_block_ends() -> None:
    model = Mock(aquery=AsyncMock(side_effect=StepError("the device failed")))

    def ask(error: Exception | None = None) -> None:
        with realtime.Bulk(model, 3) as bulk:
            bulk._thread.join(60)
            if error is not None:
                raise error

    with pytest.raises(StepError, match="the device failed"):
        ask()
    with pytest.raises(ValueError, match="of the block"):
        ask(ValueError("of the block"))
    with realtime.Bulk(model, 0) as nobody:
        pass
    assert nobody.error is None


@pytest.mark.parametrize("arguments", [["--seconds", "0"], ["--bulk", "-1"], ["--only", "caption"]])
def test_impossible_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        realtime.main(arguments)
    assert "error: " in capsys.readouterr().err
