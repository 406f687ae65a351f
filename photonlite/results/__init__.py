"""Results of the skills: mappings of plain values that can be plotted and converted."""

from photonlite.results.base import Metrics
from photonlite.results.spatial import Detections, Points, Segments, to_coco, to_supervision
from photonlite.results.svg import path_to_polygon, path_to_rings
from photonlite.results.text import Answer, Caption
from photonlite.results.typed import Box, Point

__all__ = [
    "Answer",
    "Box",
    "Caption",
    "Detections",
    "Metrics",
    "Point",
    "Points",
    "Segments",
    "path_to_polygon",
    "path_to_rings",
    "to_coco",
    "to_supervision",
]
