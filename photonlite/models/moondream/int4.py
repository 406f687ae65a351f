"""Moondream's published int4: which tensors of a file hold it, and how they are read.

A layer has `weight.packed`, uint8 ``[N K / 256, 128]``, `weight.scale` and `weight.zero_point`, both
``[N K / 128, 1]``. A group is 128 numbers that follow each other in the rows of the matrix, ``(q - zero) * scale``; the
first half of all groups is in the high four bits of `packed`, the second half in the low ones.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import torch

from photonlite.config import Precision
from photonlite.errors import CheckpointError, SettingsError
from photonlite.kernels.reference.quantised import GROUP, QuantisedWeight, pack_codes
from photonlite.models.precisions import Precisions
from photonlite.models.shards import TensorInfo, read_tensors

INT4: Final[Precision] = "int4"
_PARTS = ("packed", "scale", "zero_point")
Infos = Mapping[str, TensorInfo]


def without_int4(infos: Iterable[TensorInfo]) -> list[TensorInfo]:
    """Return the tensors that hold no part of an int4 weight."""
    return [info for info in infos if _split(info.name) is None]


def find_int4(infos: Iterable[TensorInfo], rename: Callable[[str], str]) -> Mapping[str, Infos]:
    """Return the parts of each int4 weight, by the model's own name of its layer; CheckpointError if one lacks any."""
    found: dict[str, dict[str, TensorInfo]] = {}
    for info in infos:
        if (split := _split(info.name)) is not None:
            layer = rename(f"{split[0]}.weight").removesuffix(".weight")
            found.setdefault(layer, {})[split[1]] = info
    for layer, parts in found.items():
        if missing := [part for part in _PARTS if part not in parts]:
            file = next(iter(parts.values())).file
            raise CheckpointError(f"{file} has an int4 weight of {layer} without {', '.join(missing)}: fetch it again")
    return found


def check_int4(published: Mapping[str, Infos], shapes: Mapping[str, tuple[int, ...]], precisions: Precisions) -> None:
    """Raise CheckpointError unless the parts fit weights of these shapes, SettingsError where they cannot stay so."""
    for layer, infos in published.items():
        shape = shapes.get(f"{layer}.weight", ())
        info = infos["packed"]
        if len(shape) != 2 or shape[1] % GROUP or shape[0] * shape[1] % (2 * GROUP):
            raise CheckpointError(f"{info.file} has an int4 weight {info.name}, for which the model has no place")
        groups = shape[0] * shape[1] // GROUP
        wanted = {"packed": (groups // 2, GROUP), "scale": (groups, 1), "zero_point": (groups, 1)}
        for part, expected in wanted.items():
            if infos[part].shape != expected:
                raise CheckpointError(
                    f"{infos[part].name} is {list(infos[part].shape)} where {list(expected)} is expected"
                )
        if info.dtype != "U8":
            raise CheckpointError(f"{info.name} has type {info.dtype} where U8 is expected")
    if published and precisions.text not in (None, INT4):
        raise SettingsError(
            f"weights is {precisions.text!r}, but the checkpoint's own are in int4, which cannot become better: leave "
            "it out, or load the release in bfloat16"
        )


def read_int4(infos: Infos, shape: tuple[int, ...]) -> QuantisedWeight:
    """Read a weight ``[N, K]`` into photonlite's own form; scales and shifts are rounded to bfloat16."""
    mapped = {info.name: tensor.clone() for info, tensor in read_tensors(infos.values())}
    packed, scale, zero = (mapped[infos[part].name] for part in _PARTS)
    codes = torch.cat((packed >> 4, packed & 15)).view(shape[0], -1, GROUP)
    scale, zero = (value.float().view(shape[0], -1) for value in (scale, zero))
    return QuantisedWeight(pack_codes(codes), scale.bfloat16(), ((8 - zero) * scale).bfloat16())


def _split(name: str) -> tuple[str, str] | None:
    """Return layer and part of a tensor's name; None for a tensor that is no part of an int4 weight."""
    layer, _, part = name.rpartition(".weight.")
    return (layer, part) if layer and part in _PARTS else None
