"""The terms of adapters at a decoder block, as its two products take them."""

from collections.abc import Sequence
from dataclasses import dataclass

from photonlite.kernels.row_adapters import RowTerm
from photonlite.models.adapters.layers import AdapterBank


@dataclass(frozen=True, slots=True)
class BlockTerms:
    """The terms of a block's adapters, by what A reads and by the product that B adds to."""

    of_norm: Sequence[RowTerm]
    of_inside: Sequence[RowTerm]
    into: Sequence[RowTerm]
    out: Sequence[RowTerm]

    @property
    def columns(self) -> int:
        """Columns of the ``A x`` of all terms."""
        return sum(term.stack.a.shape[1] for term in (*self.of_norm, *self.of_inside))


def block_terms(bank: AdapterBank, index: int, qkv: int, attended: int) -> BlockTerms:
    """Return what a bank has places for now at a block.

    `qkv` are the columns of queries, keys and values, `attended` those of what attention returns. The term of the whole
    attention reads what the norm returns, see `moondream.adapters`.
    """
    found: dict[str, list[RowTerm]] = {}
    column = 0
    for layer, begin, first in (
        ("attn.qkv", 0, 0),
        ("mlp.fc1", 0, qkv),
        ("attn", 0, 0),
        ("attn.proj", 0, 0),
        ("mlp.fc2", attended, 0),
    ):
        found[layer] = []
        for stack in bank.stacks(f"text.blocks.{index}.{layer}"):
            found[layer].append(RowTerm(stack, column, begin, first + stack.first))
            column += bank.rank
    of_qkv, fc1, attention, proj, fc2 = found.values()
    return BlockTerms([*of_qkv, *fc1, *attention], [*proj, *fc2], [*of_qkv, *fc1], [*attention, *proj, *fc2])
