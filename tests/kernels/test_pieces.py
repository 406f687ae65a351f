from hypothesis import given
from hypothesis import strategies as st

from photonlite.kernels.pieces import join_pieces, split_row


@given(dim=st.integers(1, 20_000))
def test_two_pieces_hold_a_row_of_any_length(dim: int) -> None:
    row = split_row(dim)

    assert row.left + row.right == dim
    assert row.left == row.left_width
    assert row.right <= row.right_width <= row.left_width
    assert row.right_width & (row.right_width - 1) == 0


@given(left=st.integers(1, 9000), right=st.integers(0, 9000))
def test_given_pieces_stay_what_they_are(left: int, right: int) -> None:
    row = join_pieces(left, right)

    assert (row.left, row.right) == (left, right)
    for size, width in ((left, row.left_width), (max(1, right), row.right_width)):
        assert width // 2 < size <= width
        assert width & (width - 1) == 0


def test_rows_of_the_models_leave_little_unused() -> None:
    for dim in (1152, 2048, 4304, 8192, 10240):
        row = split_row(dim)
        assert row.left_width + (row.right_width if row.right else 0) <= 1.02 * dim
