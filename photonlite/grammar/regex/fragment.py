"""Patterns for outlines-core, put together piece by piece; no piece can change the meaning of its neighbours."""

from collections.abc import Iterable
from dataclasses import dataclass

from photonlite.errors import GrammarTooLargeError

MAX_SIZE = 150_000
"""Bytes of a pattern once everything that it repeats is written out, at most; its table has about as many states."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a pattern.

    Attributes:
        text: In the syntax of the regex crate of Rust, which outlines-core uses.
        size: Bytes of what it spells, with everything written out that is repeated.

    Raises:
        GrammarTooLargeError: The size is over the limit.
    """

    text: str
    size: int

    def __post_init__(self) -> None:
        if self.size > MAX_SIZE:
            raise GrammarTooLargeError(
                f"the answer's pattern takes over {MAX_SIZE} bytes with its repetitions written out: "
                f"lower maxLength, maxItems or counts, or ask for less in one answer"
            )


EMPTY = Fragment("", 0)


def code(number: int) -> str:
    """Spell a character by its code point."""
    return f"\\x{{{number:x}}}"


def literal(text: str) -> Fragment:
    """Match just this text."""
    spelled = "".join(each if each.isascii() and each.isalnum() else code(ord(each)) for each in text)
    return Fragment(spelled, len(text.encode()))


def sequence(*parts: Fragment) -> Fragment:
    """Match one after the other."""
    return Fragment("".join(part.text for part in parts), sum(part.size for part in parts))


def either(parts: Iterable[Fragment]) -> Fragment:
    """Match any one of at least one part."""
    parts = tuple(parts)
    if len(parts) == 1:
        return parts[0]
    return Fragment(f"(?:{'|'.join(part.text for part in parts)})", sum(part.size for part in parts))


def repeated(part: Fragment, low: int, high: int | None = None) -> Fragment:
    """Match at least `low` times, and at most `high` times or without end."""
    if high == 0:
        return EMPTY
    if (low, high) == (1, 1):
        return part
    sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
    counted = f"{{{low},}}" if high is None else f"{{{low},{high}}}"
    # Two bytes for each copy at least: even an empty part costs the compiler something.
    return Fragment(f"(?:{part.text}){sign or counted}", max(part.size, 2) * max(high or low, 1))


def optional(part: Fragment) -> Fragment:
    """Match once or not at all."""
    return repeated(part, 0, 1)
