from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from photonlite.batch import BatchItem, EncodeJob
from photonlite.kernels.columns import QUERY_TILE
from photonlite.kernels.reference.attention import ScoreRule
from photonlite.request import Allowed, Request, SamplingSettings, Token
from photonlite.runner.decode import decode_attention
from photonlite.runner.prefill import ImagePart, PromptRow, fill_packed, make_rows, prompt_attention
from photonlite.runner.slots import EMBEDDED, NO_VALUE, PAGES, POSITION, SCRATCH_PAGE, WRITE_SLOT, Slot, SlotShape
from photonlite.sequence import MOST_ASSUMED, ImageSpan, Sequence
from tests.cache.sequences import NamedImage
from tests.runner import cached
from tests.runner.cached import Rows
from tests.runner.rig import COORDINATE, TEXT, Immediate, Rig, Story, make_image, words_of
from tests.tiny import tiny_config

PREFIX, BOS, PAGE = 26, 7, 4
ANYBODY: Any = None
JOB = EncodeJob(3, "", ANYBODY, ANYBODY)
REQUEST = Request("", (), ANYBODY, 0, SamplingSettings())
IMAGED, PLAIN = (Sequence(0, REQUEST, ANYBODY, PREFIX, NamedImage("")), Sequence(0, REQUEST, ANYBODY, 1))
SHAPE = SlotShape(max_rows=6, max_tokens=1400, page_size=PAGE, max_pages=60, mask_words=1, pending_rows=1)

imaged = st.integers(0, 150).map(lambda tokens: BatchItem(IMAGED, 0, PREFIX + tokens, 0, (JOB,)))
text = st.integers(1, 150).map(lambda count: BatchItem(PLAIN, 0, count, 0))
resumed = st.tuples(st.integers(1, 80), st.integers(1, 150)).map(lambda span: BatchItem(PLAIN, *span, 0))


def filled(rows: list[BatchItem], padding: int, *, adapted: bool = False) -> tuple[Slot, list[PromptRow]]:
    """A slot whose tokens are numbered from 100 on, every fifth of them with a value, after another launch."""
    slot = Slot(0, Immediate(), SHAPE)  # type: ignore[arg-type]
    slot.packed[:], slot.adapters[:], slot.adapted = 10**6, 1 + np.arange(6), adapted
    spans = make_rows(rows)
    count = sum(span.tokens for span in spans)
    slot.tokens[:count, 0] = np.arange(100, 100 + count)
    slot.tokens[:, 1:] = NO_VALUE
    slot.tokens[:count:5, 1] = 0
    slot.rows[: len(rows), PAGES:] = 1 + np.random.default_rng(0).permutation(6 * 60).reshape(6, 60)[: len(rows)]
    fill_packed(slot, spans, sum(row.count for row in rows) + padding, BOS)
    return slot, spans


