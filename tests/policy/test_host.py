import pytest

from bench import host


@pytest.mark.long
def test_the_command_writes_a_row_for_each_size_and_the_largest_parts(tmp_path, capsys) -> None:
    page = tmp_path / "page.md"
    sizes = ["--waiting", "3", "20", "--running", "2", "5", "--rounds", "2", "--ticks", "4", "--output", str(page)]
    assert host.main(sizes) == 0

    text = page.read_text()
    assert text.endswith(capsys.readouterr().out)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert [row[:2] for row in rows[2:6]] == [["3", "2"], ["3", "5"], ["20", "2"], ["20", "5"]]
    assert {len(row) for row in rows[2:6]} == {2 + 2 * len(host.ANSWERS)}
    assert any(row[0] == "sequence.accept" and row[1] == "1.00" for row in rows[6:])
    names = [row[0] for row in rows]
    assert names[names.index("as it is") + 1] == "in a server"
    assert [row[:2] for row in rows[-6:]] == [
        [threads, turns] for threads in ("0", "1", "3") for turns in ("5 ms", "as with an engine")
    ]


@pytest.mark.parametrize("kind", host.ANSWERS)
def test_each_tick_gives_every_running_sequence_a_token_while_others_wait(kind: str) -> None:
    subject = host.Subject(kind, waiting=7, running=3)
    metrics, tokens = subject.core.metrics, subject.core.metrics.tokens
    subject.ticks(10)

    assert metrics.tokens - tokens == 30
    assert subject.core.scheduler.num_waiting == 7
    assert (metrics.requests_failed, metrics.zombie_rows) == (0, 0)
    assert subject.baseline(5) >= 0
