"""Tensors of files matched with the parameters of a model; errors show the names and shapes of the files."""

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import torch

from photonlite.errors import CheckpointError
from photonlite.models.shards import FLOAT_BYTES, TensorInfo, read_tensors, watched

Key = TypeVar("Key", bound=Hashable)

HEADS = ("lm_head.weight", "language_model.lm_head.weight")
"""Public names of the head: some files store it a second time where it is the embedding."""

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
    found: Mapping[Key, TensorInfo],
    shapes: Mapping[Key, tuple[int, ...]],
    convolutions: Mapping[Key, tuple[int, ...]] | None = None,
) -> None:
    """Raise CheckpointError unless the tensors of the files are the parameters of a model, given their shapes.

    Files may store the weight of a linear layer as a convolution's, given its shape: another order of the same numbers,
    which MLX writes, would be read as noise.
    """
    wanted = {**shapes, **(convolutions or {})}
    missing = [str(key) for key in shapes if key not in found]
    unexpected = [info.name for key, info in found.items() if key not in shapes]
    misshapen = [
        f"{info.name} is {list(info.shape)} where {list(wanted[key])} is expected"
        for key, info in found.items()
        if key in shapes and info.shape not in (shapes[key], wanted[key])
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


def check_tied(infos: Iterable[TensorInfo], words: TensorInfo, remedy: str) -> None:
    """Raise CheckpointError if files hold a head that is not the embedding, of a model whose config.json ties them."""
    head = next((info for info in infos if info.name in HEADS), None)
    if head is None:
        return
    with watched(lambda count: None):  # both are read once more, or not at all, when the model is loaded
        (_, first), (_, second) = read_tensors([head, words])
    coarse = min(first.dtype, second.dtype, key=lambda dtype: dtype.itemsize)
    if not torch.equal(first.to(coarse), second.to(coarse)):
        raise CheckpointError(
            f"{head.name} in {head.file} is not equal to {words.name}, but config.json says that the head is the "
            f"embedding: {remedy}"
        )
