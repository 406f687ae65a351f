import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from photonlite.errors import SettingsError
from photonlite.observe import Recording, Tracer, timeline
from photonlite.observe.timeline import COLORS, COPY, IDLE, LANE, OTHER, PAPER, draw_timeline
from photonlite.observe.trace import Span

LEFT, PIXELS = 186, 1378  # of the rows in an image of 1600 pixels


def span(track, name, start, end, **args):
    return Span(track, name, 1000 + start, 1000 + end, args)


# Ten milliseconds, of which the device idles from 4 to 6.
SPANS = [
    span("host", "launch", 0.0e-3, 1.0e-3, step=1),
    span("host", "wait", 1.0e-3, 4.2e-3, step=0),
    span("host", "commit", 4.2e-3, 5.5e-3, step=0),
    span("compute", "forward", 0.0e-3, 3.5e-3, step=1),
    span("compute", "finalize", 3.5e-3, 4.0e-3, step=1),
    span("compute", "prefill", 6.0e-3, 10.0e-3, step=2),
    span("upload", "masks", 3.0e-3, 3.4e-3),
    span("download", "results", 9.0e-3, 9.5e-3),
]


def rows_of(pixels):
    """The first and last line of each row, from top to bottom, by its last column: labels do not reach so far."""
    used = (pixels[:, LEFT + PIXELS - 1] != PAPER).any(-1)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], used, [False])).astype(int)))
    runs = [(int(top), int(bottom) - 1) for top, bottom in edges.reshape(-1, 2) if bottom - top > 40]
    assert len(runs) == 4
    return dict(zip(("host", "compute", "upload", "download"), runs, strict=True))


def columns_of(pixels, row, color):
    """The columns of one line near a row's upper edge, above its labels, that have a colour exactly."""
    return np.flatnonzero((pixels[row[0] + 2] == color).all(-1))


def column(milliseconds, extent=10.0):
    return LEFT + milliseconds / extent * PIXELS


def test_the_red_gap_lies_where_the_device_idles():
    pixels = np.asarray(draw_timeline(SPANS))
    found = columns_of(pixels, rows_of(pixels)["compute"], IDLE)
    assert found[0] == pytest.approx(column(4.0), abs=2)
    assert found[-1] == pytest.approx(column(6.0), abs=2)
    assert len(found) == pytest.approx(0.2 * PIXELS, abs=4)


@pytest.mark.parametrize(
    ("row", "color", "start", "end"),
    [
        ("host", COLORS["launch"], 0.0, 1.0),
        ("host", COLORS["wait"], 1.0, 4.2),
        ("host", COLORS["commit"], 4.2, 5.5),
        ("compute", COLORS["forward"], 0.0, 3.5),
        ("compute", COLORS["finalize"], 3.5, 4.0),
        ("compute", COLORS["prefill"], 6.0, 10.0),
        ("upload", COPY, 3.0, 3.4),
        ("download", COPY, 9.0, 9.5),
    ],
)
def test_each_span_lies_in_its_row_between_its_times_and_in_no_other_row(row, color, start, end):
    pixels = np.asarray(draw_timeline(SPANS))
    rows = rows_of(pixels)
    found = columns_of(pixels, rows[row], color)
    assert found[0] == pytest.approx(column(start), abs=2)
    assert found[-1] == pytest.approx(column(end), abs=2)
    others = [name for name in rows if name != row and not (color == COPY and name in ("upload", "download"))]
    assert all(len(columns_of(pixels, rows[other], color)) == 0 for other in others)


def test_bars_and_labels_stay_inside_their_rows():
    # Other spans on the compute track change the image inside its row only, figures and legend apart.
    before = np.asarray(draw_timeline(SPANS))
    rows = rows_of(before)
    other = [item._replace(name="forward", args={"step": 12345}) if item.track == "compute" else item for item in SPANS]
    changed = (before != np.asarray(draw_timeline(other))).any(-1)
    lines, columns = np.nonzero(changed[rows["host"][0] - 20 : rows["download"][1] + 60])
    lines += rows["host"][0] - 20
    assert len(lines) > 0
    assert rows["compute"][0] <= lines.min() <= lines.max() <= rows["compute"][1]
    assert LEFT <= columns.min() <= columns.max() < LEFT + PIXELS


