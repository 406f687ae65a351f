"""How objects of held-out scenes are arranged: anywhere, in a grid, along lines, in heaps."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ARRANGEMENTS = {"free": 0.5, "grid": 0.2, "lines": 0.15, "heap": 0.15}
"""Shares of the scenes with several objects."""

_LEAST = 3  # objects of an arrangement that is not free
_LOOSE = 0.3  # of the pitch: how far an object may be from its place in a grid or a line


@dataclass(frozen=True)
class Arrangement:
    name: str  # A key of `ARRANGEMENTS`
    count: int  # Of the objects wanted
    size: tuple[int, int]  # Width and height of the image, pixels
    centres: npt.NDArray[np.float64]  # In pixels, [count, 2]; empty where objects lie anywhere
    pitch: float  # From one place to the next, pixels; 0 where there are none
    spread: float  # Of the tries around a centre, pixels

    @classmethod
    def drawn(cls, rng: np.random.Generator, count: int, width: int, height: int) -> "Arrangement":
        """Choose an arrangement for so many objects."""
        name = str(rng.choice([*ARRANGEMENTS], p=[*ARRANGEMENTS.values()])) if count >= _LEAST else "free"
        if name == "free":
            return cls(name, count, (width, height), np.zeros((0, 2)), 0.0, 0.0)
        if name == "heap":
            piles = rng.uniform(0.2, 0.8, (int(rng.integers(1, 4)), 2)) * (width, height)
            spread = rng.uniform(0.1, 0.22) * min(width, height)
            return cls(name, count, (width, height), piles[rng.integers(len(piles), size=count)], 0.0, spread)
        centres, pitch = (_grid if name == "grid" else _lines)(rng, count, width, height)
        return cls(name, count, (width, height), centres, pitch, _LOOSE * pitch * float(rng.random() < 0.6))

    def corners(
        self, rng: np.random.Generator, place: int | None, wide: int, high: int, tries: int
    ) -> list[tuple[int, int]]:
        """Draw upper left corners for a box inside the image, the most fitting first; `place` None for anywhere."""
        room = np.array(self.size) - (wide, high)
        if place is None or not len(self.centres):
            spots = rng.random((tries, 2)) * room
        else:
            steps = np.linspace(0, 1, tries)[:, None] if self.pitch else np.ones((tries, 1))
            off = rng.normal(0, 1, (tries, 2)) * (self.spread + 0.2 * self.pitch * steps * (steps > 0.5))
            spots = np.clip(self.centres[place] + off - np.array((wide, high)) / 2, 0, room)
        return [(int(left), int(top)) for left, top in spots]


def _grid(rng: np.random.Generator, count: int, width: int, height: int) -> tuple[npt.NDArray[np.float64], float]:
    """Choose cells of a grid that may be turned a little and have gaps: their centres and their shorter side."""
    cells = math.ceil(count * rng.uniform(1, 1.3))
    columns = max(1, round(math.sqrt(cells * width / height * rng.uniform(0.6, 1.6))))
    rows = math.ceil(cells / columns)
    inner = np.array((width, height)) * rng.uniform(0.75, 1.0, 2)
    pitch = inner / (columns, rows)
    index = np.sort(rng.choice(rows * columns, count, replace=False))
    at = np.stack((index % columns - (columns - 1) / 2, index // columns - (rows - 1) / 2), axis=1) * pitch
    turn = math.radians(rng.uniform(-10, 10)) * float(rng.random() < 0.4)
    turned = at @ np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    return turned + np.array((width, height)) / 2, float(pitch.min())


def _lines(rng: np.random.Generator, count: int, width: int, height: int) -> tuple[npt.NDArray[np.float64], float]:
    """Choose places along one to four lines, which may be bent: their centres and the distance of neighbours."""
    number = max(int(rng.integers(1, 5)), math.ceil(count / 16))
    each = math.ceil(count / number)
    pitch = 0.92 * width / each
    along = (np.arange(count) % each + 0.5) * pitch + 0.04 * width
    line = np.arange(count) // each
    middle = (
        np.sort(rng.uniform(0.1, 0.9, number)) if rng.random() < 0.3 else (np.arange(number) + 0.5) / number
    ) * height
    bend = rng.uniform(0, 0.06) * height * np.sin(along / width * rng.uniform(2, 8) + rng.uniform(0, 6))
    return np.stack((along, middle[line] + bend), axis=1), float(min(pitch, height / number))
