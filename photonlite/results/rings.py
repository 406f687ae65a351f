"""Closed outlines in the plane: clipping, joining, grouping, filling."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

XY = tuple[float, float]
Ring = list[XY]


def clip_ring(ring: Ring) -> Ring:
    """Return the part inside the unit square (Sutherland and Hodgman 1974), without repeated vertices."""
    for axis in (0, 1):
        ring = _clip_side(ring, axis, 0.0, lambda value: value >= 0.0)
        ring = _clip_side(ring, axis, 1.0, lambda value: value <= 1.0)
    return [end for start, end in _edges(ring) if end != start]


def _edges(ring: Ring) -> Sequence[tuple[XY, XY]]:
    """Edges of a ring, each ending at a vertex, in the order of the vertices."""
    return list(pairwise([ring[-1], *ring])) if ring else []


def _clip_side(ring: Ring, axis: int, limit: float, inside: Callable[[float], bool]) -> Ring:
    clipped: Ring = []
    for start, end in _edges(ring):
        if inside(start[axis]) != inside(end[axis]):
            share = (limit - start[axis]) / (end[axis] - start[axis])
            other = start[1 - axis] + share * (end[1 - axis] - start[1 - axis])
            clipped.append((limit, other) if axis == 0 else (other, limit))
        if inside(end[axis]):
            clipped.append(end)
    return clipped


def join_rings(rings: Sequence[Ring]) -> Ring:
    """Return one ring that fills what the rings fill: bridges of no width join each to the nearest point before it."""
    joined: Ring = list(rings[0]) if rings else []
    for ring in rings[1:]:
        points = np.asarray(joined)
        # Point by point: all distances at once would take much memory.
        distances = (((points - point) ** 2).sum(axis=1) for point in ring)
        _, near, own = min((float(each.min()), int(each.argmin()), own) for own, each in enumerate(distances))
        joined[near + 1 : near + 1] = [*ring[own:], *ring[: own + 1], joined[near]]
    return joined


def group_rings(rings: Sequence[Ring]) -> list[Ring]:
    """Return polygons without holes that together fill what the rings fill: holes are joined to a ring around them.

    A ring is a hole where its direction and those of the rings around it add up to zero.
    """
    areas = [signed_area(ring) for ring in rings]
    groups: dict[int, list[Ring]] = {}
    # Large rings first: the rings around a hole are grouped before the hole.
    for index in sorted(range(len(rings)), key=lambda i: -abs(areas[i])):
        around = [
            i for i in range(len(rings)) if abs(areas[i]) > abs(areas[index]) and _contains(rings[i], rings[index][0])
        ]
        winding = sum(math.copysign(1, areas[i]) for i in (*around, index))
        outer = [i for i in around if i in groups and areas[i] * areas[index] < 0]
        if winding == 0 and outer:
            groups[min(outer, key=lambda i: abs(areas[i]))].append(rings[index])
        else:
            groups[index] = [rings[index]]
    return [join_rings(group) for group in groups.values()]


def signed_area(ring: Ring) -> float:
    """Return the area (shoelace formula), positive where the ring turns clockwise on an image (y down)."""
    return sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in pairwise([*ring, ring[0]])) / 2


def _contains(ring: Ring, point: XY) -> bool:
    x, y = point
    inside = False
    for (x0, y0), (x1, y1) in pairwise([*ring, ring[0]]):
        if (y0 > y) != (y1 > y) and x < x0 + (y - y0) * (x1 - x0) / (y1 - y0):
            inside = not inside
    return inside


def fill_mask(rings: Sequence[Ring], width: int, height: int) -> NDArray[np.bool_]:
    """Return the pixels whose centres the rings (in pixels) enclose, by non-zero winding number: bool [height, width].

    Every edge adds its direction to the winding number of all pixels to its right, row by row: the edges' crossings
    with the rows' centre lines are counted into a table, and a running sum along the rows fills it.
    """
    mask = np.zeros((height, width), dtype=np.bool_)
    edges = np.array([(*a, *b) for ring in rings for a, b in pairwise([*ring, ring[0]])], dtype=np.float64)
    if not len(edges):
        return mask
    x0, y0, x1, y1 = edges.T
    first = np.clip(np.ceil(np.minimum(y0, y1) - 0.5), 0, height).astype(np.intp)
    last = np.clip(np.ceil(np.maximum(y0, y1) - 0.5), 0, height).astype(np.intp)
    counts = last - first
    if not counts.any():
        return mask
    edge = np.repeat(np.arange(len(edges)), counts)
    rows = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + first[edge]
    crossing = x0[edge] + (rows + 0.5 - y0[edge]) / (y1 - y0)[edge] * (x1 - x0)[edge]
    columns = np.clip(np.ceil(crossing - 0.5), 0, width).astype(np.intp)
    top, bottom, left, right = rows.min(), rows.max() + 1, columns.min(), columns.max()
    winding = np.zeros((bottom - top, right - left + 1), dtype=np.int32)
    np.add.at(winding, (rows - top, columns - left), np.where(y1 > y0, 1, -1)[edge])
    mask[top:bottom, left:right] = np.cumsum(winding, axis=1)[:, :-1] != 0
    return mask