def test_between_the_rows_there_is_only_paper():
    pixels = np.asarray(draw_timeline(SPANS))
    rows = list(rows_of(pixels).values())
    for (_, bottom), (top, _) in itertools.pairwise(rows):
        assert (pixels[bottom + 1 : top, LEFT:] == PAPER).all()
    assert (pixels[rows[0][0] : rows[-1][1], LEFT + PIXELS :] == PAPER).all()


def test_a_window_shows_its_part_and_the_gap_it_cuts_through():
    pixels = np.asarray(draw_timeline(SPANS, start=1000.0055, end=1000.0075))
    rows = rows_of(pixels)
    found = columns_of(pixels, rows["compute"], IDLE)
    assert found[0] == LEFT
    assert found[-1] == pytest.approx(column(0.5, extent=2.0), abs=2)
    assert len(columns_of(pixels, rows["download"], COPY)) == 0
    assert len(columns_of(pixels, rows["upload"], LANE)) > PIXELS - 40


def test_only_gaps_between_compute_spans_are_red():
    spans = [span("host", "plan", 0.0, 0.01), span("compute", "forward", 0.004, 0.006)]
    pixels = np.asarray(draw_timeline(spans))
    rows = rows_of(pixels)
    assert len(columns_of(pixels, rows["compute"], IDLE)) == 0
    assert len(columns_of(pixels, rows["compute"], COLORS["forward"])) == pytest.approx(0.2 * PIXELS, abs=4)


def texts_of(monkeypatch, *arguments, **settings):
    written = []
    original = timeline.ImageDraw.ImageDraw.text

    def text(self, xy, text, *rest, **named):
        written.append(text)
        return original(self, xy, text, *rest, **named)

    monkeypatch.setattr(timeline.ImageDraw.ImageDraw, "text", text)
    draw_timeline(*arguments, **settings)
    return written


def test_the_image_says_what_it_shows(monkeypatch):
    written = texts_of(monkeypatch, SPANS, title="blocking")
    for text in ("blocking", "10.0 ms", "80.0%", "6.00 ms", "2.00 ms"):  # extent, busy, period, idle per period
        assert text in written
    assert {"host", "compute", "upload", "download", "0 ms", "10 ms"} <= set(written)
    # Labels with steps where they fit, the step alone in the narrow finalize, the idle time in the gap.
    assert {"launch 1", "wait 0", "forward 1", "prefill 2", "1"} <= set(written)
    assert {"launch", "wait", "commit", "forward", "finalize", "prefill", "copy", "compute idle"} <= set(written)
    assert "encode" not in written


def test_spans_outside_the_window_are_ignored(monkeypatch):
    written = texts_of(monkeypatch, SPANS, start=1000.0, end=1000.0058)
    assert "100.0%" in written
    assert "prefill" not in written
    assert "launch" not in texts_of(monkeypatch, SPANS, start=1000.002)


def test_labels_of_narrow_gaps_are_upright(monkeypatch):
    spans = [span("compute", "forward", 0.0, 4e-3), span("compute", "forward", 4.3e-3, 10e-3)]
    assert "300 us" in texts_of(monkeypatch, [*spans, span("compute", "forward", 11e-3, 12e-3)])


def test_a_span_with_another_in_it_is_labelled_where_it_is_widest(monkeypatch):
    spans = [span("host", "commit", 0.0, 10e-3, step=3), span("host", "wait", 9.0e-3, 9.9e-3, step=2)]
    assert "commit 3" in texts_of(monkeypatch, spans)


def test_unknown_phases_are_drawn_and_explained_as_others(monkeypatch):
    spans = [*SPANS, span("host", "collect garbage", 7e-3, 9e-3)]
    assert "other" in texts_of(monkeypatch, spans)
    pixels = np.asarray(draw_timeline(spans))
    assert len(columns_of(pixels, rows_of(pixels)["host"], OTHER)) == pytest.approx(0.2 * PIXELS, abs=4)


def test_a_long_legend_stays_inside_a_narrow_image():
    spans = [span("host", name, index, index + 1) for index, name in enumerate([*COLORS, "gc"])]
    image = draw_timeline([*spans, span("compute", "encode", 0, 1), *SPANS], width=1000)
    assert (np.asarray(image)[-150:, -30:] == PAPER).all()


