import io
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("rich")

from rich.console import Console

from photonlite.cli.realtime.canvas import draw_canvas
from photonlite.cli.realtime.view import View
from photonlite.realtime.frames import Question
from photonlite.realtime.state import LoopState
from photonlite.results import Caption, Detections, Points, Segments

BOX = {"x_min": 0.0, "y_min": 0.0, "x_max": 0.45, "y_max": 0.45}


class Model:
    name = "nano"
    device = "cpu"


def lines(result: Any, size: tuple[int, int] = (80, 40)) -> list[str]:
    """A canvas of 40 x 10 characters."""
    return draw_canvas(Image.new("RGB", size), result, 40, 10).plain.splitlines()


def test_a_box_is_drawn_at_its_place_with_its_score() -> None:
    drawn = lines(Detections([{**BOX, "score": 0.5}]))

    assert [len(line) for line in drawn] == [40] * 10
    assert drawn[0].startswith("┏50%" + "━" * 14 + "┓▀")
    assert drawn[4].startswith("┗" + "━" * 17 + "┛▀")
    assert all(line.startswith("┃▀") and line[18] == "┃" for line in drawn[1:4])
    assert drawn[5] == "▀" * 40


def test_an_id_over_frames_stands_before_the_score() -> None:
    item = {"x": 0.5, "y": 0.25, "label": "mug", "score": 0.9, "track_id": 12}

    assert any("●▀#12 90%" in line for line in lines({"points": [item]}))


def test_points_are_drawn_beside_their_scores_inside_the_image() -> None:
    drawn = lines(Points([{"x": 0.5, "y": 0.25, "score": 1.0}, {"x": 0.99, "y": 0.75, "score": 0.9}]))

    assert drawn[2][20:26] == "●▀100%"
    assert drawn[7].endswith("90%▀●")


def test_outlines_are_drawn_as_dots() -> None:
    polygon = [[0.1, 0.1], [0.9, 0.1], [0.9, 0.9], [0.1, 0.9]]
    drawn = lines(Segments([{"path": "M0 0L1 0L1 1Z", "bbox": BOX, "polygon": polygon, "score": 0.5}]))

    assert drawn[5][4] == drawn[5][36] == drawn[1][20] == "•"
    assert drawn[5][20] == "▀"


@pytest.mark.parametrize(("size", "shape"), [((80, 40), (40, 10)), ((10, 100), (2, 10)), ((1000, 1), (40, 1))])
def test_a_canvas_keeps_the_aspect_ratio_of_the_image(size: tuple[int, int], shape: tuple[int, int]) -> None:
    drawn = lines(Detections([]), size)

    assert (len(drawn[0]), len(drawn)) == shape


class Shown:
    """A view of a loop that has run for a while, with a clock of its own."""

    def __init__(self, width: int = 100, *, task: str = "detect", deadline_ms: float | None = 50) -> None:
        self.now = 0.0
        arguments = {} if task == "caption" else {"object": "mug"}
        self.state = LoopState(Question.of(task, deadline_ms=deadline_ms, **arguments), lambda: self.now)
        self.console = Console(width=width, height=30, record=True, file=io.StringIO(), force_terminal=True)
        self.view = View(self.state.question, Model(), 30.0, self.console)

    def frame(self, seconds: float, outcome: Any, image: Any = None) -> None:
        self.state.submit(image or Image.new("RGB", (64, 48), "green"))
        job = self.state.begin()
        assert job is not None
        self.now += seconds
        failed = isinstance(outcome, Exception)
        taken = self.state.fail(job, outcome) if failed else self.state.finish(job, outcome)
        assert taken is not None
        self.view.add_outcome(taken)

    def text(self, **options: Any) -> str:
        console = Console(width=self.console.width, height=30, record=True, file=io.StringIO())
        console.print(self.view.render(self.state.stats(), **options))
        return console.export_text()


def test_a_view_shows_the_statistics_of_the_loop() -> None:
    shown = Shown()
    for _ in range(10):
        shown.frame(0.04, Detections([{**BOX, "label": "mug", "score": 0.5}]))
    shown.frame(0.06, Detections([]))
    shown.state.submit("a")
    shown.state.submit("b")
    text = shown.text()

    for expected in ("detect “mug”", "nano on cpu", "of 30 offered", "40.0 ms", "60.0 ms", "0 found", "Ctrl+C"):
        assert expected in text
    assert "1  7.7% superseded" in text
    assert "1  7.7% over 50.0 ms" in text
    assert max(map(len, text.splitlines())) <= 100
    shown.view.close(shown.state.stats())


def test_a_view_shows_a_failure_until_a_frame_is_answered() -> None:
    shown = Shown(deadline_ms=None)
    assert "waiting for the first result" in shown.text()
    shown.frame(0.04, ValueError("no image at all"))
    assert "frame 0: no image at all" in shown.text()
    shown.frame(0.04, Detections([]))

    assert "no image at all" not in shown.text()
    assert "ValueError" in shown.text()
    assert "missed" not in shown.text()


def test_texts_are_shown_whole() -> None:
    shown = Shown(task="caption")
    shown.frame(0.04, Caption("Two bananas and a potted plant."))

    assert "Two bananas" in shown.text()


def test_a_deleted_frame_is_reported() -> None:
    shown = Shown()
    shown.frame(0.04, Detections([]), image="gone.png")

    assert "the frame is gone" in shown.text()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_view_fits_its_terminal(width: int) -> None:
    shown = Shown(width)
    shown.frame(0.04, Detections([{**BOX, "label": "mug", "score": 0.5}]))
    text = shown.text(running=False)

    assert max(map(len, text.splitlines())) <= width
    assert "ended after 0.0 s" in text
    assert "┏50%" in text
