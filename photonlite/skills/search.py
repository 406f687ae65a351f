"""What one call of detect, point or segment looks for, as requests, and how their answers become one result."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, cast, get_args

from photonlite.errors import SettingsError
from photonlite.request import Completion, Request
from photonlite.results import Detections, Points, Segments
from photonlite.settings import plain
from photonlite.skills.base import spatial_info
from photonlite.skills.merging import best_of_overlapping
from photonlite.skills.names import clean_names

S = TypeVar("S", Detections, Points, Segments)
Overlap: TypeAlias = Literal["keep", "best"]

KEYS: Final = {"detect": "objects", "point": "points", "segment": "segments"}
"""The key of the items in a skill's result."""


class Search(Generic[S]):
    """The requests of one call, and its one result: a name has one request.

    Args:
        names: One name, or a list of up to 64, whose order is that of the class ids.
        build: Makes the request of a name.
        finish: Reads the result of a request.
        min_score: Items with a lower score are left out.
        overlap: "best" keeps the item of the best score among those of different names that overlap.

    Raises:
        PromptError: As `clean_names`.
        SettingsError: `min_score` or `overlap` cannot be used.
    """

    def __init__(
        self,
        names: str | Sequence[str],
        build: Callable[[str], Request],
        finish: Callable[[Request, Completion], S],
        *,
        min_score: float,
        overlap: Overlap,
    ) -> None:
        self.names = clean_names(names)
        self.joined = not isinstance(names, str)  # whether the answers of several requests are joined
        self.requests = tuple(build(name) for name in self.names)
        self._finish: Callable[[Request, Completion], S] = finish
        self._min_score = check_min_score(min_score)
        self._overlap = check_overlap(overlap)

    def finish(self, completion: Completion) -> S:
        """Read the result of the completion, whose parts are those of the requests if they were joined."""
        parts = completion.parts if self.joined else (completion,)
        results = [self._finish(request, part) for request, part in zip(self.requests, parts, strict=True)]
        key = KEYS[self.requests[0].skill]
        items = [item for result in results for item in result[key] if item["score"] >= self._min_score]
        if self._overlap == "best":
            items = best_of_overlapping(items)
        info = spatial_info(completion)
        info["names"] = self.names
        return type(results[0])(items, **info)


def check_search(arguments: Mapping[str, Any]) -> None:
    """Check the arguments of a search, by name, that a task may leave out; raises a SettingsError."""
    check_min_score(arguments.get("min_score", 0.0))
    check_overlap(arguments.get("overlap", "keep"))


def check_min_score(given: object) -> float:
    value = plain(given)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise SettingsError(f"min_score is {given!r:.60}: give a number from 0 to 1, such as 0.5")
    return float(value)


def check_overlap(given: object) -> Overlap:
    if given not in get_args(Overlap):
        raise SettingsError(f"overlap is {given!r:.60}: it must be 'keep' or 'best'")
    return cast(Overlap, given)
