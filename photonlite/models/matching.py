"""Tensors of files matched with the parameters of a model; errors show the names and shapes of the files."""

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

from photonlite.errors import CheckpointError
from photonlite.models.shards import FLOAT_BYTES, TensorInfo

Key = TypeVar("Key", bound=Hashable)

_NAMED = 5  # tensors in an error message; the others are counted


def quantised(info: TensorInfo) -> CheckpointError:
    """Return the error for a tensor whose numbers have no floating-point type."""
    return CheckpointError(
        f"{info.file} is quantised ({info.name} has type {info.dtype}), which is not supported: use a release in "
        f"{', '.join(FLOAT_BYTES)}"
    )


def given_twice(info: TensorInfo, other: TensorInfo) -> CheckpointError:
    """Return the error for two tensors of one parameter."""
    return CheckpointError(
        f"{info.name} in {info.file} and {other.name} in {other.file} are the same parameter: remove one of them"
    )


def check_tensors(
    found: Mapping[Key, TensorInfo], shapes: Mapping[Key, tuple[int, ...]], convolution: Key | None = None
) -> None:
    """Raise CheckpointError unless the tensors of the files are the parameters of a model, given their shapes.

    The weight of a linear layer that files store as a convolution's may have more dimensions.
    """
    missing = [str(key) for key in shapes if key not in found]
    unexpected = [info.name for key, info in found.items() if key not in shapes]
    misshapen = [
        f"{info.name} is {list(info.shape)} where {list(shapes[key])} is expected"
        for key, info in found.items()
        if key in shapes and (_flat(info.shape) if key == convolution else info.shape) != shapes[key]
    ]
    problems = [
        f"{len(items)} {what}: {'; '.join(items[:_NAMED])}{'; ...' if len(items) > _NAMED else ''}"
        for what, items in (("missing", missing), ("unexpected", unexpected), ("wrongly shaped", misshapen))
        if items
    ]
    if problems:
        where = next(iter(found.values())).file.parent if found else "the checkpoint"
        raise CheckpointError(
            f"the tensors in {where} do not fit its config.json: {'. '.join(problems)}. Check that the weights are "
            "whole and that config.json belongs to them"
        )


def _flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:1], math.prod(shape[1:]))
