"""Several results as one data set: annotations and detections with common ids."""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any, TypeAlias

from photonlite.errors import InputError
from photonlite.results.export import number_labels
from photonlite.results.kinds import Detections, Points, Segments

SpatialResult: TypeAlias = Detections | Points | Segments


def to_coco(
    results: Iterable[SpatialResult | Exception],
    *,
    file_names: Sequence[str | PathLike[str]] | None = None,
    category_ids: Mapping[str, int] | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Return results as one COCO data set (https://cocodataset.org/#format-data), in pixels.

    Image ids count from 1 in the order of the results, annotation ids from 1 over all of them.

    Args:
        results: Of `detect`, `point` or `segment`, in any mixture; an error that `batch` left in a result's place has
            an image id and no image.
        file_names: Of the images, in the same order.
        category_ids: The id of each label; without it the names asked for and other labels count from 1.

    Returns:
        `{"images": [...], "annotations": [...], "categories": [...]}`.

    Raises:
        InputError: Something else is among the results, the number of file names differs, a label has no category id,
            or the size of an image is not known.
    """
    checked = _check_results(results)
    if file_names is not None and len(file_names) != len(checked):
        raise InputError(
            f"There are {len(checked)} results and {len(file_names)} file names. Give one for each result."
        )
    categories = dict(category_ids) if category_ids is not None else _number_classes(checked, first=1)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index, result in enumerate(checked):
        if isinstance(result, Exception):
            continue
        width, height = result.size()
        file_name = {} if file_names is None else {"file_name": fspath(file_names[index])}
        images.append({"id": index + 1, "width": width, "height": height, **file_name})
        annotations += result.to_coco(image_id=index + 1, category_ids=categories, first_id=len(annotations) + 1)
    return {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": number, "name": label} for label, number in categories.items()],
    }


def to_supervision(
    results: Iterable[SpatialResult | Exception], *, class_ids: Mapping[str, int] | None = None
) -> list[Any]:
    """Return one `supervision.Detections` for each result, in pixels, with the same class id for a label everywhere.

    Args:
        results: As for `to_coco`; an error gives None.
        class_ids: The id of each label; without it the names asked for and other labels count from 0.

    Raises:
        MissingDependencyError: The package `supervision` is not installed.
        InputError: Something else is among the results, a label has no class id, or the size of an image is not known.
    """
    checked = _check_results(results)
    classes = dict(class_ids) if class_ids is not None else _number_classes(checked, first=0)
    return [None if isinstance(result, Exception) else result.to_supervision(class_ids=classes) for result in checked]


def _check_results(results: Iterable[SpatialResult | Exception]) -> list[SpatialResult | Exception]:
    if isinstance(results, Mapping):
        raise InputError("One result was given. Give a list of results, or call the method of the same name on it.")
    checked = list(results)
    for index, result in enumerate(checked):
        if not isinstance(result, Detections | Points | Segments | Exception):
            raise InputError(
                f"Result {index} is of type {type(result).__name__}. Give results of detect, point or segment."
            )
    return checked


def _number_classes(results: Iterable[SpatialResult | Exception], *, first: int) -> dict[str, int]:
    found = [result for result in results if not isinstance(result, Exception)]
    return number_labels((name for result in found for name in result.classes()), None, "", first=first)
