"""What an answer has to be, as a hashable value: the input and the cache key of the compiler."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["schema", "regex", "object"]  # a JSON Schema; a regular expression; any JSON object


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    kind: Kind
    source: str = ""  # canonical JSON with properties in the order of answers; a pattern; empty for "object"
