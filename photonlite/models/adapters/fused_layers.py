"""Linear layers of fused prompts that add the terms of adapters."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from photonlite.kernels.activations import swiglu
from photonlite.kernels.adapters import RowTerm, RowTerms, empty_low, expand, shrink
from photonlite.kernels.quantised import Weight
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.fused_layers import Rows, WideLinear


class TermRows:
    """The bank's current rows, or those at `places` of them, and ``A x`` of terms that a later product adds."""

    def __init__(self, bank: AdapterBank, columns: int) -> None:
        self._bank, self._columns = bank, columns
        self.places: Tensor | None = None
        self._added: RowTerms

    def begin(self, like: Tensor) -> RowTerms:
        """Return room for the terms of as many rows as a tensor has."""
        index = self._bank.rows.index
        if self.places is not None:
            index = index.index_select(0, self.places)
        self._added = RowTerms(index, empty_low(len(like), self._columns, like), ())
        return self._added

    def current(self) -> RowTerms:
        return self._added


class AdaptedLinear(WideLinear):
    """A layer whose input is multiplied with A of the terms `reads`, and to whose output B of `adds` is added.

    Unless `fresh`, other layers have read for it before, by the same rows.
    """

    def __init__(
        self,
        weight: Weight,
        bias: Tensor | None,
        reads: Sequence[RowTerm],
        adds: Sequence[RowTerm],
        rows: TermRows,
        *,
        fresh: bool = True,
    ) -> None:
        super().__init__(weight, bias)
        self._reads, self._adds, self._rows, self._fresh = reads, adds, rows, fresh

    def __call__(self, rows: Rows) -> Tensor:
        y = super().__call__(rows)
        self._add(y, rows)
        return y

    def swiglu(self, rows: Rows) -> Rows:
        return (swiglu(self(rows)),) if self._adds else super().swiglu(rows)

    def add_to(self, x: Tensor, rows: Rows) -> None:
        super().add_to(x, rows)
        self._add(x, rows)

    def _add(self, y: Tensor, rows: Rows) -> None:
        added = self._rows.begin(y) if self._fresh else self._rows.current()
        if self._reads:
            shrink(rows[0], replace(added, terms=self._reads))
        if self._adds:
            expand(y, replace(added, terms=self._adds))


def columns_from(terms: Sequence[RowTerm], begin: int, end: int) -> list[RowTerm]:
    """Return terms as a product has them of which columns ``[begin, end)`` are computed alone."""
    cut = []
    for term in terms:
        first, stop = max(term.first, begin), min(term.first + term.stack.b.shape[1], end)
        if first < stop:
            b = term.stack.b[:, first - term.first : stop - term.first]
            cut.append(replace(term, stack=replace(term.stack, b=b), first=first - begin))
    return cut
