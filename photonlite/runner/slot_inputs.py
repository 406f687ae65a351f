"""Fills the host arrays of slots from scheduled batches: rows, page tables, tokens, sampling parameters and masks."""

from collections.abc import Sequence

import numpy as np

from photonlite.batch import ScheduledBatch, Step
from photonlite.grammar.decoding.grammars import MaskCache
from photonlite.request import Allowed, Token
from photonlite.runner.sampling_params import (
    Variant,
    required_heads,
    variant_of,
    write_params,
    write_scored,
    write_unused,
)
from photonlite.runner.seen_ids import SeenIds
from photonlite.runner.slots import (
    NO_VALUE,
    PAGES,
    PENDING_ROW,
    POSITION,
    SCRATCH_PAGE,
    TURN,
    WRITE_SLOT,
    Slot,
    SlotShape,
)
from photonlite.sequence import Sequence as BatchSequence


class SlotInputs:
    """Fills slots; keeps the page tables of all rows of the pending table, of which a launch copies those it needs."""

    def __init__(self, shape: SlotShape, vocab_size: int) -> None:
        self._masks = MaskCache(vocab_size)
        self._seen = SeenIds(vocab_size)
        self._scratch_row = shape.pending_rows - 1
        self._page_size = shape.page_size
        self._tables = np.zeros((shape.pending_rows, shape.max_pages), np.int32)
        self._written = [0] * shape.pending_rows

    def forget_row(self, row: int) -> None:
        """Write the page table of a row anew at its next launch: the row has another sequence."""
        self._written[row] = 0

    def fill_rows(self, plan: ScheduledBatch, slot: Slot, padded: int) -> None:
        """Fill `slot.rows`: a row's last position is where a decode step writes, and how far a prompt reaches."""
        count, size = len(plan.rows), self._page_size
        rows, heads, adapters = [], [], []
        # Numbers in Python, as most batches are small: an operation of NumPy costs as much as several rows here.
        for item in plan.rows:
            one, last = item.sequence, item.start + item.count - 1
            # A decode step writes the pages that a sequence was given since its last launch: rarely one, mostly none.
            row, pages = _row_of(one), one.pages
            written = 0 if item.begins else self._written[row]
            if written < len(pages):
                self._tables[row, written : len(pages)] = pages[written:]
                self._written[row] = len(pages)
            rows.append(row)
            heads.append((last, pages[last // size] * size + last % size, last + (one.turns.shift if one.turns else 0)))
            adapters.append(one.adapter_slot)
        slot.adapted = any(adapters)
        if slot.adapted:
            slot.adapters[:count], slot.adapters[count:padded] = adapters, 0
        target = slot.rows
        target[:count, PENDING_ROW] = rows
        target[:count, POSITION:PAGES] = heads
        target[:count, PAGES:] = self._tables[rows]
        if padded > count:
            target[count:padded, PENDING_ROW] = self._scratch_row
            target[count:padded, POSITION] = target[count:padded, TURN] = 0
            target[count:padded, WRITE_SLOT] = SCRATCH_PAGE * self._page_size
            target[count:padded, PAGES:] = SCRATCH_PAGE

    def fill_tokens(self, plan: ScheduledBatch, slot: Slot) -> int:
        """Fill `slot.tokens` with the known tokens behind BOS and image of each row; return how many there are.

        Rows that decode have those that they assume. Those to be decoded next, behind prompts on the encoder's stream,
        follow all others.
        """
        filled = 0
        known = [(row, max(row.start, row.sequence.prefix_len), row.start + row.count) for row in plan.rows]
        next_ones = [(row, end, end + 1) for row, _, end in known] if plan.beside else []
        for row, start, end in (*known, *next_ones):
            if row.pending:
                tokens = tuple(map(Token, row.assumed))
            else:
                tokens = row.sequence.tokens_after_image(start)[: end - start]
            target = slot.tokens[filled : filled + len(tokens)]
            target[:, 0] = [token.id for token in tokens]
            target[:, 1:] = NO_VALUE
            for place, token in enumerate(tokens):
                if token.values:
                    target[place, 1 : 1 + len(token.values)] = np.array(token.values, np.float32).view(np.int32)
            filled += len(tokens)
        return filled

    def fill_params(self, step: Step, slot: Slot, allowed: Sequence[Allowed | None]) -> tuple[Variant, bool]:
        """Fill params and masks; return variant and whether a row draws. An impossible grammar fails only its row."""
        needs = 0
        for index, (row, wanted) in enumerate(zip(step.rows, allowed, strict=True)):
            params, mask = slot.choices[index], slot.masks[index]
            if wanted is None or row.index is None:
                write_unused(params)
                continue
            one = row.sequence
            try:
                penalty = one.repetition_penalty if wanted.free else 1.0
                drawn = one.temperature, one.top_p, one.seed, row.index, one.top_k, penalty
                write_params(params, mask, self._masks, wanted, *drawn)
                if penalty != 1:
                    self._seen.fill(one, _row_of(one), slot.seen[index])
                if wanted.scored:
                    write_scored(wanted.scored, slot.scored[index], self._masks.vocab_size)
                    step.scored[index] = len(wanted.scored)
                needs |= required_heads(wanted, one.temperature, penalty)
            except Exception as error:  # a grammar is a plug-in
                step.faults[index] = error
                write_unused(params)
        for params in slot.choices[len(step.rows) : step.padded]:
            write_unused(params)
        return variant_of(needs)


def _row_of(sequence: BatchSequence) -> int:
    if sequence.row is None:
        raise AssertionError(f"sequence {sequence.number} has no row of the pending table: it cannot be launched")
    return sequence.row
