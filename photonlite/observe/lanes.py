"""Geometry of a timeline: its time axis, the visible parts of spans, and anti-aliased bars on a row of pixels."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from PIL import Image

from photonlite.observe.trace import Span
from photonlite.results.drawing.style import Color

_TICK_PIXELS = 150


class Axis(NamedTuple):
    """Times from `start` to `end`, in seconds, on `pixels` columns from the column `left` on."""

    start: float
    end: float
    left: int
    pixels: int

    def offset(self, seconds: float) -> float:
        """Columns from `left` to a time; outside [0, `pixels`] if it is not shown."""
        return (seconds - self.start) / (self.end - self.start) * self.pixels

    def ticks(self) -> list[tuple[float, str]]:
        """Return columns from `left` and labels of round times since the start, in one unit."""
        extent = self.end - self.start
        least = extent * _TICK_PIXELS / self.pixels
        power = 10.0 ** math.floor(math.log10(least))
        step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * 0.999)
        scale, unit = (1e6, "us") if extent < 1e-3 else (1e3, "ms") if extent < 1 else (1.0, "s")
        decimals = max(0, -math.floor(math.log10(step * scale) + 1e-9))
        count = math.floor(extent / step * (1 + 1e-9))  # a round end gets its tick despite rounding
        return [
            (index * step / extent * self.pixels, f"{index * step * scale:.{decimals}f} {unit}")
            for index in range(count + 1)
        ]


class Piece(NamedTuple):
    """A part of a span that no later span covers, in seconds."""

    span: Span
    start_s: float
    end_s: float


def visible_pieces(spans: Iterable[Span]) -> list[Piece]:
    """Cut spans of one track into pieces that do not overlap, in order; later spans cover earlier ones."""
    pieces: list[Piece] = []
    open_spans: list[Span] = []
    seen_to = 0.0

    def show(until: float) -> None:
        nonlocal seen_to
        until = min(until, open_spans[-1].end_s)
        if until > seen_to:
            pieces.append(Piece(open_spans[-1], seen_to, until))
            seen_to = until

    def close(until: float) -> None:
        while open_spans and open_spans[-1].end_s <= until:
            show(until)
            open_spans.pop()

    # The longest of spans that begin together goes below the others.
    for span in sorted(spans, key=lambda span: (span.start_s, -span.end_s)):
        close(span.start_s)
        if open_spans:
            show(span.start_s)
        open_spans.append(span)
        seen_to = span.start_s
    close(float("inf"))
    return pieces


class Bars:
    """Bars of one row of pixels; a bar that covers a part of a pixel colours that part of it.

    A gap of a fifth of a pixel is a fifth red: gaps too narrow to be seen still add up to their share.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._ink = np.zeros((width, 4))  # red, green, blue, each times the share covered; that share

    def add(self, left: float, right: float, color: Color) -> None:
        left, right = max(left, 0.0), min(right, float(self._width))
        if right <= left:
            return
        ink = np.array([*color, 1.0])
        first, last = int(left), int(right)
        if first == last:
            self._ink[first] += (right - left) * ink
            return
        self._ink[first] += (first + 1 - left) * ink
        self._ink[first + 1 : last] += ink
        if last < self._width:
            self._ink[last] += (right - last) * ink

    def paste(self, image: Image.Image, left: int, top: int, height: int) -> None:
        share = self._ink[:, 3:]
        color = np.rint(self._ink[:, :3] / np.maximum(share, 1e-9)).clip(0, 255).astype(np.uint8)
        mask = np.rint(share[:, 0] * 255).clip(0, 255).astype(np.uint8)
        size = (self._width, height)
        image.paste(
            Image.fromarray(np.broadcast_to(color, (height, self._width, 3)).copy()).resize(size),
            (left, top),
            Image.fromarray(np.broadcast_to(mask, (height, self._width)).copy()),
        )
