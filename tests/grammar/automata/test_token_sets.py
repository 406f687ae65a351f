import numpy as np

from photonlite.grammar.automata.mask import MaskCache
from photonlite.grammar.automata.token_sets import FEW, TokenSetWriter
from photonlite.grammar.automata.walk import CLOSING, OPENING, STEADY
from photonlite.request import Allowed

SIZE = 100


def test_sets_are_kept_once_as_lists_or_as_bits() -> None:
    writer = TokenSetWriter(SIZE)
    many = np.arange(0, 2 * FEW + 2, 2, dtype=np.int32)
    kinds = np.full(len(many), OPENING, np.uint8)
    kinds[:3], kinds[3:5] = STEADY, CLOSING
    places = [writer.add(many, kinds), writer.add(many[::-1].copy(), kinds[::-1].copy())]
    places.append(writer.add(np.array([9, 3], np.int32), np.array([CLOSING, CLOSING], np.uint8)))

    rows, row_of = writer.sets(), writer.numbered(np.array(places, np.int32))

    assert [rows.ids(row) for row in row_of[0]] == [tuple(many.tolist()), (0, 2, 4, 6, 8), (6, 8)]
    assert (row_of[0] == row_of[1]).all()
    assert [rows.ids(row) for row in row_of[2]] == [(3, 9)] * 3
    assert len(rows) == 4
    assert (len(rows.masks), rows.mask(row_of[2, 0])) == (1, None)


def test_bits_are_laid_out_as_steps_upload_them() -> None:
    writer, out = TokenSetWriter(SIZE), np.zeros(4, np.int32)
    ids = np.arange(7, 7 + FEW + 1, dtype=np.int32)
    (place, *_) = writer.add(ids, np.full(len(ids), STEADY, np.uint8))
    row = int(writer.numbered(np.array(place))[()])
    MaskCache(SIZE).fill(Allowed(tuple(ids.tolist())), out)

    mask = writer.sets().mask(row)

    assert mask is not None
    assert (mask == out).all()
