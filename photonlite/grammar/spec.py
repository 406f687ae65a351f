"""What an answer has to be, as a hashable value: the input and the cache key of the compiler."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["schema", "regex", "object"]
"""A JSON Schema; a regular expression; any JSON object."""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A set of texts.

    `source` is a canonical JSON text of a schema, with properties in the order of answers, or a pattern, or empty for
    "object".
    """

    kind: Kind
    source: str = ""
