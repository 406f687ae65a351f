"""Results of the skills: mappings of plain values that can be plotted and converted."""

from photonlite.results.base import Metrics
from photonlite.results.dataset import to_coco, to_supervision
from photonlite.results.items import BoxItem, PointItem, SegmentItem
from photonlite.results.kinds import Detections, Points, Segments
from photonlite.results.svg import path_to_polygon, path_to_rings
from photonlite.results.text import Answer, Caption
from photonlite.results.tracking import Tracker
from photonlite.results.typed import Box, Point

__all__ = [
    "Answer",
    "Box",
    "BoxItem",
    "Caption",
    "Detections",
    "Metrics",
    "Point",
    "PointItem",
    "Points",
    "SegmentItem",
    "Segments",
    "Tracker",
    "path_to_polygon",
    "path_to_rings",
    "to_coco",
    "to_supervision",
]
