import gc
import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from photonlite.kernels.columns import QUERY_TILE
from photonlite.runner.graphs import (
    LONGEST,
    VARIANTS,
    WORD_VARIANTS,
    CudaCapturer,
    DecodeGraphs,
    GraphOptions,
    PromptGraphs,
    prefill_sizes,
    tiles_for,
)
from photonlite.runner.sampling_params import Variant
from tests.runner.rig import Played

Call = tuple[int, int] | tuple[int, int, Variant, bool]


class Recorder:
    """Captures nothing; keeps in order what was run, and if asked what the garbage collector was allowed to do."""

    def __init__(self, *fails: Call, watches: bool = False) -> None:
        self.calls: list[Call] = []
        self.collecting: list[bool] = []
        self.bytes = 100
        self._fails = fails
        self._watches = watches  # counting what is frozen walks over all objects that there are

    def run(self, *call: object) -> None:
        self.calls.append(call)  # type: ignore[arg-type]

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        if self._watches:
            self.collecting.append(gc.isenabled() or gc.get_freeze_count() == 0)
        if self.calls[-1] in self._fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.bytes += 7
        return work

    def used_bytes(self) -> int:
        return self.bytes


def captured(recorder: Recorder, options: GraphOptions, max_rows: int = 64) -> DecodeGraphs:
    graphs = DecodeGraphs(options, depth=2, max_rows=max_rows)
    graphs.report = graphs.capture(recorder, recorder.run, recorder.run)  # type: ignore
    return graphs


def test_a_model_of_words_alone_needs_graphs_of_words_with_scores_and_without() -> None:
    recorder = Recorder()
    graphs = DecodeGraphs(GraphOptions((1, 2)), depth=2, max_rows=64)

    graphs.capture(recorder, recorder.run, recorder.run, WORD_VARIANTS)

    kinds = {(kind, sampled) for kind in ("text", "scored") for sampled in (False, True)}
    assert {call[2:] for call in recorder.calls if len(call) == 4} == kinds


def test_sizes_are_captured_from_the_largest_on_for_both_slots_and_all_variants() -> None:
    recorder = Recorder()

    captured(recorder, GraphOptions((1, 8, 2, 32, 8)), max_rows=10)

    forwards = [call for call in recorder.calls if len(call) == 2]
    assert forwards == [(0, 10), (1, 10), (0, 8), (1, 8), (0, 2), (1, 2), (0, 1), (1, 1)]  # the largest batch too
    sizes = [call[1] for call in recorder.calls]
    assert sizes == sorted(sizes, reverse=True)
    chosen = [call for call in recorder.calls if len(call) == 4]
    assert len(chosen) == len(set(chosen)) == 2 * 4 * 2 * 5
    assert {call[2] for call in chosen} == {"text", "coordinate", "size", "decide", "mixed"}


def test_a_batch_runs_in_the_next_larger_size() -> None:
    graphs = captured(Recorder(), GraphOptions((1, 2, 4, 8)))

    assert [graphs.size_for(rows) for rows in (1, 2, 3, 5, 8, 9)] == [1, 2, 4, 8, 8, None]


def test_without_padding_only_exact_sizes_run() -> None:
    graphs = captured(Recorder(), GraphOptions((1, 2, 4, 8), padding=False))

    assert [graphs.size_for(rows) for rows in (1, 3, 4, 5, 9)] == [1, None, 4, None, None]


def test_a_replay_runs_the_graph_of_its_slot_size_and_variant() -> None:
    recorder = Recorder()
    graphs = captured(recorder, GraphOptions((1, 4)))
    recorder.calls.clear()

    keys: list[tuple[Any, ...]] = [(1, 4), (0, 4, "size", True), (0, 1, "mixed", False), (0, 3), (2, 1)]
    ran = [graphs.replay(*key) for key in keys]

    assert ran == [True, True, True, False, False]
    assert recorder.calls == [(1, 4), (0, 4, "size", True), (0, 1, "mixed", False)]


