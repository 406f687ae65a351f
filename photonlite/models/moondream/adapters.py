"""Moondream's own adapters, "variants", which have neither a configuration nor a scale.

```
Moondream 2   text_model.transformer.h.N.<layer>.parametrizations.weight.0.{A, B}
              layers mixer.Wqkv, mixer.out_proj, mlp.fc1 and mlp.fc2 of every block
Moondream 3   text_lora.dense.N.{up, down}_{a, b}    MLPs of the first blocks
              text_lora.moe.N.{up, down}_{a, b}      each expert of the others
```

In the reference of Moondream 2 the term of `proj` reads what the block's norm returns, not what attention does: it is a
term of the whole attention.
"""

import re
from collections.abc import Mapping

from torch import Tensor

from photonlite.errors import AdapterError
from photonlite.models.adapters.terms import AdapterPlace, AdapterTerm, whole_layer, wide
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.moondream.weights import parameter_name

_OLD = re.compile(r"(.+)\.parametrizations\.weight\.0\.([AB])")
_NEW = re.compile(r"(?:.*\.)?_?text(?:_lora)?\.(dense|moe)\.(\d+)\.(up|down)_([ab])")
_LAYERS = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")


def adapter_place(model: MoondreamModel, module: str) -> AdapterPlace | None:
    """Return where the layer of a public name is; None for one that takes no adapter."""
    return whole_layer(model, parameter_name(f"{module}.weight").removesuffix(".weight"))


def read_variant(model: MoondreamModel, tensors: Mapping[str, Tensor], source: str) -> list[AdapterTerm]:
    """Return the terms of a variant; AdapterError for tensors of none, and for one that is incomplete."""
    parts: dict[AdapterPlace, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        place, half = _place(model, key)
        if place is None:
            raise AdapterError(
                f"{source} has no adapter_config.json and holds {key}, which is no part of a Moondream variant for "
                "this model: of PEFT's files name the folder"
            )
        if half in parts.setdefault(place, {}):
            raise AdapterError(f"{source} has two matrices {half} for {place.layer}: its names mix two layouts")
        parts[place][half] = wide(tensor)
    halves = [place.layer for place, found in parts.items() if len(found) < 2]
    old = any(_OLD.fullmatch(key) for key in tensors)
    expected = [f"text.blocks.{index}.{name}" for index in range(model.config.text.n_layers) for name in _LAYERS]
    adapted = {place.layer for place in parts}
    missing = [name for name in expected if name.removesuffix(".proj") not in adapted and name not in adapted]
    if halves or (old and missing) or not parts:
        what = (halves or missing or ["every layer"])[0]
        raise AdapterError(f"{source} is an incomplete Moondream variant: it lacks a matrix of {what}")
    return [AdapterTerm(place, found["a"], found["b"]) for place, found in parts.items()]


def _place(model: MoondreamModel, key: str) -> tuple[AdapterPlace | None, str]:
    """Return the place of a tensor and which half of the term it is."""
    text = model.config.text
    if match := _OLD.fullmatch(key):
        name = parameter_name(f"{match[1]}.weight").removesuffix(".weight")
        place = whole_layer(model, name) if name.startswith("text.") else None
        if place is not None and name.endswith(".attn.proj"):
            place = place._replace(layer=name.removesuffix(".proj"))
        return place, match[2].lower()
    match = _NEW.fullmatch(key)
    if match is None or text.moe is None:
        return None, ""
    kind, number, side, half = match[1], int(match[2]), match[3], match[4]
    block = number + (text.moe.start_layer if kind == "moe" else 0)
    end = text.n_layers if kind == "moe" else text.moe.start_layer
    if block >= end:
        return None, ""
    inner = 2 * text.moe.expert_inner_dim if kind == "moe" else text.ff_dim
    outputs = inner if side == "up" else text.dim
    return AdapterPlace(f"text.blocks.{block}.mlp.{'fc1' if side == 'up' else 'fc2'}", 0, outputs), half
