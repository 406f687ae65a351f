"""Families of checkpoints: rules and defaults that follow neither from tensors nor from released config.json files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Family:
    """Rules and defaults of a family of checkpoints.

    Attributes:
        name: The value of `model_type`.
        any_id_continues: Whether detect and point continue with any id but the end (Moondream 2), or choose between
            the coordinate id and the end only.
        suppressed_in_answer: Ids that an answer or a caption never contains after its first token.
        suppressed_in_reasoning: Ids that reasoning never contains after its first token.
        answer_id_before_reasoning: Whether a prompt for reasoning has the answer id before the thinking id.
        templates: Prompts of the family, in the released vocabulary, used where config.json has none.
        region: Defaults of the region heads that differ from Moondream 2's.
        text: Defaults of the text decoder that differ from Moondream 2's.
        controls_to: Ids below this are control ids, which a path never contains.
    """

    name: str
    any_id_continues: bool
    suppressed_in_answer: tuple[str, ...]
    suppressed_in_reasoning: tuple[str, ...]
    answer_id_before_reasoning: bool
    templates: Mapping[str, Any]
    region: Mapping[str, Any]
    text: Mapping[str, Any]
    controls_to: int = 21


RELEASED_VOCAB_SIZE = 51200  # rows of the embedding in all public releases
_STARMIE_TEMPLATES: dict[str, Any] = {
    "caption": {"short": [1, 32708, 2, 12492, 3], "normal": [1, 32708, 2, 6382, 3], "long": [1, 32708, 2, 4059, 3]},
    "detect": {"prefix": [1, 7235, 476, 2], "suffix": [3]},
    "point": {"prefix": [1, 2581, 2], "suffix": [3]},
}

FAMILIES = {
    "moondream2": Family(
        name="moondream2",
        any_id_continues=True,
        suppressed_in_answer=("answer_id",),
        suppressed_in_reasoning=("eos_id", "size_id"),
        answer_id_before_reasoning=True,
        # The released weights were trained with the answer id twice.
        templates=_STARMIE_TEMPLATES
        | {"query": {"prefix": [1, 15381, 2], "suffix": [3, 3], "reasoning_suffix": [3, 4]}},
        region={},
        text={},
    ),
    "moondream3": Family(
        name="moondream3",
        any_id_continues=False,
        suppressed_in_answer=(),
        suppressed_in_reasoning=(),
        answer_id_before_reasoning=False,
        templates=_STARMIE_TEMPLATES
        | {
            "query": {"prefix": [1, 15381, 2], "suffix": [3], "reasoning_suffix": [4]},
            "segment": {"prefix": [1, 17374, 2], "suffix": [3]},
        },
        region={"decoder": "linear", "norm": True},
        text={"rope_theta": 1_500_000.0, "max_context": 32768},
    ),
    "photonlite_nano": Family(
        name="photonlite_nano",
        any_id_continues=False,
        suppressed_in_answer=(),
        suppressed_in_reasoning=(),
        answer_id_before_reasoning=False,
        templates={},
        region={"decoder": "linear", "norm": True},
        text={},
    ),
}
ALIASES = {"moondream1": "moondream2", "moondream": "moondream2"}
"""Other names of a family, as released files have them."""
