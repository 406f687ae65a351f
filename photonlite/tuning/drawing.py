"""Draws schedules: each operation in a row, a piece as high as its share of the card."""

from collections.abc import Mapping
from pathlib import Path

from PIL import Image, ImageDraw

from photonlite.errors import SettingsError
from photonlite.results.drawing.style import Color, load_font
from photonlite.tuning.interference import Resource
from photonlite.tuning.schedule import Schedule

COLORS: Mapping[Resource, Color] = {"compute": (204, 121, 167), "memory": (0, 114, 178), "network": (230, 159, 0)}
_INK: Color = (31, 41, 55)
_FADED: Color = (107, 114, 128)
_LANE: Color = (242, 244, 247)
_WIDTH, _MARGIN, _LABELS, _ROW, _GAP = 1600, 36, 150, 90, 14
_NAME, _SMALL = load_font(26, None), load_font(20, None)


def draw_schedules(schedules: Mapping[str, Schedule], path: Path) -> None:
    """Draw schedules below each other on one axis of time.

    Raises:
        SettingsError: The suffix names no image format.
        OSError: The file cannot be written.
    """
    if Image.registered_extensions().get(path.suffix.lower()) not in Image.SAVE:
        raise SettingsError(f"{path.name}: {path.suffix!r} is not an image format: end the name in .png or .jpg")
    rows = sum(len(one.operations) for one in schedules.values())
    height = 2 * _MARGIN + rows * (_ROW + _GAP) + len(schedules) * 74
    image = Image.new("RGB", (_WIDTH, height), (255, 255, 255))
    pen = ImageDraw.Draw(image)
    longest = max((one.makespan for one in schedules.values()), default=1.0)
    top = _MARGIN
    for name, schedule in schedules.items():
        top = _draw(pen, name, schedule, top, longest)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, dpi=(144, 144))


def _draw(pen: ImageDraw.ImageDraw, name: str, schedule: Schedule, top: int, longest: float) -> int:
    """Draw one schedule and return where the next one begins."""
    left, scale = _MARGIN + _LABELS, (_WIDTH - 2 * _MARGIN - _LABELS) / longest
    title = f"{name}: {1e3 * schedule.makespan:.2f} ms planned, {1e3 * schedule.turns:.2f} ms in turns"
    pen.text((_MARGIN, top), title, _INK, _NAME)
    top += 40
    for operation in schedule.operations:
        pen.rectangle((left, top, _WIDTH - _MARGIN, top + _ROW), _LANE)
        pen.text((_MARGIN, top + _ROW / 2), operation.name, _INK, _SMALL, anchor="lm")
        for slot in (one for one in schedule.pieces if one.operation == operation.name):
            x0, x1 = left + slot.starts_s * scale, left + slot.ends_s * scale
            y0 = top + _ROW * (1 - slot.share)
            pen.rectangle((x0, y0, x1 - 3, top + _ROW), COLORS[operation.resource])
            label = f"{slot.begin}:{slot.end}, {slot.share:.0%}"
            if pen.textlength(label, _SMALL) < x1 - x0 - 8:
                pen.text(((x0 + x1) / 2, top + _ROW - 14), label, (255, 255, 255), _SMALL, anchor="mm")
        top += _ROW + _GAP
    pen.text((left, top - 8), "0 ms", _FADED, _SMALL)
    pen.text(
        (left + schedule.makespan * scale, top - 8), f"{1e3 * schedule.makespan:.2f} ms", _FADED, _SMALL, anchor="ra"
    )
    return top + 34
