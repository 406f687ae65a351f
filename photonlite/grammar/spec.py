"""What an answer has to be, as a value: what grammars are compiled from, and what they are known by."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["schema", "regex", "object"]
"""A JSON Schema; a regular expression; any JSON object."""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A set of texts; equal specs share what was compiled for one of them.

    Attributes:
        kind: How `source` is read.
        source: The canonical JSON text of a schema (properties in the order in which answers have them), or the
            pattern of a regular expression; empty for "object".
    """

    kind: Kind
    source: str = ""
