from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photonlite.kernels.columns import QUERY_TILE
from photonlite.runner.graphs import LONGEST, PromptGraphs, prefill_sizes, tiles_for
from tests.runner.rig import Played


@cache
def captured(longest: int) -> PromptGraphs:
    graphs = PromptGraphs(prefill_sizes(730, longest), 64)
    graphs.capture(Played(), lambda size, tiles: None)
    return graphs


@given(st.integers(2, 1000), st.integers(1, 9000))
def test_lengths_ascend_up_to_the_longest_launch(prefix: int, positions: int) -> None:
    sizes = prefill_sizes(prefix, positions)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == min(positions, LONGEST)


@pytest.mark.parametrize("positions", range(736, 785))
def test_an_image_with_a_few_words_is_padded_by_less_than_16_positions(positions: int) -> None:
    size = captured(4096).size_for(positions, 13)
    assert size is not None
    assert 0 <= size - positions < 16


@given(st.integers(300, LONGEST))
def test_a_long_launch_is_not_padded_by_more_than_a_block_of_a_product_or_an_eighth(positions: int) -> None:
    size = captured(LONGEST).size_for(positions, -(-positions // QUERY_TILE))
    assert size is not None
    assert size - positions < max(128, positions // 8)


def test_many_short_rows_take_a_graph_with_as_many_tiles_or_none() -> None:
    graphs = captured(4096)
    assert tiles_for(64, 64) == 9
    assert graphs.size_for(60, 9) == 64
    assert graphs.size_for(60, 10) == 128
    assert graphs.size_for(60, 30) is None
    assert graphs.size_for(5000, 80) is None


def test_nothing_is_replayed_that_was_not_captured() -> None:
    class Failing(Played):
        def capture(self, work):  # type: ignore[no-untyped-def]
            if work.args[0] == 32:
                raise RuntimeError("no graph can hold this")
            return super().capture(work)

    ran: list[tuple[int, int]] = []
    graphs = PromptGraphs((16, 32, 64), 4)
    assert graphs.size_for(20, 1) is None

    with pytest.MonkeyPatch.context() as patch:
        messages: list[str] = []
        patch.setattr("photonlite.runner.graphs._logger.warning", lambda text, *rest: messages.append(text % rest))
        report = graphs.capture(Failing(), lambda size, tiles: ran.append((size, tiles)))

    assert report.graphs == 2
    assert messages == [
        "prompts of 32 positions run without a CUDA graph, because capturing failed: RuntimeError: "
        "no graph can hold this"
    ]
    assert ran == [(64, 5), (16, 5)]
    assert graphs.size_for(20, 1) == 64
    graphs.replay(64)
    assert ran[-1] == (64, 5)