def test_a_size_that_one_slot_cannot_capture_runs_without_a_graph_in_both(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder((1, 4), (0, 8, "text", True))

    with caplog.at_level(logging.WARNING, "photonlite"):
        graphs = captured(recorder, GraphOptions((2, 4, 8)))

    assert graphs.size_for(4) == 8
    assert not graphs.replay(0, 4)
    assert not graphs.replay(0, 8, "text", True)
    assert graphs.replay(1, 8, "text", True)
    assert len(caplog.records) == 2
    assert "forward pass of 4 rows" in caplog.text
    assert "not permitted when stream is capturing" in caplog.text


@pytest.mark.long
@pytest.mark.usefixtures("unfrozen")
@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_during_a_capture(enabled: bool) -> None:
    recorder = Recorder(watches=True)
    if not enabled:
        gc.disable()
    try:
        captured(recorder, GraphOptions((1,)))
        assert gc.isenabled() == enabled
    finally:
        gc.enable()

    assert recorder.collecting
    assert not any(recorder.collecting)
    assert gc.get_freeze_count() == 0


def test_capturing_reports_what_it_took() -> None:
    recorder = Recorder()
    graphs = DecodeGraphs(GraphOptions((1, 2)), depth=2, max_rows=8)

    report = graphs.capture(recorder, recorder.run, recorder.run)

    count = 2 * 2 * (1 + 2 * len(VARIANTS))
    assert (report.graphs, report.bytes) == (count, 7 * count)
    assert report.seconds > 0


@pytest.mark.long
def test_no_bar_is_drawn_where_nobody_looks(capfd: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    DecodeGraphs(GraphOptions((1,)), depth=1, max_rows=8).capture(recorder, recorder.run, recorder.run)
    assert capfd.readouterr().err == ""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a CUDA device")
def test_a_cuda_graph_reads_and_writes_the_buffers_it_was_captured_with() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    source, target = torch.zeros(2, 8, device=device), torch.zeros(2, 8, device=device)

    def forward(slot: int, size: int) -> None:
        target[slot, :size].copy_(source[slot, :size] * 2 + 1)

    def finalize(slot: int, size: int, variant: Variant, sampled: bool) -> None:
        if variant == "text":
            float(target.sum())  # waits for the device: no graph can hold it
        target[slot, :size].neg_()

    graphs = DecodeGraphs(GraphOptions((2, 8)), depth=2, max_rows=8)
    report = graphs.capture(CudaCapturer(device), forward, finalize)
    source.copy_(torch.arange(16.0).view(2, 8))
    target.zero_()

    assert report.graphs == 2 * 2 * 9
    assert not graphs.replay(0, 8, "text", False)
    assert graphs.replay(1, 2)
    assert graphs.replay(1, 2, "size", False)
    assert target.tolist() == [[0.0] * 8, [-17.0, -19.0, *[0.0] * 6]]


@cache
def prompt_graphs(longest: int) -> PromptGraphs:
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
    size = prompt_graphs(4096).size_for(positions, 13)
    assert size is not None
    assert 0 <= size - positions < 16


@given(st.integers(300, LONGEST))
def test_a_long_launch_is_not_padded_by_more_than_a_block_of_a_product_or_an_eighth(positions: int) -> None:
    size = prompt_graphs(LONGEST).size_for(positions, -(-positions // QUERY_TILE))
    assert size is not None
    assert size - positions < max(128, positions // 8)


def test_many_short_rows_take_a_graph_with_as_many_tiles_or_none() -> None:
    graphs = prompt_graphs(4096)
    assert tiles_for(640, 64) == 10 + 20
    assert graphs.size_for(600, 30) == 640
    assert graphs.size_for(600, 31) == 736
    assert graphs.size_for(600, 60) is None
    assert graphs.size_for(5000, 80) is None


@pytest.mark.parametrize(("rows", "tokens"), [(64, 2), (16, 8), (64, 8), (5, 3)])
def test_every_row_of_a_short_launch_may_be_a_forced_run(rows: int, tokens: int) -> None:
    positions = rows * tokens
    size = prompt_graphs(4096).size_for(positions, rows)
    assert size == min(one for one in prefill_sizes(730, 4096) if one >= positions)


def test_graphs_of_mixed_launches_have_a_tile_for_every_row() -> None:
    graphs = PromptGraphs(prefill_sizes(730, 4096), 64, mixed=True)
    graphs.capture(Played(), lambda size, tiles: None)

    assert tiles_for(16, 64, mixed=True) == 1 + 16
    assert tiles_for(512, 64, mixed=True) == 8 + 64
    assert graphs.size_for(60 + 560, 60 + 9) == 640
    assert prompt_graphs(4096).size_for(60 + 560, 60 + 9) != 640


def test_nothing_is_replayed_that_was_not_prompt_graphs() -> None:
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