@given(st.lists(imaged | text | resumed, min_size=1, max_size=6), st.integers(0, 20), st.booleans())
def test_every_position_has_its_place_its_word_and_its_adapter(
    rows: list[BatchItem], padding: int, adapted: bool
) -> None:
    slot, spans = filled(rows, padding, adapted=adapted)
    total = sum(row.count for row in rows)

    found = iter(SHAPE.places_of(slot.packed, total + padding).tolist())
    for span in spans:
        for index in range(span.count):
            position = span.start + index
            token = span.first + index - span.leading
            word = 100 + token if index >= span.leading and token % 5 else BOS if position == 0 else EMBEDDED
            page = slot.rows[span.index, PAGES + position // PAGE]
            adapter = 1 + span.index if adapted else 0
            assert next(found) == [position, page * PAGE + position % PAGE, word, adapter]
    assert all(place[:2] == [0, SCRATCH_PAGE] and place[2] >= 0 and place[3] == 0 for place in found)


@given(st.lists(imaged | text | resumed, min_size=1, max_size=6))
def test_every_position_is_in_one_tile_of_its_row(rows: list[BatchItem]) -> None:
    slot, spans = filled(rows, 0)
    tiles = SHAPE.tiles_of(slot.packed).tolist()

    begin, covered = 0, []
    for span in spans:
        own = [tile for tile in tiles if tile[0] == span.index and tile[2]]
        for row, first, count, position, block in own:
            assert (position - first, block) == (span.start - begin, span.block)
            assert 0 < count <= QUERY_TILE
            covered += [(row, at) for at in range(first, first + count)]
        begin += span.count
    wanted = [(span.index, at) for span in spans for at in range(span.count)]
    assert [row for row, _ in covered] == [row for row, _ in wanted]
    assert [at for _, at in covered] == list(range(begin))
    assert sum(count > 0 for _, _, count, _, _ in tiles) == sum(-(-span.count // QUERY_TILE) for span in spans)


@given(st.lists(imaged | text | resumed, min_size=1, max_size=6))
def test_the_ends_of_rows_are_known_and_unused_rows_are_empty(rows: list[BatchItem]) -> None:
    slot, _ = filled(rows, 0)
    last, lengths = SHAPE.ends_of(slot.packed).tolist()

    unused = [0] * (SHAPE.max_rows - len(rows))
    assert last == [sum(row.count for row in rows[: index + 1]) - 1 for index in range(len(rows))] + unused
    assert lengths == [row.start + row.count for row in rows] + unused


def test_a_part_of_a_prompt_computes_its_part_of_a_causal_image() -> None:
    request = Request("", (Token(1),) * 10, ANYBODY, 0, SamplingSettings())
    sequence = Sequence(0, request, ANYBODY, 0, inside=(ImageSpan(NamedImage(""), 2, 6),))
    first, rest = make_rows([BatchItem(sequence, 0, 5, None, (JOB,), cut=True), BatchItem(sequence, 5, 5, 0, (JOB,))])

    assert first.images == (ImagePart(JOB.number, 2, 0, 3),)
    assert rest.images == (ImagePart(JOB.number, 0, 3, 3),)


@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_rows_that_decode_share_a_pass_with_parts_of_prompts(packed: bool) -> None:
    config = tiny_config()
    rig = Rig(config, torch.float64, sizes=(1, 2, 6), packed=packed)
    decoding = [Story(words_of(40, 41), (COORDINATE, TEXT, TEXT, TEXT)), Story(words_of(42), (TEXT,) * 4)]
    rig.prefill(decoding, [rig.fresh(story) for story in decoding])
    words = (*words_of(*range(50, 60)), Token(5, (0.3,)), *words_of(60, 61))
    long = Story(words, (TEXT,) * 2, make_image(config, (1, 2)))
    whole = rig.fresh(long)
    cut = whole.sequence.prefix_len + 7

    rig.mix(decoding, [long], [BatchItem(whole.sequence, 0, cut, None, whole.jobs, begins=True, cut=True)])
    rig.mix(decoding, [long], [BatchItem(whole.sequence, cut, whole.count - cut, 0, whole.jobs)])
    rig.decode([*decoding, long])

    for story in (*decoding, long):
        wanted = rig.expected(story)[0]
        assert [(token.id, token.values) for token in story.sequence.tokens] == [
            (token.id, token.values) for token in wanted
        ]


def test_a_row_that_assumes_what_follows_is_one_tile() -> None:
    assert MOST_ASSUMED < QUERY_TILE  # its first position is where its tile begins, see `Prefill._embed`


@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_ids_that_are_assumed_behind_pending_tokens_give_the_token_that_follows_them(packed: bool) -> None:
    config = tiny_config()
    rig = Rig(config, torch.float64, sizes=(1, 2, 6), packed=packed)
    forced = tuple(Allowed((one,)) for one in (60, 61, 62))
    stories = [
        Story(words_of(40, 41), (COORDINATE, *forced[:2], TEXT, TEXT), make_image(config, (1, 1))),
        Story(words_of(42), (TEXT, *forced, TEXT, TEXT)),
        Story(words_of(43, 44), (TEXT, TEXT, TEXT)),
    ]
    rig.prefill(stories, [rig.fresh(story) for story in stories])
    step = rig.launch_assuming(stories, [(60, 61), (60, 61, 62), ()])
    for story, row in zip(stories, step.rows, strict=True):  # these ids follow, as the grammar says
        story.sequence.tokens += map(Token, row.assumed)
    rig.finish(step, stories)
    rig.decode(stories)

    for story in stories:
        wanted = rig.expected(story)[0]
        assert [(token.id, token.values) for token in story.sequence.tokens] == [
            (token.id, token.values) for token in wanted
        ]


@pytest.mark.long
def test_a_launch_after_a_larger_one_is_not_disturbed_by_what_that_left() -> None:
    config = tiny_config()
    rig = Rig(config, torch.float64, sizes=(1, 2, 6), packed=True)
    lost = rig.job(make_image(config, (1, 2)))  # never encoded: its row is full of NaN
    large = [Story(words_of(40, 41), (TEXT,), make_image(config, (1, 2))) for _ in range(3)]
    rig.prefill(large, [rig.fresh(story, lost) for story in large])
    valued = (Token(1), Token(5, (0.3,)), Token(6, (0.25, 0.5)), Token(3))
    small = [Story(words_of(*range(50, 60)), (TEXT, COORDINATE)), Story(valued, (TEXT, TEXT))]

    rig.prefill(small, [rig.fresh(story) for story in small])
    rig.decode(small)

    for story in small:
        wanted = rig.expected(story)[0]
        assert [(token.id, token.values) for token in story.sequence.tokens] == [
            (token.id, token.values) for token in wanted
        ]


@pytest.mark.long
@pytest.mark.parametrize("sizes", [(), (4,)], ids=["eager", "graphs"])
def test_padding_is_added_for_a_graph_only(sizes: tuple[int, ...]) -> None:
    rig = Rig(tiny_config(), torch.float64, sizes=sizes, packed=True)
    story = Story(words_of(*range(50, 60)), (TEXT,))

    rig.prefill([story], [rig.fresh(story)])

    # The scratch page is written by padding alone.
    assert rig.model_runner.cache.keys[0, 0, 0].isfinite().all() == bool(sizes)


def prefilled(
    rows: Rows, spans: list[tuple[int, int, int]], attended: list[int] | None = None, rule: ScoreRule | None = None
) -> Tensor:
    """Attend in layer 1 with (start, count, block) of some rows, all unless given, on one axis."""
    attended = list(range(len(spans))) if attended is None else attended
    index = torch.tensor([row for row, (_, count, _) in zip(attended, spans, strict=True) for _ in range(count)])
    positions = torch.cat([torch.arange(start, start + count) for start, count, _ in spans])
    slots = rows.table[index, positions // cached.PAGE] * cached.PAGE + positions % cached.PAGE
    prompts = [PromptRow(row, *span[:2], 0, 0, span[2], (), None) for row, span in zip(attended, spans, strict=True)]
    attention = prompt_attention(rows.cache, prompts, slots.int(), rows.table.int())
    given = (x[None, index, positions] for x in (rows.q, rows.k, rows.v))
    return attention(1, *given, rule)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 14), st.integers(1, 9)), min_size=1, max_size=4), st.integers(0, 99))
