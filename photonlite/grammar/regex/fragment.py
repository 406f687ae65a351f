"""Patterns for outlines-core, built from parts that cannot change the meaning of their neighbours."""

from collections.abc import Iterable
from dataclasses import dataclass

from photonlite.errors import GrammarTooLargeError

MAX_SIZE = 150_000  # bytes of a pattern with its repetitions written out; its table has about as many states


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a pattern in the syntax of Rust's regex crate; `size` is its bytes with repetitions written out."""

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
    return f"\\x{{{number:x}}}"


def literal(text: str) -> Fragment:
    spelled = "".join(each if each.isascii() and each.isalnum() else code(ord(each)) for each in text)
    return Fragment(spelled, len(text.encode()))


def sequence(*parts: Fragment) -> Fragment:
    return Fragment("".join(part.text for part in parts), sum(part.size for part in parts))


def either(parts: Iterable[Fragment]) -> Fragment:
    parts = tuple(parts)
    if len(parts) == 1:
        return parts[0]
    return Fragment(f"(?:{'|'.join(part.text for part in parts)})", sum(part.size for part in parts))


def repeated(part: Fragment, low: int, high: int | None = None) -> Fragment:
    """Match `low` to `high` times; without end for None."""
    if high == 0:
        return EMPTY
    if (low, high) == (1, 1):
        return part
    sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
    counted = f"{{{low},}}" if high is None else f"{{{low},{high}}}"
    # At least two bytes for each copy: even an empty part costs the compiler something.
    return Fragment(f"(?:{part.text}){sign or counted}", max(part.size, 2) * max(high or low, 1))


def optional(part: Fragment) -> Fragment:
    return repeated(part, 0, 1)
