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

from pydantic_core import SchemaError, SchemaValidator, core_schema
from torch import Tensor

from photonlite.errors import AdapterError
from photonlite.models.adapters.terms import AdapterPlace

_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")
_EXPRESSION_CHARACTERS = 2000
"""Characters of all regular expressions of rank_pattern or alpha_pattern together; names do not count."""
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

_KEPT_BASE = ("gaussian", "eva", "orthogonal", "mica")
"""Values of init_lora_weights that leave the base weights as they are; others, such as lora_ga, change them."""

_SPECIAL = (
    ("lora_embedding_", "an adapter of embeddings"),
    ("lora_magnitude_vector", "a DoRA adapter"),
    ("lora_bias", "an adapter with biases"),
    ("modules_to_save", "a whole module, trained anew"),
    ("lm_head", "an adapter of the head"),
)
"""Parts of names of tensors that are refused, and what they belong to."""

Pairs = dict[str, tuple[Tensor, Tensor]]
"""A and B of each module."""


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
    if start is not None and not isinstance(start, bool) and start not in _KEPT_BASE:
        raise AdapterError(
            f"{source} has init_lora_weights {start!r:.40}: only {', '.join(_KEPT_BASE)}, true and false are known to "
            "leave the base weights as they are. Save it with PEFT's path_initial_model_for_weight_conversion, which "
            "makes a plain LoRA of it"
        )


def find_pairs(tensors: Mapping[str, Tensor], source: str) -> Pairs:
    """Return the matrices of each module; AdapterError for any tensor that is not one of a whole pair."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        for part, what in _SPECIAL:
            if part in name:
                raise AdapterError(f"{source} holds {what} ({name}), which is not supported")
        match = _KEY.fullmatch(name)
        if match is None:
            raise AdapterError(f"{source} holds {name}, which belongs to no LoRA: nothing would use it")
        parts.setdefault(match[1], {})[match[2]] = tensor
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
        pairs[module] = a, b
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


def scales_of(pairs: Pairs, config: Mapping[str, Any], source: str) -> dict[str, float]:
    """Return what each module's product is multiplied by; AdapterError if its rank is not the one of the file."""
    ranks = _Values(config, "rank_pattern", "r", source)
    alphas = _Values(config, "alpha_pattern", "lora_alpha", source)
    scales = {}
    for module, (a, _) in pairs.items():
        rank = a.shape[0]
        if (expected := ranks.of(module, rank)) != rank:
            raise AdapterError(f"{source} says rank {expected} for {module}, but its matrices have rank {rank}")
        scales[module] = alphas.of(module, None) / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return scales


class _Values:
    """A number for each module: the value of the first pattern that its name ends with, as PEFT matches, or `name`.

    Names are looked up. Regular expressions are matched by Rust's `regex`, in time linear in a name: those of a
    stranger would keep Python's `re`, which holds the GIL, busy for hours.
    """

    def __init__(self, config: Mapping[str, Any], patterns: str, name: str, source: str) -> None:
        found = config.get(patterns) or {}
        if not isinstance(found, Mapping):
            raise AdapterError(f"{source} has {patterns} of type {type(found).__name__}: an object is needed")
        numbered = [(pattern, (place, value)) for place, (pattern, value) in enumerate(found.items())]
        self._names = {pattern: one for pattern, one in numbered if _NAME.fullmatch(pattern)}
        expressions = [(pattern, one) for pattern, one in numbered if pattern not in self._names]
        if (length := sum(len(pattern) for pattern, _ in expressions)) > _EXPRESSION_CHARACTERS:
            raise AdapterError(
                f"{source} has {patterns} with {length} characters of regular expressions: the limit is "
                f"{_EXPRESSION_CHARACTERS}, names do not count"
            )
        self._expressions = []
        for pattern, one in expressions:
            try:
                text = core_schema.str_schema(pattern=rf"^(?:.*\.)?(?:{pattern})$", regex_engine="rust-regex")
                self._expressions.append((SchemaValidator(text).isinstance_python, one))
            except SchemaError as cause:
                raise AdapterError(
                    f"{source} has {patterns} with {pattern!r:.60}, which is no regular expression of linear time: "
                    "look-around, back-references and large repeats are not supported"
                ) from cause
        self._name, self._default, self._source = name, config.get(name), source

    def of(self, module: str, default: float | None) -> float:
        """Return a module's number; AdapterError if it is none above 0."""
        parts = module.split(".")
        ends = [".".join(parts[first:]) for first in range(len(parts))]
        found = [self._names[end] for end in ends if end in self._names]
        found += [one for matches, one in self._expressions if matches(module)]
        value = min(found)[1] if found else default if self._default is None else self._default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e38:
            raise AdapterError(f"{self._source} has {self._name} {value!r:.40} for {module}: give a number above 0")
        return value