def test_a_resumed_prefill_sees_what_is_cached_and_itself(spans: list[tuple[int, int]], seed: int) -> None:
    rows = Rows([start for start, _ in spans], seed)

    out = prefilled(rows, [(*span, 0) for span in spans])[0].split([count for _, count in spans])

    for row, (start, count) in enumerate(spans):
        assert torch.allclose(out[row], rows.seen(row, start, start + count, 0), atol=1e-12)
        for position in range(start, start + count):
            page = rows.table[row, position // cached.PAGE]
            assert torch.equal(rows.cache.values[1, page, position % cached.PAGE], rows.v[row, position])


@pytest.mark.parametrize("block", [0, 6, 9])
def test_a_block_is_seen_in_both_directions(block: int) -> None:
    rows = Rows([0, 0], seed=1)

    out = prefilled(rows, [(0, 9, block), (0, 9, block)])[0].split(9)

    for row in range(2):
        assert torch.allclose(out[row], rows.seen(row, 0, 9, block), atol=1e-12)
    assert rows.cache.keys[0].isnan().all()  # the other layer


@pytest.mark.parametrize("block", [0, 6])
def test_in_fp8_a_position_sees_the_same_numbers_whichever_launch_wrote_them(block: int) -> None:
    scales = ((1.0, 1.0), (0.25, 2.0**-3))
    rows = Rows([0, 7], seed=3, scales=scales)

    out = prefilled(rows, [(0, 9, block)], [0])
    assert torch.allclose(out[0], rows.seen(0, 0, 9, block), atol=1e-12)
    assert not torch.allclose(rows.seen_k, rows.k, rtol=1e-3)

    out = prefilled(rows, [(7, 2, 0)], [1])
    assert torch.allclose(out[0], rows.seen(1, 7, 9, 0), atol=1e-12)

    position = torch.tensor([[9], [9]])
    fixed = torch.cat((torch.zeros_like(position), position, rows.slots(position), position), dim=1)
    decode = decode_attention(rows.cache, torch.cat((fixed, rows.table), dim=1).int())
    out = decode(1, rows.q[:, 9:10], rows.k[:, 9:10], rows.v[:, 9:10])
    for row in range(2):
        assert torch.allclose(out[row], rows.seen(row, 9, 10, 0), atol=1e-12)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 3, 7])
