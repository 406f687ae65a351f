from random import Random

import pytest
from PIL import Image

from bench.memory import __main__ as bench
from bench.memory.load import LENGTHS, MAX_CONTEXT, Lengths, Memory
from bench.memory.riding import Stream, found_of

FEW = Lengths("few", (60, 40), (80, 60), positions=MAX_CONTEXT + 512, max_batch=64, capacity=150)


@pytest.mark.long
def test_the_command_writes_tables_and_plots(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(bench, "LENGTHS", (FEW,))
    monkeypatch.setattr(bench, "WARM_UP_S", 0.1)
    page = tmp_path / "memory.md"
    options = ["--seconds", "0.3", "--loads", "0.5", "1.5", "--shares", "1", "--plans", "2", "--workers", "1"]
    assert bench.main([*options, "--output", str(page)]) == 0

    text = page.read_text()
    assert text.endswith(capsys.readouterr().out)
    assert [word in text for word in ("adaptive + swap", "article", "static 1", "reserve")] == [True] * 4
    for name in ("load", "budget", "latency"):
        with Image.open(tmp_path / f"memory-{name}.png") as image:
            assert len(image.convert("RGB").getcolors(10**6) or ()) > 20


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda one: one.name)
def test_lengths_have_about_the_published_means(lengths: Lengths) -> None:
    random = Random(1)
    drawn = [lengths.draw(random) for _ in range(4000)]

    for values, (mean, _) in zip(zip(*drawn, strict=True), (lengths.input, lengths.output), strict=True):
        assert sum(values) / len(values) == pytest.approx(mean, rel=0.12)  # long ones are cut


def test_more_requests_are_swapped_than_computed_again_where_there_is_host_memory() -> None:
    greedy, swaps = (Memory(FEW, 900.0, bench.make_limits(FEW, way), seed=2) for way in (bench.GREEDY, bench.SWAPS[0]))
    computed, swapped = greedy.run(0.5), swaps.run(0.5)

    assert computed.victims > 0
    assert computed.swaps == 0
    assert swapped.swaps > 0
    assert swaps.runner.now == pytest.approx(greedy.runner.now, rel=0.1)


def test_a_delay_is_what_a_prompt_adds_to_the_intervals_before_it():
    stream = Stream(lambda: 0.0)
    # Intervals of 1 second become such of 2; a prompt at 10 makes one of 5, another at 40 one of 6.
    stream.times = [*range(11), 15, *range(16, 27), *range(28, 41, 2), 46, 48, 50]
    found = found_of([stream], [(10.0, 15.0), (40.0, 46.0)], tokens=30, seconds=60)
    assert found.delays == [4, 4]
    assert found.rate == 0.5
    assert max(found.gaps) == 6


def test_a_prompt_before_all_quiet_intervals_is_compared_with_those_behind_it():
    stream = Stream(lambda: 0.0)
    stream.times = [0, 3, 4, 5, 6]
    assert found_of([stream], [(0.0, 3.0)], tokens=1, seconds=1).delays == [2]
