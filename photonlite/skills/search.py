"""What one call of detect, point or segment looks for, as requests, and how their answers become one result.

```
                names x (image, and its tiles)          one request each, submitted together
Search ──────── parts ─────────────────────────> Completion with parts ──── finish ────> one result
one name, no tiles: a single request ──────────> Completion
```
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, get_args

from photonlite.errors import SettingsError
from photonlite.grammar.prompts import Size
from photonlite.request import Completion, Request
from photonlite.results import Detections, Points, Segments
from photonlite.settings import plain
from photonlite.skills.base import spatial_info
from photonlite.skills.merging import best_of_overlapping, merge_tiles
from photonlite.skills.names import clean_names
from photonlite.skills.tiles import Region, Tile, check_tile, cut_tiles, to_image

S = TypeVar("S", Detections, Points, Segments)
Overlap: TypeAlias = Literal["keep", "best"]

KEYS: Final = {"detect": "objects", "point": "points", "segment": "segments"}
"""The key of the items in a skill's result."""

MAX_REQUESTS: Final = 256
"""Requests of one call: names times the image and its tiles."""


@dataclass(frozen=True)
class Scope:
    """Where to look, and what to leave out.

    Attributes:
        min_score: Items with a lower score are left out.
        overlap: "best" keeps the item of the best score among those of different names that overlap.
        tile: How the image is cut into tiles; None for not at all.
        spatial_refs: What the names are about: places in the whole image, which tiles do not have.

    Raises:
        SettingsError: One of them cannot be used.
    """

    min_score: float = 0.0
    overlap: Overlap = "keep"
    tile: Tile | None = None
    spatial_refs: object = None

    def __post_init__(self) -> None:
        score = plain(self.min_score)
        if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
            raise SettingsError(f"min_score is {self.min_score!r:.60}: give a number from 0 to 1, such as 0.5")
        if self.overlap not in get_args(Overlap):
            raise SettingsError(f"overlap is {self.overlap!r:.60}: it must be 'keep' or 'best'")
        object.__setattr__(self, "tile", check_tile(self.tile))
        if self.tile is not None and self.spatial_refs is not None:
            raise SettingsError("spatial_refs are places in the whole image, not in its tiles: leave out one of both")


class Search(Generic[S]):
    """The requests of one call, and its one result: a name has a request in the image and in each of its tiles.

    Args:
        names: One name, or a list of up to 64, whose order is that of the class ids.
        build: Makes the request of a name, about an image of one of `sizes` if they are given.
        finish: Reads the result of a request.
        scope: Where to look, and what to leave out.
        sight: As for `cut_tiles`.

    Raises:
        PromptError: As `clean_names`.
        SettingsError: There would be over 256 requests.
    """

    def __init__(
        self,
        names: str | Sequence[str],
        build: Callable[..., Request],
        finish: Callable[[Request, Completion], S],
        scope: Scope,
        sight: int,
    ) -> None:
        self.names = clean_names(names)
        if isinstance(scope.tile, tuple):
            check_requests(len(self.names), math.prod(scope.tile))
        # Whether the answers of several requests are joined.
        self.joined = not isinstance(names, str) or scope.tile is not None
        self.requests = tuple(build(name) for name in self.names)
        self._asked = list(self.requests)  # those that are answered
        self._build = build
        self._finish: Callable[[Request, Completion], S] = finish
        self._scope, self._sight = scope, sight

    def parts(self, size: tuple[int, int]) -> list[tuple[Region | None, Request]]:
        """Return the requests about an image of a size, and the tile of each; None for the image as a whole."""
        _, *tiles = regions = self._regions(size)
        check_requests(len(self.names), len(tiles))
        # A request can run once, and may depend on the size of what it is about.
        asked = [
            (region, self._build(request.subject, sizes=[region.size if region else size]))
            for region in regions
            for request in self.requests
        ]
        self._asked = [request for _, request in asked]
        return asked

    def sized(self, sizes: Sequence[Size]) -> Request:
        """Return the only request, about an image of a size."""
        self._asked = [self._build(self.requests[0].subject, sizes=sizes)]
        return self._asked[0]

    def finish(self, completion: Completion) -> S:
        """Read the result of the completion, whose parts are those of the requests if they were joined."""
        parts = completion.parts if self.joined else (completion,)
        size = completion.picture_size or (1, 1)
        regions = self._regions(size)
        results = [self._finish(*one) for one in zip(self._asked, parts, strict=True)]
        key = KEYS[self.requests[0].skill]
        items: list[Any] = []
        for number in range(len(self.names)):
            found = [
                (item if region is None else to_image(item, region, size), region)
                for region, result in zip(regions, results[number :: len(self.names)], strict=True)
                for item in result[key]
                if item["score"] >= self._scope.min_score
            ]
            items += [item for item, _ in found] if len(regions) == 1 else merge_tiles(found, size)
        if self._scope.overlap == "best":
            items = best_of_overlapping(items)
        info = spatial_info(completion)
        info["names"] = self.names
        return type(results[0])(items, **info)

    def _regions(self, size: tuple[int, int]) -> list[Region | None]:
        return [None, *(cut_tiles(size, self._scope.tile, self._sight) if self._scope.tile else ())]


def check_requests(names: int, tiles: int) -> None:
    if (count := names * (1 + tiles)) > MAX_REQUESTS:
        raise SettingsError(
            f"{names} names in the image and its {tiles} tiles make {count} requests, over the limit of "
            f"{MAX_REQUESTS}: give fewer names or larger tiles"
        )