def test_a_rule_scales_caps_and_limits_scores_in_blocks_prompts_and_decode_steps(
    window: int | None, softcap: float | None
) -> None:
    rule, block, length = ScoreRule(0.7, softcap, window), 6, 12
    rows = Rows([0, block - 1, 9, length - 1], seed=3)
    spans = [(0, length, block), (block - 1, 5, block), (9, 3, 0)]

    out = prefilled(rows, spans, rule=rule)[0].split([count for _, count, _ in spans])
    step = {"cache": rows.cache, "rows": cached_row(rows, 3, length - 1)}
    decoded = decode_attention(**step)(1, *(x[3:4, length - 1 : length] for x in (rows.q, rows.k, rows.v)), rule)

    for row, (start, count, _) in enumerate(spans):
        wanted = scored_by_hand(rows, row, start + count, block, rule)[start:]
        assert torch.allclose(out[row], wanted, atol=1e-12)
    assert torch.allclose(decoded[0], scored_by_hand(rows, 3, length, block, rule)[-1:], atol=1e-12)


def cached_row(rows: Rows, row: int, position: int) -> Tensor:
    """Return the row of a decode step as `runner.slots` lays it out."""
    columns = torch.zeros(1, PAGES + cached.PAGES_A_ROW, dtype=torch.int32)
    columns[0, POSITION], columns[0, PAGES:] = position, rows.table[row]
    columns[0, WRITE_SLOT] = rows.slots(torch.full((len(rows.table), 1), position))[row, 0]
    return columns


def scored_by_hand(rows: Rows, row: int, length: int, block: int, rule: ScoreRule) -> Tensor:
    """Return what the rule gives for each of the first positions, one query and one head at a time: ``[T, H, D]``."""
    out = torch.zeros(length, cached.HEADS, cached.DIM, dtype=torch.float64)
    for query, head in np.ndindex(length, cached.HEADS):
        first = 0 if rule.window is None else max(0, query - rule.window + 1)
        seen = range(block) if query < block else range(first, query + 1)
        shared = head // (cached.HEADS // cached.KV_HEADS)
        scores = torch.stack([rows.q[row, query, head] @ rows.k[row, key, shared] for key in seen]) * rule.scale
        if rule.softcap is not None:
            scores = rule.softcap * torch.tanh(scores / rule.softcap)
        out[query, head] = scores.softmax(0) @ torch.stack([rows.v[row, key, shared] for key in seen])
    return out


def test_a_block_is_never_entered_but_at_its_last_position() -> None:
    sequence = Sequence(0, Request("", (Token(1),) * 6, ANYBODY, 4, SamplingSettings()), ANYBODY, 1, prompt_block=5)

    assert [make_rows([BatchItem(sequence, start, 7 - start, 0)])[0].block for start in (0, 4, 5)] == [5, 5, 0]
    with pytest.raises(AssertionError, match="position 3 is in the middle of a block of 5"):
        make_rows([BatchItem(sequence, 3, 4, 0)])
