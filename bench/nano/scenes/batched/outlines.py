"""Outlines of sprites: one closed polygon of few vertices around each."""

import numpy as np
import numpy.typing as npt
import torch
from contourpy import LineType, contour_generator
from PIL import Image, ImageDraw, ImageFilter
from torch import Tensor

LEAST, MOST = 8, 32
"""Vertices of an outline."""

_WANTED_IOU = 0.97
_LOST_IOU = 0.015  # at most, against the most vertices: leaves and spikes are worth few of them
_STEPS, _BLUR, _TENSION = 60, 1.5, 0.2  # of the refinement: rounds, pixels, and the weight of the outline's length
_ALONG = (np.arange(16) + 0.5) / 16  # places on an edge
_NEARLY_ALL = 0.95  # of a sprite's area is in the one contour that stands for it
_PAD = 24  # so that contours close, and gaps between parts can be closed beyond the sprite's border
_FINE = 64  # vertices at least from which the removal starts

_SAMPLES = 3  # small pixels a pixel and axis, of which the middle one counts

Points = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def outlines(sprites: npt.NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
    """Return one outline around the pixels of each sprite (straight RGBA [n, s, s, 4]) that are more than half opaque.

    It is the largest outer contour, without holes; gaps between parts are closed until it contains nearly all pixels.
    Vertices are removed in the order of Visvalingam and Whyatt (1993) and the others moved to where they fit best: 8 to
    32 stay, as few as give an IoU of 0.97, or nearly as much as 32 do.
    Returns vertices with x and y in [-1, 1], clockwise as seen, [n, 32, 2] with zeros past the count, and counts [n].
    """
    vertices, counts = torch.zeros(len(sprites), MOST, 2), torch.zeros(len(sprites), dtype=torch.long)
    for n, sprite in enumerate(sprites):
        line = outline(sprite[..., 3])
        vertices[n, : len(line)] = torch.from_numpy(line * (2 / sprite.shape[0]) - 1)
        counts[n] = len(line)
    return vertices, counts


def outline(alpha: npt.NDArray[np.uint8]) -> Points:
    """Draw the outline of one sprite's alpha [s, s]: x and y in pixels (0 is the border), [8..32, 2]."""
    padded = np.pad(alpha, _PAD)
    if not (padded > 127).any():
        raise ValueError("the sprite has no visible pixel")
    contour = _contour(padded)
    order = _removal_order(contour if len(contour) >= _FINE else _dense(contour))
    mask = rasterise(contour, len(padded))
    soft = np.asarray(Image.fromarray(mask).convert("L").filter(ImageFilter.GaussianBlur(_BLUR))) / 255.0
    best, highest = _best(order[MOST], soft, mask)
    few, many = LEAST, MOST
    while few < many:
        count = (few + many) // 2
        points, reached = _best(order[count], soft, mask)
        if reached >= min(_WANTED_IOU, highest - _LOST_IOU):
            best, many = points, count
        else:
            few = count + 1
    return best - _PAD


def _best(points: Points, soft: npt.NDArray[np.float64], mask: Mask) -> tuple[Points, float]:
    """Return the vertices as they are or refined, whichever fit the mask better, and their IoU."""
    fits = [(iou(rasterise(line, len(mask)), mask), line) for line in (points, _refined(points, soft))]
    reached, line = max(fits, key=lambda one: one[0])
    return line, reached


def _refined(points: Points, soft: npt.NDArray[np.float64]) -> Points:
    """Move vertices uphill on the area inside less that outside of a blurred mask, less a little of the length.

    The slope by a vertex is an integral over its two edges: of the mask less a half, weighted by the distance from the
    edge's other end. Vertices run clockwise as seen, so an edge (x, y) has the outward normal (y, -x).
    """
    for _ in range(_STEPS):
        edge = np.roll(points, -1, axis=0) - points
        length = np.hypot(*edge.T)[:, None] + 1e-6
        gain = _look_up(soft, points[:, None] + _ALONG[:, None] * edge[:, None]) - 0.5
        normal = np.stack((edge[:, 1], -edge[:, 0]), axis=1)
        slope = (gain * (1 - _ALONG)).mean(1)[:, None] * normal
        slope += np.roll((gain * _ALONG).mean(1)[:, None] * normal, 1, axis=0)
        slope += _TENSION * (edge / length - np.roll(edge / length, 1, axis=0))
        step = 3 * slope / (length + np.roll(length, 1, axis=0))
        points = points + step / np.maximum(1, np.hypot(*step.T))[:, None]
    return points


def _look_up(plane: npt.NDArray[np.float64], points: Points) -> npt.NDArray[np.float64]:
    """Interpolate a plane at points [..., 2] in pixels, of which 0 is the border."""
    places = np.clip(points - 0.5, 0, len(plane) - 1.001)
    x, y = places.astype(int)[..., 0], places.astype(int)[..., 1]
    right, down = (places[..., axis] % 1 for axis in range(2))
    upper = plane[y, x] * (1 - right) + plane[y, x + 1] * right
    lower = plane[y + 1, x] * (1 - right) + plane[y + 1, x + 1] * right
    return np.asarray(upper * (1 - down) + lower * down)


def rasterise(points: Points, side: int) -> Mask:
    """Fill a polygon of points in pixels: bool [side, side]."""
    image = Image.new("L", (_SAMPLES * side, _SAMPLES * side))
    # Pillow counts from the centres of pixels, and fills all that the border touches: too much of large pixels.
    ImageDraw.Draw(image).polygon([(x, y) for x, y in (points * _SAMPLES - 0.5).tolist()], fill=1)
    return np.asarray(image, bool)[_SAMPLES // 2 :: _SAMPLES, _SAMPLES // 2 :: _SAMPLES]


def iou(one: Mask, other: Mask) -> float:
    return float((one & other).sum() / max(1, (one | other).sum()))


def _contour(alpha: npt.NDArray[np.uint8]) -> Points:
    """Trace the outer contour that holds nearly all, closing gaps as far as needed."""
    total = int((alpha > 127).sum())
    contour = _largest(alpha)
    for gap in range(1, _PAD - 2):
        if (rasterise(contour, len(alpha)) & (alpha > 127)).sum() >= _NEARLY_ALL * total:
            break
        contour = _largest(_closed(alpha, gap))
    return contour


def _largest(alpha: npt.NDArray[np.uint8]) -> Points:
    # Outer contours go around what is higher on their left, rows upwards: clockwise as images are seen.
    lines = contour_generator(z=alpha.astype(np.float64), line_type=LineType.Separate).lines(127.5)
    largest = max((np.asarray(line) for line in lines), key=lambda line: abs(_area(line)))
    return largest[:-1] + 0.5


def _closed(alpha: npt.NDArray[np.uint8], gap: int) -> npt.NDArray[np.uint8]:
    """Widen by `gap` pixels and narrow again, which leaves gaps of twice as much filled."""
    image = Image.fromarray(alpha)
    for kind in (ImageFilter.MaxFilter, ImageFilter.MinFilter):
        image = image.filter(kind(2 * gap + 1))
    return np.maximum(alpha, np.asarray(image))


def _area(points: Points) -> float:
    x, y = points.T
    return float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2


def _dense(points: Points) -> Points:
    """Take points evenly along a short contour: more than an outline may have."""
    ends = np.vstack([points, points[:1]])
    along = np.concatenate([[0], np.cumsum(np.hypot(*np.diff(ends, axis=0).T))])
    places = np.linspace(0, along[-1], _FINE, endpoint=False)
    return np.stack([np.interp(places, along, ends[:, axis]) for axis in range(2)], axis=1)


def _removal_order(points: Points) -> dict[int, Points]:
    """Remove the vertex whose triangle with its neighbours is smallest, again and again; keep all stages by count."""
    stages = dict[int, Points]()
    while len(points) >= LEAST:
        stages[len(points)] = points
        back, ahead = np.roll(points, 1, axis=0) - points, np.roll(points, -1, axis=0) - points
        triangles = np.abs(back[:, 0] * ahead[:, 1] - back[:, 1] * ahead[:, 0])
        points = np.delete(points, triangles.argmin(), axis=0)
    return stages
