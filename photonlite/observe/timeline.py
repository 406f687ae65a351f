"""Draws a trace: what the host, the device and the copies did, with the device's idle time in red.

```
 title and figures
 host      | plan | launch 8 | commit 7 | finalize |  wait     | ...
 compute   |    forward 7    |f|###idle###|    forward 8       | ...
 upload    |                 ||                                | ...
 download  |                  |                                | ...
 encode    | images, where they are encoded beside the steps   | ...
           0 ms              1 ms              2 ms
 legend
```

Drawn at twice the density of a plain screen: 1600 pixels look crisp in a column of 800.
"""

import math
import time
from collections.abc import Iterable
from os import PathLike
from pathlib import PurePath
from typing import Any, Self

from PIL import Image, ImageDraw

from photonlite.errors import SettingsError
from photonlite.observe.lanes import Axis, Bars, Piece, visible_pieces
from photonlite.observe.metrics import format_seconds
from photonlite.observe.trace import (
    Interval,
    Span,
    Tracer,
    Track,
    busy_share,
    idle_intervals,
    idle_per_period,
    save_trace,
    step_starts,
    tracks_of,
)
from photonlite.results.drawing.style import Color, load_font, text_color

_FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "BMP")

PAPER: Color = (255, 255, 255)
LANE: Color = (242, 244, 247)
GRID: Color = (221, 225, 231)
INK: Color = (31, 41, 55)
FADED: Color = (107, 114, 128)
IDLE: Color = (220, 38, 38)
OTHER: Color = (161, 152, 140)
COPY: Color = (100, 116, 139)

# Okabe and Ito's colours without vermilion, which is too close to the red of idle time; waiting is pale.
COLORS: dict[str, Color] = {
    "plan": (240, 228, 66),
    "launch": (86, 180, 233),
    "commit": (0, 158, 115),
    "wait": (209, 213, 219),
    "forward": (0, 114, 178),
    "finalize": (230, 159, 0),
    "prefill": (112, 86, 166),
    "mixed": (148, 88, 60),
    "encode": (204, 121, 167),
}

MARGIN = 36
LABELS = 150  # width of the column with the rows' names
HEIGHTS: dict[Track, int] = {"host": 84, "compute": 84, "upload": 44, "download": 44, "encode": 84}
COPIES: tuple[Track, ...] = ("upload", "download")
GAP = 16
TITLE, FIGURE, NAME, TEXT, SMALL = (load_font(size, None) for size in (36, 34, 26, 22, 20))
LEAST_WIDTH = 1000
UPRIGHT = 24  # width that an upright label needs


class Recording:
    """Records while its block runs; blocks may overlap.

    Attributes:
        spans: What happened in the block, in the order in which it was recorded; empty before the block's end.
    """

    def __init__(self, tracer: Tracer) -> None:
        self.spans: list[Span] = []
        self._tracer = tracer
        self._start = 0.0

    def __enter__(self) -> Self:
        self._start = time.perf_counter()
        self._tracer.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._tracer.end()
        self.spans = [span for span in self._tracer.spans() if span.start_s >= self._start]

    def save(self, path: str | PathLike[str]) -> None:
        """Write a trace that https://ui.perfetto.dev opens, gzipped if the path ends in ".gz".

        Raises:
            OSError: The file cannot be written.
        """
        save_trace(path, self.spans)

    def draw(self, path: str | PathLike[str] | None = None, **options: Any) -> Image.Image:
        """Draw a timeline: host, compute and copies in rows, idle time of the device in red.

        Args:
            path: Where to save it, as .png, .jpg or .webp; nowhere by default.
            **options: "start" and "end" in seconds of `time.perf_counter`, "width" in pixels, "title".

        Raises:
            SettingsError: The suffix names another format, or an option is out of its range.
            OSError: The file cannot be written.
        """
        return draw_timeline(self.spans, path, **options)


