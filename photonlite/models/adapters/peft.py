"""Adapters as PEFT writes them: adapter_config.json and adapter_model.safetensors.

```
base_model.model.<module>.lora_A.weight [r, in]      term: B (alpha / r) · A,  or alpha / sqrt(r) with use_rslora
base_model.model.<module>.lora_B.weight [out, r]     r and alpha of a module: the first matching pattern, or the default
```

Which modules there are is read from the tensors. What would change more than these terms is refused by name.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from photonlite.errors import AdapterError
from photonlite.models.adapters.terms import AdapterPlace
from photonlite.models.shards import TensorInfo

# What rank_pattern and alpha_pattern may hold: no nested repeats, which would match names for hours.
_PLAIN_PATTERN = re.compile(r"(?:[\w.|^$*+-]|\\[.dw])*")
_MOST_REPEATS = 3
_KEY = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
_REFUSED = (
    "use_dora",
    "lora_bias",
    "modules_to_save",
    "use_qalora",
    "use_bdlora",
    "alora_invocation_tokens",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "arrow_config",
    "kasa_config",
    "velora_config",
    "monteclora_config",
    "fan_in_fan_out",
)
"""Entries that must be empty or false: their adapters are more than low-rank terms, or their tensors lie otherwise."""

_CHANGED_BASE = ("pissa", "olora", "corda", "loftq")  # begin values of init_lora_weights that change the base weights

_SPECIAL = (
    ("lora_embedding_", "an adapter of embeddings"),
    ("lora_magnitude_vector", "a DoRA adapter"),
    ("lora_bias", "an adapter with biases"),
    ("modules_to_save", "a whole module, trained anew"),
    ("lm_head", "an adapter of the head"),
)
"""Parts of names of tensors that are refused, and what they belong to."""

Pairs = dict[str, tuple[TensorInfo, TensorInfo, float]]
"""A and B of each module, and the scale of their product."""


def check_config(config: Mapping[str, Any], source: str) -> None:
    """Raise AdapterError for what is no plain LoRA, by the name of the entry."""
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise AdapterError(f"{source} is of peft_type {str(kind)!r:.40}: only LORA is supported")
    for name in _REFUSED:
        if config.get(name):
            raise AdapterError(f"{source} uses {name} ({str(config[name])!r:.60}), which is not supported")
    if config.get("bias", "none") != "none":
        raise AdapterError(f"{source} trains biases (bias is {config['bias']!r:.40}), which is not supported")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASE):
        raise AdapterError(
            f"{source} was trained beside base weights that {start!r:.40} had changed: save it with PEFT's "
            "path_initial_model_for_weight_conversion, which makes a plain LoRA of it"
        )


def find_pairs(infos: Iterable[TensorInfo], config: Mapping[str, Any], source: str) -> Pairs:
    """Return the matrices of each module; AdapterError for any tensor that is not one of a whole pair."""
    parts: dict[str, dict[str, TensorInfo]] = {}
    for info in infos:
        for part, what in _SPECIAL:
            if part in info.name:
                raise AdapterError(f"{source} holds {what} ({info.name}), which is not supported")
        match = _KEY.fullmatch(info.name)
        if match is None:
            raise AdapterError(f"{source} holds {info.name}, which belongs to no LoRA: nothing would use it")
        parts.setdefault(match[1], {})[match[2]] = info
    pairs: Pairs = {}
    for module, found in parts.items():
        if len(found) < 2:
            raise AdapterError(f"{source} has lora_{next(iter(found))} of {module} without the other half")
        a, b = found["A"], found["B"]
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
            raise AdapterError(
                f"{source} has matrices of shapes {list(a.shape)} and {list(b.shape)} at {module}: [r, in] and "
                "[out, r] are expected, of a linear layer"
            )
        pairs[module] = a, b, _scale(config, module, a.shape[0], source)
    return pairs


def places_of(
    pairs: Iterable[str], place_of: Callable[[str], AdapterPlace | None], source: str
) -> dict[str, AdapterPlace]:
    """Return the place of each module; AdapterError for one that the model does not have, and for two at one place."""
    places: dict[str, AdapterPlace] = {}
    for module in pairs:
        place = place_of(module)
        if place is None:
            raise AdapterError(
                f"{source} adapts {module}, which is no linear layer of this model's blocks or image encoder: it was "
                "made for another model, or for a part that is not supported"
            )
        if place in places.values():
            raise AdapterError(f"{source} has two adapters for {place.layer}: its names mix two layouts")
        places[module] = place
    return places


def _scale(config: Mapping[str, Any], module: str, rank: int, source: str) -> float:
    expected = _of_module(config, "rank_pattern", "r", module, rank, source)
    if expected != rank:
        raise AdapterError(f"{source} says rank {expected} for {module}, but its matrices have rank {rank}")
    alpha = _of_module(config, "alpha_pattern", "lora_alpha", module, None, source)
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _of_module(
    config: Mapping[str, Any], patterns: str, name: str, module: str, default: float | None, source: str
) -> float:
    """Return a number for a module: that of the first pattern that its name ends with, as PEFT matches, or `name`."""
    found = config.get(patterns) or {}
    value = config.get(name, default)
    if not isinstance(found, Mapping):
        raise AdapterError(f"{source} has {patterns} of type {type(found).__name__}: an object is needed")
    for pattern, own in found.items():
        if not _PLAIN_PATTERN.fullmatch(pattern) or len(re.findall("[*+]", pattern)) > _MOST_REPEATS:
            raise AdapterError(
                f"{source} has {patterns} with {pattern!r:.60}: names are read, with alternatives and up to "
                f"{_MOST_REPEATS} repeats"
            )
        try:
            matches = re.match(rf"(.*\.)?({pattern})$", module) is not None
        except re.error as cause:
            raise AdapterError(f"{source} has {patterns} with {pattern!r:.60}, no regular expression") from cause
        if matches:
            value = own
            break
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise AdapterError(f"{source} has {name} {value!r:.40} for {module}: a number above 0 is needed")
    return value
