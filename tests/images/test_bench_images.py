import numpy as np
import pytest
from PIL import Image

from bench import images as bench
from photonlite.images.crops import ImageCrops, cut_crops
from photonlite.images.decode import load_image


class FakeClock:
    """Stands still but for what the work takes."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def cells(page: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()]


def test_ratios_are_medians_over_rounds_to_the_first_of_the_same_round(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(bench, "time", clock)
    base = iter([9.0, 1.0, 2.0, 10.0])  # the first call warms up
    other = iter([9.0, 3.0, 1.0, 20.0])
    works = {"base": lambda: clock.pass_by(next(base)), "other": lambda: clock.pass_by(next(other))}
    assert bench.ratios(works, rounds=3) == (2.0, {"base": 1.0, "other": 2.0})


def test_crops_that_are_not_pillows_get_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(image: Image.Image, *arguments: object, **options: object) -> ImageCrops:
        crops = cut_crops(image, bench.SPEC)
        crops.pixels[-1, -1, -1, -1] ^= 1
        return crops

    monkeypatch.setattr(bench, "SIZES", ((60, 40),))
    assert [row[0] for row in cells(bench.measure_crops(rounds=1))[2:]] == ["60x40"]
    monkeypatch.setattr(bench, "cut_crops", wrong)
    with pytest.raises(AssertionError, match=r"crops of \(60, 40\) by 1 threads differ from Pillow's"):
        bench.measure_crops(rounds=1)


def test_decoders_that_change_pixels_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lambda data: np.asarray(load_image(data))  # noqa: E731
    monkeypatch.setattr(bench, "SIZES", ((60, 40), (40, 60)))
    monkeypatch.setattr(bench, "decoders", lambda kind: [("right 1", right), ("wrong 1", lambda data: right(data) ^ 1)])
    rows = cells(bench.measure_decoders(rounds=1))[2:]
    assert len(rows) == 2 * 4 * 3  # two contents of the landscape, four files, Pillow and two more
    assert {(row[1], row[2]) for row in rows[1:3]} == {("right 1", "equal"), ("wrong 1", "DIFFER")}
