"""Outlines of masks: marching squares, with linear interpolation between samples (Lorensen and Cline, 1987).

```
samples, one a pixel        a border of -1 closes outlines        cell: four neighbouring samples
```

In each cell a line goes from every edge where a clockwise walk around it enters the inside to the next edge where that
leaves it. So the inside lies on one hand of all lines, and holes run in the opposite direction, as SVG fills them.
"""

import numpy as np
import numpy.typing as npt

Edge = tuple[int, int, int]  # between the sample at row and column and the next one across (0) or down (1)

_WALK = ((0, 0, 0), (0, 1, 1), (1, 0, 0), (0, 0, 1))  # edges of a cell, clockwise from the top


def trace_path(values: npt.NDArray[np.float32]) -> str:
    """Return SVG path data around the samples above 0, in units of the box that they fill; empty if there are none."""
    rows, columns = values.shape
    padded = np.pad(values.astype(np.float64), 1, constant_values=-1.0)
    following = _lines(padded)
    parts: list[str] = []
    while following:
        edge, ring = next(iter(following)), []
        while (after := following.pop(edge, None)) is not None:
            ring.append(_crossing(padded, edge, rows, columns))
            edge = after
        # Where samples at the border are inside, several crossings are clipped to one point.
        points = [point for place, point in enumerate(ring) if point != ring[place - 1]]
        if len(points) > 2:
            parts.append(f"M {' '.join(points)} Z")
    return " ".join(parts)


def _lines(padded: npt.NDArray[np.float64]) -> dict[Edge, Edge]:
    """Return where each line of a cell goes, by the edge where it begins."""
    inside = padded > 0
    corners = inside[:-1, :-1], inside[:-1, 1:], inside[1:, 1:], inside[1:, :-1]  # clockwise from the top left
    mixed = np.logical_or.reduce(corners) & ~np.logical_and.reduce(corners)
    found: dict[Edge, Edge] = {}
    for row, column in np.argwhere(mixed).tolist():
        held = [bool(corner[row, column]) for corner in corners]
        edges: list[Edge] = [(row + down, column + across, way) for down, across, way in _WALK]
        turns = [place for place in range(4) if held[place] != held[(place + 1) % 4]]
        for place, turn in enumerate(turns):
            if not held[turn]:  # the walk enters here
                found[edges[turn]] = edges[turns[(place + 1) % len(turns)]]
    return found


def _crossing(padded: npt.NDArray[np.float64], edge: Edge, rows: int, columns: int) -> str:
    """Return where 0 lies on an edge, as x and y in [0, 1] of the box; sample 1 of a padded axis is half a pixel in."""
    row, column, down = edge
    one, other = padded[row, column], padded[row + down, column + 1 - down]
    share = one / (one - other)
    y, x = (row + share * down - 0.5) / rows, (column + share * (1 - down) - 0.5) / columns
    return " ".join(f"{min(1.0, max(0.0, value)):.4f}".rstrip("0").rstrip(".") for value in (x, y))