def draw_timeline(
    spans: Iterable[Span],
    path: str | PathLike[str] | None = None,
    *,
    start: float | None = None,
    end: float | None = None,
    width: int = 1600,
    title: str | None = None,
) -> Image.Image:
    """Draw the spans of a trace as an RGB timeline, with figures of the steps shown; see `Recording.draw`.

    `start` and `end` are on the clock of the spans, by default the first one's start and the last one's end. The height
    follows from the width in pixels, at least 1000.
    """
    kind = None if path is None else _format_of(path)
    if width < LEAST_WIDTH:
        raise SettingsError(f"a timeline is at least {LEAST_WIDTH} pixels wide, got width={width}")
    if start is not None and end is not None and end <= start:
        raise SettingsError(f"the timeline must end after it starts, got start={start} and end={end}")
    recorded = list(spans)
    low = start if start is not None else min((span.start_s for span in recorded), default=0.0)
    high = end if end is not None else max((span.end_s for span in recorded), default=low)
    shown = [span for span in recorded if span.end_s >= low and span.start_s <= high]
    axis = Axis(low, max(high, low + 1e-6), MARGIN + LABELS, width - 2 * MARGIN - LABELS)  # never of length 0
    if shown:
        image = _draw(shown, idle_intervals(recorded), axis, title)
    else:
        image = _page(width, 2 * MARGIN + 140, title)
        message = "No spans lie between start and end." if recorded else "No spans recorded."
        ImageDraw.Draw(image).text((width / 2, image.height / 2), message, FADED, NAME, anchor="mm")
    if path is not None:
        image.save(path, kind, dpi=(144, 144), optimize=True)
    return image


def _format_of(path: str | PathLike[str]) -> str:
    suffix = PurePath(path).suffix.lower()
    kind = Image.registered_extensions().get(suffix, "") if suffix else "PNG"
    if kind not in _FORMATS:
        raise SettingsError(f"a timeline cannot be saved as {suffix[:20]!r}: end the name in .png, .jpg or .webp")
    return kind


def _draw(shown: list[Span], gaps: list[Interval], axis: Axis, title: str | None) -> Image.Image:
    entries = _legend_entries(shown)
    header = MARGIN + (60 if title else 0) + 104
    heights = {track: HEIGHTS[track] for track in tracks_of(shown)}
    lanes = sum(heights.values()) + GAP * (len(heights) - 1)
    legend = _legend_places([name for name, _ in entries], axis)
    width = axis.left + axis.pixels + MARGIN
    image = _page(width, header + lanes + 76 + (legend[-1][1] + 1) * 40 + MARGIN - 10, title)
    pen = ImageDraw.Draw(image)
    _draw_figures(pen, shown, axis, header - 104)
    top = header
    ticks = axis.ticks()
    for track, height in heights.items():
        pen.text((MARGIN, top + height / 2), track, INK, NAME, anchor="lm")
        pen.rectangle((axis.left, top, axis.left + axis.pixels - 1, top + height - 1), LANE)
        for offset, _ in ticks:
            x = axis.left + min(round(offset), axis.pixels - 2)
            pen.rectangle((x, top, x + 1, top + height - 1), GRID)
        idle = gaps if track == "compute" else []
        _draw_lane(image, [span for span in shown if span.track == track], idle, axis, (top, height))
        top += height + GAP
    _draw_ticks(pen, ticks, axis, top - GAP)
    for (name, color), (column, line) in zip(entries, legend, strict=True):
        left, y = axis.left + column, top - GAP + 76 + 40 * line
        pen.rectangle((left, y, left + 23, y + 23), color)
        pen.text((left + 34, y + 12), name, INK, TEXT, anchor="lm")
    return image


def _page(width: int, height: int, title: str | None) -> Image.Image:
    image = Image.new("RGB", (width, height), PAPER)
    if title:
        ImageDraw.Draw(image).text((MARGIN, MARGIN), title, INK, TITLE, anchor="lt")
    return image


def _draw_figures(pen: ImageDraw.ImageDraw, shown: list[Span], axis: Axis, top: int) -> None:
    starts = step_starts(shown)
    period = (starts[-1] - starts[0]) / (len(starts) - 1) if len(starts) > 1 else math.nan
    left = float(MARGIN)
    for value, meaning, color in (
        (format_seconds(axis.end - axis.start), "time shown", INK),
        (f"{busy_share(shown):.1%}" if starts else "-", "compute busy", INK),
        (format_seconds(period), "mean period of a step", INK),
        (format_seconds(idle_per_period(shown)), "mean idle gap per period", IDLE),
    ):
        pen.text((left, top + 28), value, color, FIGURE, anchor="ls")
        pen.text((left, top + 60), meaning, FADED, TEXT, anchor="ls")
        left += max(FIGURE.getlength(value), TEXT.getlength(meaning)) + 56


