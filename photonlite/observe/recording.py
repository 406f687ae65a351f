"""Spans of what an engine does inside a ``with`` block, to be saved and drawn."""

import time
from os import PathLike
from typing import Any, Self

from PIL import Image

from photonlite.observe.timeline import draw_timeline
from photonlite.observe.trace import Span, Tracer


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
        kept = Tracer(max(1, len(self.spans)))
        for span in self.spans:
            kept.span(span.track, span.name, span.start_s, span.end_s, **span.args)
        kept.save(path)

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
