from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from photonlite.batch import BatchItem, EncodeJob
from photonlite.runner.prefill.rows import SLACK, largest_batches, make_batches
from tests.tiny import tiny_config, tiny_model

PREFIX = 26
ANYBODY: Any = None
JOB = EncodeJob(3, "", ANYBODY)

image = st.integers(0, 90).map(lambda tokens: BatchItem(ANYBODY, 0, PREFIX + tokens, 0, JOB))
text = st.integers(1, 90).map(lambda count: BatchItem(ANYBODY, 0, count, 0))
resumed = st.tuples(st.integers(1, 90), st.integers(1, 90)).map(lambda span: BatchItem(ANYBODY, *span, 0))


@given(st.lists(image | text | resumed, max_size=12))
def test_every_row_runs_once_with_its_own_tokens_among_rows_like_it(rows: list[BatchItem]) -> None:
    batches = make_batches(rows, PREFIX)

    spans = sorted((span for batch in batches for span in batch.rows), key=lambda span: span.index)
    assert [(span.start, span.count) for span in spans] == [(row.start, row.count) for row in rows]
    filled = 0
    for span in spans:
        assert span.first == filled
        filled += span.tokens
    for batch in batches:
        for span in batch.rows:
            assert span.count == batch.leading + span.tokens
            assert (span.start == 0) == (batch.leading > 0)
            assert (span.job is not None) == (batch.block == PREFIX)
            assert batch.tokens - span.tokens <= max(span.count // 4, SLACK)


def test_the_largest_batches_fill_a_launch() -> None:
    shape = tiny_model(tiny_config()).shape  # 26 of 120 positions are BOS and image

    many, _ = largest_batches(shape, 8, 110)
    alone, resumed = largest_batches(shape, 8, 40)

    assert [span.count for span in many.rows] == [27] * 4
    assert [span.count for span in alone.rows] == [120]
    assert [(span.start, span.count) for span in resumed.rows] == [(115, 5)] * 8
