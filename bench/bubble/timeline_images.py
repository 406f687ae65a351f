"""Timelines of some periods: blocking above, pipelined below, on one scale."""

from pathlib import Path

from PIL import Image

from bench.bubble.comparison import Comparison, DepthFigures
from bench.bubble.report import many
from photonlite.observe.timeline import draw_timeline
from photonlite.observe.trace import step_starts

PERIODS = 4
"""Periods of blocking decoding that an image shows."""


def save_timelines(found: Comparison, folder: Path) -> Path:
    """Draw both depths into one image; returns its path."""
    length = PERIODS * found.block.period
    images = [
        _draw(depth, length, f"{title}: {found.workload}, {many(found.streams)}")
        for depth, title in ((found.block, "blocking (depth 1)"), (found.pipe, "pipelined (depth 2)"))
    ]
    whole = Image.new("RGB", (images[0].width, sum(image.height for image in images)), "white")
    top = 0
    for image in images:
        whole.paste(image, (0, top))
        top += image.height
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"timeline-{found.workload}-{found.streams}.png"
    whole.save(path, "PNG", dpi=(144, 144), optimize=True)
    return path


def _draw(depth: DepthFigures, length: float, title: str) -> Image.Image:
    """Draw a stretch that begins with a forward pass in the middle of steady decoding."""
    starts = step_starts(depth.last.steady_spans)
    begin = starts[len(starts) // 2] if starts else depth.last.prefilled
    return draw_timeline(depth.last.spans, start=begin, end=begin + length, title=title)
