import pytest
from hypothesis import given
from hypothesis import strategies as st

from photonlite.kernels.small_batch_gemm import MAX_ROWS
from photonlite.kernels.tilings import Tiling, fitted, programs_of, tiling_of


@given(
    rows=st.integers(2, MAX_ROWS),
    outs=st.sampled_from([7, 224, 672, 2048, 4096, 4097, 14336, 51200]),
    ins=st.sampled_from([24, 224, 896, 2048, 10240, 30000]),
    shared=st.sampled_from([101_376, 166_912, 232_448]),  # of capability 8.6 and 8.9, 8.0, 9.0
)
def test_a_program_fits_the_memory_of_every_card(rows: int, outs: int, ins: int, shared: int) -> None:
    tiling = tiling_of(rows, outs, ins)
    width = max(16, 1 << (rows - 1).bit_length())

    found = fitted(tiling, width, 2, shared)

    assert found.stages * found.ins * (found.outs + width) * 2 < shared
    assert (found.outs, found.parts) == (tiling.outs, tiling.parts), "others count programs and tiles"
    assert found.ins >= 32
    assert found.stages >= 2


def test_a_card_without_enough_memory_is_named_with_its_bytes() -> None:
    with pytest.raises(ValueError, match="1000 bytes"):
        fitted(Tiling(64, 64), 64, 2, 1000)


def test_steps_of_8_bits_shrink_by_their_own_bytes_and_groups_of_4_bits_stay_whole() -> None:
    wide = Tiling(64, 256, 1, 4, 4, 2)
    assert fitted(wide, 8, 2, 232_448, weight_bits=8) == wide
    assert fitted(wide, 8, 2, 232_448).stages == 3
    assert fitted(wide, 64, 2, 101_376, weight_bits=8).ins == 64
    with pytest.raises(ValueError, match="too few"):
        fitted(Tiling(64, 128), 64, 2, 20_000, weight_bits=4)


def test_programs_are_counted_with_their_parts() -> None:
    tiling = tiling_of(8, 2048, 10240)
    assert tiling.parts > 1
    assert programs_of(8, 2048, 10240) == 2048 // tiling.outs * tiling.parts
    assert programs_of(1, 2049, 10) == -(-2049 // tiling_of(1, 2049, 10).outs)