def test_images_that_are_encoded_beside_the_steps_have_a_row_of_their_own() -> None:
    spans = [Span("compute", "forward", 0.0, 0.01, {}), Span("encode", "encode", 0.002, 0.008, {})]
    without, image = draw_timeline(spans[:1]), draw_timeline(spans)

    assert image.height >= without.height + timeline.HEIGHTS["encode"] + timeline.GAP
    assert timeline.COLORS["encode"] in {color for _, color in image.getcolors(1 << 20) or ()}
    assert timeline.COLORS["encode"] not in {color for _, color in without.getcolors(1 << 20) or ()}


def test_an_empty_trace_gives_an_image_that_says_so(monkeypatch, tmp_path):
    written = texts_of(monkeypatch, [], tmp_path / "empty.png", title="nothing")
    assert written == ["nothing", "No spans recorded."]
    with Image.open(tmp_path / "empty.png") as image:
        assert image.getextrema() != ((255, 255),) * 3
    assert "No spans lie between start and end." in texts_of(monkeypatch, SPANS, start=2000.0, end=2001.0)


def test_a_trace_without_compute_spans_has_no_figures_about_them(monkeypatch):
    written = texts_of(monkeypatch, SPANS[:1])
    assert written.count("-") == 3
    assert "compute idle" not in written


def test_a_single_moment_can_be_drawn(monkeypatch):
    assert "0.0 us" in texts_of(monkeypatch, [span("compute", "forward", 0.0, 0.0)])


def test_the_image_is_saved_at_the_density_of_its_fonts(tmp_path):
    image = draw_timeline(SPANS, tmp_path / "timeline.png", width=1200)
    with Image.open(tmp_path / "timeline.png") as saved:
        assert saved.size == image.size
        assert saved.width == 1200
        assert saved.info["dpi"] == pytest.approx((144, 144), abs=0.1)


@pytest.mark.parametrize(("name", "kind"), [("a.png", "PNG"), ("a.JPG", "JPEG"), ("a.webp", "WEBP"), ("a", "PNG")])
def test_the_suffix_names_the_format(tmp_path, name, kind):
    draw_timeline(SPANS, tmp_path / name, width=1000)
    with Image.open(tmp_path / name) as saved:
        assert saved.format == kind


@pytest.mark.parametrize("name", ["a.svg", "a.pdf", "a.json"])
def test_a_format_that_is_no_image_is_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(SettingsError, match=r"cannot be saved as '.*': end the name in .png"):
        draw_timeline(SPANS, tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("settings", [{"width": 999}, {"start": 2.0, "end": 2.0}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(SettingsError):
        draw_timeline(SPANS, **settings)


def test_a_recording_holds_what_happened_in_its_block() -> None:
    tracer = Tracer(enabled=True)
    with tracer.host("before"):
        pass
    with Recording(tracer) as recording, tracer.host("inside", step=3):
        assert recording.spans == []
    with tracer.host("after"):
        pass

    assert [(span.name, span.args) for span in recording.spans] == [("inside", {"step": 3})]


@pytest.mark.parametrize("was_on", [True, False])
def test_a_recording_leaves_the_tracer_as_it_was(was_on: bool) -> None:
    tracer = Tracer(enabled=was_on)
    recording = Recording(tracer)

    def fail() -> None:
        with recording, tracer.host("inside"):
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert tracer.enabled == was_on
    assert [span.name for span in recording.spans] == ["inside"]


def test_a_recording_is_saved_and_drawn(tmp_path: Path) -> None:
    tracer = Tracer()
    with Recording(tracer) as recording:
        for step in range(3):
            with tracer.host("plan", step=step):
                pass
    recording.save(tmp_path / "run.json")
    image = recording.draw(tmp_path / "run.png", title="three plans")

    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert [event["args"]["step"] for event in events if event["ph"] == "X"] == [0, 1, 2]
    with Image.open(tmp_path / "run.png") as drawn:
        assert drawn.size == image.size


def test_a_recording_of_nothing_is_saved_and_drawn_too(tmp_path: Path) -> None:
    with Recording(Tracer()) as recording:
        pass
    recording.save(tmp_path / "run.json")

    assert recording.draw().width == 1600


def test_recordings_may_overlap_and_the_last_one_switches_the_tracer_off() -> None:
    tracer = Tracer(enabled=False)
    first, second = Recording(tracer), Recording(tracer)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with tracer.host("after the first"):
        pass
    second.__exit__(None, None, None)

    assert [span.name for span in second.spans] == ["after the first"]
    assert not tracer.enabled
