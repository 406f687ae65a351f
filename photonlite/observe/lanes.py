"""Bars on a row of pixels: which span is seen where, and how much of a pixel it covers."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from PIL import Image

from photonlite.observe.trace import Span
from photonlite.results.drawing.style import Color


class Piece(NamedTuple):
    """A part of a span that no later span hides, in seconds."""

    span: Span
    start_s: float
    end_s: float


def visible_pieces(spans: Iterable[Span]) -> list[Piece]:
    """Cut spans of one track into pieces that do not overlap, in order; what began last is seen."""
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

    # Of spans that begin together the longest goes below the others.
    for span in sorted(spans, key=lambda span: (span.start_s, -span.end_s)):
        close(span.start_s)
        if open_spans:
            show(span.start_s)
        open_spans.append(span)
        seen_to = span.start_s
    close(float("inf"))
    return pieces


class Bars:
    """Bars of one row, in colours; a bar that covers a part of a pixel colours that part of it.

    So a gap of a fifth of a pixel is a fifth red: gaps too narrow to be seen one by one still add up to their share.

    Args:
        width: Pixels of the row.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._ink = np.zeros((width, 4))  # red, green, blue, each times the share covered; that share

    def add(self, left: float, right: float, color: Color) -> None:
        """Put a bar from `left` to `right`, in pixels; what lies outside the row is cut off."""
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
        """Paint the row into an image, at a corner and with a height in pixels."""
        share = self._ink[:, 3:]
        color = np.rint(self._ink[:, :3] / np.maximum(share, 1e-9)).clip(0, 255).astype(np.uint8)
        mask = np.rint(share[:, 0] * 255).clip(0, 255).astype(np.uint8)
        size = (self._width, height)
        image.paste(
            Image.fromarray(np.broadcast_to(color, (height, self._width, 3)).copy()).resize(size),
            (left, top),
            Image.fromarray(np.broadcast_to(mask, (height, self._width)).copy()),
        )