def _draw_lane(image: Image.Image, spans: list[Span], gaps: list[Interval], axis: Axis, place: tuple[int, int]) -> None:
    """Draw one track at `place`: its upper edge and its height."""
    top, height = place
    bars = Bars(axis.pixels)
    pieces = visible_pieces(spans)
    for piece in pieces:
        bars.add(axis.offset(piece.start_s), axis.offset(piece.end_s), _color_of(piece.span))
    for start, end in gaps:
        bars.add(axis.offset(start), axis.offset(end), IDLE)
    bars.paste(image, axis.left, top, height)
    for piece in _widest(pieces):
        span, step = piece.span, piece.span.args.get("step")
        texts = [span.name] if step is None else [f"{span.name} {step}", str(step)]
        _draw_label(image, texts, _color_of(span), (piece.start_s, piece.end_s), axis, place)
    for start, end in gaps:
        _draw_label(image, [format_seconds(end - start)], IDLE, (start, end), axis, place)


def _draw_label(
    image: Image.Image, texts: list[str], background: Color, interval: Interval, axis: Axis, place: tuple[int, int]
) -> None:
    """Write the first text that fits into the shown part of an interval, and mark its beginning."""
    pen = ImageDraw.Draw(image)
    top, height = place
    left, right = max(axis.offset(interval[0]), 0.0), min(axis.offset(interval[1]), float(axis.pixels))
    if right - left < 8:
        return
    red, green, blue = (round(channel * 0.8) for channel in background)
    if axis.offset(interval[0]) >= 0:
        column = axis.left + math.ceil(left)
        pen.line((column, top, column, top + height - 1), (red, green, blue), 1)
    center, ink = (axis.left + (left + right) / 2, top + height / 2), text_color(background)
    lengths = [(text, SMALL.getlength(text)) for text in texts]
    if text := next((text for text, length in lengths if length + 8 <= right - left), None):
        pen.text(center, text, ink, SMALL, anchor="mm")
    elif right - left >= UPRIGHT and (text := next((text for text, length in lengths if length + 6 <= height), None)):
        _draw_upright(image, text, ink, center)


def _draw_upright(image: Image.Image, text: str, ink: Color, center: tuple[float, float]) -> None:
    mask = Image.new("L", (math.ceil(SMALL.getlength(text)), UPRIGHT))
    ImageDraw.Draw(mask).text((mask.width / 2, mask.height / 2), text, 255, SMALL, anchor="mm")
    mask = mask.transpose(Image.Transpose.ROTATE_90)
    image.paste(ink, (round(center[0] - mask.width / 2), round(center[1] - mask.height / 2)), mask)


def _widest(pieces: list[Piece]) -> Iterable[Piece]:
    """Return the widest piece of each span, which gets the label."""
    widest: dict[int, Piece] = {}
    for piece in pieces:
        held = widest.get(id(piece.span))
        if held is None or held.end_s - held.start_s < piece.end_s - piece.start_s:
            widest[id(piece.span)] = piece
    return widest.values()


def _color_of(span: Span) -> Color:
    return COPY if span.track in COPIES else COLORS.get(span.name, OTHER)


def _draw_ticks(pen: ImageDraw.ImageDraw, ticks: list[tuple[float, str]], axis: Axis, top: int) -> None:
    for offset, label in ticks:
        x = axis.left + min(round(offset), axis.pixels - 2)
        pen.rectangle((x, top + 4, x + 1, top + 14), FADED)
        half = TEXT.getlength(label) / 2
        # The last label stays inside the image.
        pen.text((min(x, axis.left + axis.pixels + MARGIN - half - 4), top + 20), label, FADED, TEXT, anchor="mt")


def _legend_entries(shown: list[Span]) -> list[tuple[str, Color]]:
    entries: dict[str, Color] = {}
    for track in ("host", "compute", "encode"):
        names = {span.name for span in shown if span.track == track}
        entries |= {name: color for name, color in COLORS.items() if name in names}
        if not names <= COLORS.keys():
            entries["other"] = OTHER
    if any(span.track in COPIES for span in shown):
        entries["copy"] = COPY
    if any(span.track == "compute" for span in shown):
        entries["compute idle"] = IDLE
    return list(entries.items())


def _legend_places(names: Iterable[str], axis: Axis) -> list[tuple[float, int]]:
    places: list[tuple[float, int]] = []
    left, line = 0.0, 0
    for needed in (34 + TEXT.getlength(name) for name in names):
        if left + needed > axis.pixels and left:
            left, line = 0.0, line + 1
        places.append((left, line))
        left += needed + 30
    return places
