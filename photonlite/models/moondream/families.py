"""Families of Moondream checkpoints: what tells them apart beyond the sizes in their configurations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """Rules and defaults of a family of checkpoints."""

    name: str
    any_id_continues: bool = False  # detect and point continue with any id but the end, not just the coordinate id
    suppressed_in_answer: tuple[str, ...] = ()  # ids that never occur in an answer or caption after its first token
    suppressed_in_reasoning: tuple[str, ...] = ()  # the same for reasoning
    answer_id_before_reasoning: bool = False  # a prompt for reasoning has the answer id before the thinking id
    templates: Mapping[str, Any] = field(default_factory=dict)  # in the released vocabulary, for files without any
    region: Mapping[str, Any] = field(default_factory=dict)  # defaults that differ from Moondream 2's
    text: Mapping[str, Any] = field(default_factory=dict)  # defaults that differ from Moondream 2's
    controls_to: int = 21  # ids below this are control ids, which a path never contains


_TEMPLATES: dict[str, Any] = {
    "caption": {"short": [1, 32708, 2, 12492, 3], "normal": [1, 32708, 2, 6382, 3], "long": [1, 32708, 2, 4059, 3]},
    "detect": {"prefix": [1, 7235, 476, 2], "suffix": [3]},
    "point": {"prefix": [1, 2581, 2], "suffix": [3]},
}
# The released weights of Moondream 2 were trained with the answer id twice.
_QUERY_2 = {"prefix": [1, 15381, 2], "suffix": [3, 3], "reasoning_suffix": [3, 4]}
_QUERY_3 = {"prefix": [1, 15381, 2], "suffix": [3], "reasoning_suffix": [4]}
_SEGMENT_3 = {"prefix": [1, 17374, 2], "suffix": [3]}
_LINEAR = {"decoder": "linear", "norm": True}

_MOONDREAM_2 = Family(
    "moondream2",
    any_id_continues=True,
    suppressed_in_answer=("answer_id",),
    suppressed_in_reasoning=("eos_id", "size_id"),
    answer_id_before_reasoning=True,
    templates=_TEMPLATES | {"query": _QUERY_2},
)
_MOONDREAM_3 = Family(
    "moondream3",
    suppressed_in_answer=("answer_id",),
    suppressed_in_reasoning=("eos_id", "size_id"),
    templates=_TEMPLATES | {"query": _QUERY_3, "segment": _SEGMENT_3},
    region=_LINEAR,
    text={"rope_theta": 1_500_000.0, "max_context": 4096, "tau": True, "moe": {}},
)
FAMILIES = {
    "moondream2": _MOONDREAM_2,
    "moondream": _MOONDREAM_2,  # as released files name it
    "moondream1": _MOONDREAM_2,  # as released files name it
    "moondream3": _MOONDREAM_3,
    "photonlite_nano": Family("photonlite_nano", region=_LINEAR),
}
"""Families by `model_type`."""
