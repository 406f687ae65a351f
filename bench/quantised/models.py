"""Models of Moondream 2's shape with random weights, in several precisions."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from bench.bubble.subjects import random_model
from bench.shapes import MOONDREAM2, TINY
from photonlite.kernels.reference.attention import ScoreRule
from photonlite.models.layers import attend
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.precisions import Precisions
from photonlite.models.quantised import QuantisedLinear, layers_of, outline_bytes, prepare

CONTEXT = 850


class LongContext:
    """Attention of one position to a context that stays the same: its time counts, its results do not.

    Args:
        model: Whose attention it is.
        dtype: Of keys and values.
        context: Positions.
    """

    def __init__(self, model: MoondreamModel, dtype: torch.dtype, context: int = CONTEXT) -> None:
        shape = model.shape
        self._keys, self._values = torch.randn(2, 1, context, shape.kv_heads, shape.head_dim).to(dtype).unbind()

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule | None = None) -> Tensor:
        """Attend; see :class:`photonlite.models.layers.Attention`."""
        return attend(q, self._keys, self._values)


def full_model(layers: int, *, tiny: bool) -> MoondreamModel:
    """Make a model in float32 with so many layers, and the image encoder of a tiny one, which is not run here."""
    raw: dict[str, Any] = TINY
    if not tiny:
        dim = MoondreamConfig.from_dict(MOONDREAM2).text.dim
        raw = MOONDREAM2 | {"vision": TINY["vision"] | {"proj_out_dim": dim}, "text": {"n_layers": layers}}
    return random_model(MoondreamConfig.from_dict(raw), torch.device("cpu"), torch.float32)


def quantised_copy(model: MoondreamModel, precisions: Precisions, dtype: torch.dtype) -> MoondreamModel:
    """Copy a model with quantised layers, and everything else in a type; no layer exists twice in full."""
    layers = layers_of(model, precisions)
    kept = {id(model.get_submodule(name)): None for name in layers}
    made = copy.deepcopy(model, kept)  # the layers that are quantised are left out
    for name, precision in layers.items():
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        parent, _, child = name.rpartition(".")
        layer = QuantisedLinear.of(linear, precision)
        if layer.bias is not None:
            layer.bias = nn.Parameter(layer.bias.to(dtype), requires_grad=False)
        setattr(made.get_submodule(parent), child, layer)
    for parameter in made.parameters():
        if parameter.dtype == torch.float32:
            parameter.data = parameter.data.to(dtype)
    prepare(made, torch.device("cpu"))
    return made


def bytes_of_release(precisions: Precisions, dtype: torch.dtype) -> int:
    """Return the bytes of the weights of Moondream 2, its image encoder included."""
    with torch.device("meta"):
        model = MoondreamModel(MoondreamConfig.from_dict(MOONDREAM2))
    return outline_bytes(model, precisions, dtype)
