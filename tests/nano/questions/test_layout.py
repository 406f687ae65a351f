import torch

from bench.nano.questions.layout import BOS, NONE, Part, join_parts, masked, padded, select_rows, slots, token
from tests.tiny import CPU

FIRST = padded([[1, 2], [1]], CPU)
SECOND = padded([[], [7, 8, 9]], CPU)
NUMBERS = torch.arange(12.0).view(2, 3, 2)


def laid():
    parts = [Part(FIRST), Part(SECOND, NUMBERS, weight=4.0, outline=True), Part(token(5, FIRST), weight=1.0)]
    return join_parts(parts, 6)


def test_gaps_are_closed_and_rows_padded():
    assert laid().ids.tolist() == [[1, 2, 5, 0, 0, 0], [1, 7, 8, 9, 5, 0]]


def test_weights_and_flags_move_with_their_ids():
    assert laid().weight.tolist() == [[0, 0, 1, 0, 0, 0], [0, 4, 4, 4, 1, 0]]
    assert laid().outline.tolist() == [[False] * 6, [False, True, True, True, False, False]]


def test_numbers_move_with_their_ids():
    values = laid().values
    assert not values[0].any()
    assert values[1].tolist() == [[0, 0], [6, 7], [8, 9], [10, 11], [0, 0], [0, 0]]


def test_a_place_without_an_id_is_no_id():
    assert masked(torch.tensor([[True], [False]]), 3).tolist() == [[3], [NONE]]
    assert padded([[4], []], CPU, 2).tolist() == [[4, NONE], [NONE, NONE]]


def test_each_row_is_one_or_the_other():
    first, second = laid(), join_parts([Part(token(9, FIRST), weight=2.0)], 6)
    mixed = select_rows(first, second, torch.tensor([False, True]))
    assert mixed.ids.tolist() == [[9, 0, 0, 0, 0, 0], first.ids[1].tolist()]
    assert mixed.weight.tolist() == [[2, 0, 0, 0, 0, 0], first.weight[1].tolist()]
    assert torch.equal(mixed.values[1], first.values[1])
    assert mixed.outline.tolist() == [[False] * 6, first.outline[1].tolist()]


def test_slots_are_cut_to_their_lengths():
    one, two = slots(laid(), [3, 6])
    assert one.ids.tolist() == [[1, 2, 5]]
    assert (two.ids.shape, two.values.shape, two.weight.shape, two.outline.shape) == ((1, 6), (1, 6, 2), (1, 6), (1, 6))
    assert int(two.ids[0, -1]) == BOS


def test_a_row_that_does_not_fit_loses_its_end():
    parts = [Part(FIRST), Part(SECOND, weight=1.0), Part(token(5, FIRST), weight=1.0)]
    assert join_parts(parts, 3).ids.tolist() == [[1, 2, 5], [1, 7, 8]]
    assert join_parts(parts, 3).weight.tolist() == [[0, 0, 1], [0, 1, 1]]
