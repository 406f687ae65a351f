import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from photonlite.batch import BatchItem, CropGroup, PageCopy, RestoredPages
from photonlite.config import KvDtype
from photonlite.errors import NumericalError
from photonlite.image_inputs import HostTensor, StoredImage, StoredPages
from photonlite.images.crops import ImageCrops
from photonlite.images.decode import rgb_bytes
from photonlite.images.packing import pack_image
from photonlite.kernels.triton_utils import arrival_counters
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.fused.decode import FusedDecode
from photonlite.models.moondream.fused.prefill import FusedPrefill
from photonlite.request import Allowed, Token
from photonlite.runner import torch_model_runner
from photonlite.runner.graphs import GraphOptions
from photonlite.runner.stored_images import ImageKeeper
from photonlite.runner.tokens import sample_from_hidden
from tests.kernels.images import noise, pillows
from tests.runner.rig import COORDINATE, OBJECT_OR_END, SIZE, TEXT, Played, Rig, Story, make_image, words_of
from tests.tiny import CPU, tiny_config

SHAPES = [
    pytest.param(tiny_config(), id="one-shared-kv-head"),
    pytest.param(tiny_config("moondream2", text={"n_heads": 6, "n_kv_heads": 3}), id="3-of-6-kv-heads"),
    pytest.param(tiny_config(region={"size_out_dim": 130}), id="more-size-bins"),
]
NO_CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = [
    pytest.param(CPU, torch.float64, id="cpu"),
    pytest.param(torch.device("cuda", 0), torch.float32, id="card", marks=[pytest.mark.gpu, NO_CARD]),
]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-4}
BOXES = (OBJECT_OR_END, COORDINATE, SIZE) * 3
REFERENCES = (Token(1), Token(5, (0.3,)), Token(5, (0.8,)), Token(6, (0.25, 0.5)), Token(3))
both = pytest.mark.parametrize("packed", [False, True], ids=["plain-prompts", "fused-prompts"])


def stories(config: MoondreamConfig) -> list[Story]:
    """A list of boxes, plain text, references to places, and points after a long prompt."""
    return [
        Story(words_of(1, 77, 2, 40, 3), BOXES, make_image(config, (1, 2))),
        Story(words_of(90, 41, 42, 43, 44, 45, 46), (TEXT,) * 9),
        Story(REFERENCES, (TEXT, *BOXES[:6], TEXT, TEXT), make_image(config, (1, 1), 1)),
        Story(words_of(*range(40, 60)), (COORDINATE, COORDINATE, TEXT) * 3, make_image(config, (2, 2), 2)),
    ]


def assert_same(rig: Rig, told: list[Story], *, upto: int | None = None) -> None:
    """Ids and values are the plain runner's; probabilities and masses, which are float32, nearly."""
    for story in told:
        expected = rig.expected(story)[0][:upto]
        found = story.sequence.tokens
        assert [(token.id, token.values) for token in found] == [(token.id, token.values) for token in expected]
        for token, other in zip(found, expected, strict=True):
            assert (token.probability, *token.masses) == pytest.approx((other.probability, *other.masses), abs=1e-4)
            assert token.scores == pytest.approx(other.scores, abs=1e-5)


def run(rig: Rig, told: list[Story], steps: int) -> None:
    for _ in range(steps):
        rig.decode(told)


@pytest.mark.long
@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("sizes", [(), (1, 2, 6)], ids=["eager", "padded"])
@pytest.mark.parametrize("config", SHAPES)
def test_a_mixed_batch_equals_one_sequence_at_a_time(
    config: MoondreamConfig, sizes: tuple[int, ...], dtype: torch.dtype, packed: bool
) -> None:
    rig = Rig(config, dtype, sizes=sizes, packed=packed)
    told = stories(config)
    oracle = [rig.expected(story)[1] for story in told]

    rig.prefill(told, [rig.fresh(story) for story in told])
    for index in range(9):
        for row, states in enumerate(oracle):
            distance = (rig.spied.hidden[row] - states[index]).abs().max()
            assert distance <= TOLERANCE[dtype] * states[index].abs().max()
        if index < 8:
            rig.decode(told)

    assert_same(rig, told)


@pytest.mark.long
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
@pytest.mark.parametrize("sizes", [(), (1, 2, 6)], ids=["eager", "padded"])
@pytest.mark.parametrize("config", SHAPES[:2])
def test_fused_steps_equal_one_sequence_at_a_time(
    config: MoondreamConfig, sizes: tuple[int, ...], kv_dtype: KvDtype
) -> None:
    rig = Rig(config, torch.float64, sizes=sizes, packed=True, fused=True, kv_dtype=kv_dtype)
    told = stories(config)
    rig.prefill(told, [rig.fresh(story) for story in told])
    run(rig, told, 3)
    run(rig, told[1:], 2)
    run(rig, told[:1], 5)
    run(rig, told[1:], 3)

    assert_same(rig, told)


def test_each_launch_tells_the_size_of_its_products_and_runs_inside_the_block() -> None:
    config = tiny_config()
    launches: list[tuple[str, int]] = []
    inside: list[int] = []

    @contextlib.contextmanager
    def spread(multiplications: int) -> Iterator[None]:
        inside.append(multiplications)
        yield
        inside.clear()

    def noted(name: str, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*arguments: Any, **named: Any) -> Tensor:
            launches.extend((name, work) for work in inside[:1])
            return run(*arguments, **named)

        return call

    rig = Rig(config, torch.float32, spread=spread)
    rig.model.vision.encode = noted("encode", rig.model.vision.encode)  # type: ignore[method-assign]
    rig.spied.forward = noted("forward", rig.spied.forward)  # type: ignore[method-assign]
    told = stories(config)[:2]
    rows = [rig.fresh(story) for story in told]
    rig.prefill(told, rows)
    rig.decode(told)

    square = config.text.dim**2
    positions = sum(row.count for row in rows)
    assert launches[0] == ("encode", 3 * rig.model.shape.prefix_length * square)  # a crop of the whole, and two more
    assert launches[-1] == ("forward", 2 * square)
    assert set(launches[1:-1]) == {("forward", positions * square)}


def test_bodies_on_one_card_count_arrivals_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    def decide(*arguments: object, **options: object) -> None:
        counted.append(arrival_counters(CPU, 1))
        sample_from_hidden(*arguments, **options)  # type: ignore[arg-type]

    def step(decoder: FusedDecode, *arguments: Tensor) -> Tensor:
        counted.append(arrival_counters(CPU, 1))
        return fused(decoder, *arguments)  # type: ignore[arg-type]

    def prompts(decoder: FusedPrefill, *arguments: Any) -> Tensor:
        counted.append(arrival_counters(CPU, 1))
        return prefill(decoder, *arguments)

    fused, prefill = FusedDecode.__call__, FusedPrefill.__call__
    monkeypatch.setattr(FusedDecode, "__call__", step)
    monkeypatch.setattr(FusedPrefill, "__call__", prompts)
    monkeypatch.setattr(torch_model_runner, "sample_from_hidden", decide)
    config = tiny_config()
    story = stories(config)[1]
    for _ in range(2):
        rig = Rig(config, torch.float32, fused=True, packed=True)
        rig.model_runner.rehearse(20, 1)
        rig.model_runner.capture(GraphOptions((1,)), Played())
        rig.prefill([story], [rig.fresh(story)])
        rig.decode([story])

    first, second = counted[: len(counted) // 2], counted[len(counted) // 2 :]
    assert len(first) > 8
    assert all(one is first[0] for one in first)
    assert all(one is second[0] for one in second)
    assert first[0] is not second[0] is not arrival_counters(CPU, 1)


@both
@pytest.mark.parametrize("config", SHAPES[:2])
def test_a_cache_in_fp8_rounds_alike_in_every_launch(config: MoondreamConfig, packed: bool) -> None:
    rig = Rig(config, torch.float64, packed=packed, kv_dtype="fp8")
    told = stories(config)

    rig.prefill(told, [rig.fresh(story) for story in told])
    run(rig, told, 4)
    back = told[::2]
    rig.prefill(back, [rig.fresh(story) for story in back])
    run(rig, told[1::2], 1)
    run(rig, told, 3)

    assert rig.model_runner.cache.keys.dtype == torch.float8_e4m3fn
    assert_same(rig, told)


@both
def test_an_image_that_is_cached_is_not_computed_again(packed: bool) -> None:
    config = tiny_config()
    rig = Rig(config, torch.float64, packed=packed)
    first, second = (Story(words_of(*prompt), BOXES, make_image(config, (1, 2))) for prompt in ((1, 3), (1, 50, 60, 3)))
    rig.prefill([first], [rig.fresh(first)])
    # 26 positions are six pages of four, shared, and two positions of a page that is copied.
    whole, rest = first.sequence.pages[:6], first.sequence.pages[6]
    sequence = rig.open(second, shared=whole)

    rig.prefill([second], [BatchItem(sequence, 26, sequence.num_tokens - 26, 0)], (PageCopy(rest, sequence.pages[6]),))
    run(rig, [second, first], 8)

    assert_same(rig, [first, second])


@both
def test_rows_with_much_and_little_in_the_cache_run_together(packed: bool) -> None:
    config = tiny_config()
    rig = Rig(config, torch.float64, packed=packed)
    seen = Story(words_of(1, 3), (TEXT,), make_image(config, (1, 2)))
    said = Story(words_of(*range(40, 47)), (TEXT,))
    rig.prefill([seen, said], [rig.fresh(seen), rig.fresh(said)])
    told = [
        Story(words_of(1, 50, 60, 3), BOXES, seen.crops),
        Story((*said.prompt, *REFERENCES), BOXES),
        Story(words_of(90, 91), BOXES),
    ]
    # The second begins with the same 8 positions: two whole pages. The third has nothing in the cache.
    hit = rig.open(told[0], shared=seen.sequence.pages[:6])
    text = rig.open(told[1], shared=said.sequence.pages[:2])
    rows = [BatchItem(hit, 26, 4, 0), BatchItem(text, 8, 5, 0), rig.fresh(told[2])]

    rig.prefill(told, rows, (PageCopy(seen.sequence.pages[6], hit.pages[6]),))
    run(rig, told, 8)

    assert_same(rig, told)


@both
def test_a_preempted_sequence_is_recomputed_from_its_tokens(packed: bool) -> None:
    config = tiny_config()
    rig = Rig(config, torch.float64, packed=packed)
    told = stories(config)
    rig.prefill(told, [rig.fresh(story) for story in told])
    run(rig, told, 3)

    back = told[::2]
    rig.prefill(back, [rig.fresh(story) for story in back])
    run(rig, told[1::2], 1)
    run(rig, told, 4)

    assert_same(rig, told)


@both
def test_an_image_may_be_prefilled_without_a_token(packed: bool) -> None:
    config = tiny_config()
    rig = Rig(config, torch.float64, packed=packed)
    nobody = Story((), (), make_image(config, (1, 2)))
    story = Story(words_of(1, 50, 3), BOXES, nobody.crops)
    row = rig.fresh(nobody)

    assert rig.prefill([nobody], [row._replace(index=None)]) == [None]

    sequence = rig.open(story, shared=nobody.sequence.pages[:6])
    rig.prefill([story], [BatchItem(sequence, 26, 3, 0)], (PageCopy(nobody.sequence.pages[6], sequence.pages[6]),))
    run(rig, [story], 8)
    assert_same(rig, [story])


@pytest.mark.long
@both
@pytest.mark.parametrize("sizes", [(), (4,)], ids=["eager", "padded"])
def test_a_launch_writes_its_own_positions_and_the_scratch_page(sizes: tuple[int, ...], packed: bool) -> None:
    config = tiny_config()
    rig = Rig(config, torch.float64, sizes=sizes, packed=packed)
    told = [story for index, story in enumerate(stories(config)) if index != 2]  # two images, tails of 5 and 20
    rig.prefill(told, [rig.fresh(story) for story in told])
    written = {
        story.sequence.pages[position // 4] * 4 + position % 4
        for story in told
        for position in range(story.sequence.prompt_length)
    }
    for _ in range(5):
        for cache in (rig.model_runner.cache.keys, rig.model_runner.cache.values):
            places = cache.flatten(1, 2).isfinite().flatten(2).all(-1)  # [layers, positions]
            assert set(places[0].nonzero()[:, 0].tolist()) - {0} == written
            assert torch.equal(places[0, 1:], places[1, 1:])
        rig.decode(told)
        for sequence in (story.sequence for story in told):
            position = sequence.num_tokens - 2
            written.add(sequence.pages[position // 4] * 4 + position % 4)


def test_padding_rows_leave_those_alone_that_sit_out() -> None:
    config = tiny_config()
    rig = Rig(config, torch.float64, sizes=(4,))
    told = stories(config)
    rig.prefill(told, [rig.fresh(story) for story in told])

    run(rig, told[1:], 4)
    run(rig, told[:1], 4)
    run(rig, told, 4)

    assert_same(rig, told)


def test_a_crop_group_at_a_time_equals_all_at_once() -> None:
    config = tiny_config()
    rig = Rig(config, torch.float64)
    told = stories(config)
    long, short = rig.job(told[3].crops), rig.job(told[0].crops)  # type: ignore[arg-type]  # 5 and 3 crops

    rig.encode(CropGroup(long, 0, 2))
    rig.encode(CropGroup(long, 2, 2), CropGroup(short, 0, 1))
    rig.encode(CropGroup(long, 4, 1), CropGroup(short, 1, 2))
    pair = [told[3], told[0]]
    rig.prefill(pair, [rig.fresh(told[3], long), rig.fresh(told[0], short)])
    run(rig, pair, 8)

    assert_same(rig, pair)


@pytest.mark.parametrize(("device", "dtype"), DEVICES)
def test_images_that_the_body_cuts_equal_those_cut_before(device: torch.device, dtype: torch.dtype) -> None:
    rig = Rig(tiny_config(), dtype, device=device)
    spec = rig.model.crop_spec
    images = [noise(50, 40), noise(15, 18, seed=1), noise(30, 45, seed=2)]
    uncut = [pack_image(rgb_bytes(one), one.size, spec, lambda shape: np.zeros(shape, np.uint8)) for one in images]
    told = [
        Story(words_of(1, number, 3), BOXES, ImageCrops(pillows(image, spec).numpy(), packed.tiling))
        for number, image, packed in zip((77, 50, 60), images, uncut, strict=True)
    ]
    long, short, cut = rig.job(uncut[0]), rig.job(uncut[1]), rig.job(told[2].crops)

    rig.encode(CropGroup(cut, 0, 1), CropGroup(long, 0, 2), CropGroup(short, 0, 1))
    rig.encode(CropGroup(long, 2, long.total - 2), CropGroup(cut, 1, cut.total - 1))
    rig.prefill(told, [rig.fresh(story, job) for story, job in zip(told, (long, short, cut), strict=True)])
    run(rig, told, 8)

    assert_same(rig, told)


@both
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
def test_an_image_that_was_not_encoded_spoils_its_own_row_alone(packed: bool, kv_dtype: KvDtype) -> None:
    config = tiny_config()
    rig = Rig(config, torch.float64, packed=packed, kv_dtype=kv_dtype)
    told = stories(config)
    lost, failed, forgotten = (rig.job(told[index].crops) for index in (0, 2, 3))  # type: ignore[arg-type]
    failed.failed = True
    rig.encode(CropGroup(failed, 0, failed.total))
    rig.encode(CropGroup(lost, 0, 2), CropGroup(forgotten, 0, forgotten.total))
    rig.runner.forget(forgotten)

    rows = [rig.fresh(story, job) for story, job in zip(told, (lost, None, failed, forgotten), strict=True)]
    found = rig.prefill(told, rows)

    assert [isinstance(token, NumericalError) for token in found] == [True, False, True, True]
    run(rig, told[1:2], 8)
    assert_same(rig, told[1:2])


@both
def test_a_damaged_embedding_spoils_its_own_row_alone(packed: bool) -> None:
    rig = Rig(tiny_config(), torch.float64, packed=packed)
    # The short rows are padded, and what lies behind their tokens are those of the damaged row.
    told = [Story(words_of(*ids), BOXES) for ids in ((40, 41), (42,), (43, 44, 45, 70, 46, 47))]
    rig.model.text.wte[70] = torch.nan

    found = rig.prefill(told, [rig.fresh(story) for story in told])

    assert [isinstance(token, NumericalError) for token in found] == [False, False, True]
    run(rig, told[:2], 8)
    assert_same(rig, told[:2])


def test_numbers_that_the_host_reads_are_those_of_the_plain_runner() -> None:
    rig = Rig(tiny_config(), torch.float32)
    model, bins = rig.model, torch.arange(40)

    assert list(rig.model_runner.coordinates) == [float(model.coordinate_of(index, 40)) for index in bins]
    assert list(rig.model_runner.sizes) == [float(model.size_of(index, 30)) for index in bins[:30]]
    assert rig.model_runner.vocab_size == 272


def test_batches_are_padded_to_captured_sizes() -> None:
    rig = Rig(tiny_config(), torch.float32)
    assert rig.model_runner.padded(3) == (3, False)

    report = rig.model_runner.capture(GraphOptions((1, 4, 64)), Played())

    assert [rig.model_runner.padded(rows) for rows in (1, 3, 4, 5)] == [(1, True), (4, True), (4, True), (8, True)]
    assert report.graphs == 2 * 3 * 11  # 8 rows are the most of this runner


def test_steps_beside_an_encoding_replay_the_graphs_of_decodings_part() -> None:
    class Part(Played):
        def __init__(self) -> None:
            self.replays = 0

        def capture(self, work: Callable[[], None]) -> Callable[[], None]:
            if work.args[1] == 4:  # type: ignore[attr-defined]
                raise RuntimeError("no graph can hold this")
            played = super().capture(work)

            def replay() -> None:
                self.replays += 1
                played()

            return replay

    rig, part = Rig(tiny_config(), torch.float32), Part()
    rig.model_runner.capture(GraphOptions((1, 4)), Played(), part)
    assert list(rig.model_runner.part_sizes) == [1]
    stories = [Story(words_of(1, 2, number), (TEXT,) * 5) for number in range(3)]
    rig.prefill(stories, [rig.fresh(story) for story in stories])
    found = []
    for count, beside in ((1, False), (1, True), (3, True), (1, False)):
        rig.decode(stories[:count], beside=beside)
        found.append(part.replays)

    assert found == [0, 2, 2, 2], "a forward pass and a finalize"
    for story in stories:
        tokens = story.sequence.tokens
        assert [token.id for token in tokens] == [token.id for token in rig.expected(story)[0][: len(tokens)]]


@both
def test_the_last_position_of_a_prompt_in_the_encoders_part_is_decoded(packed: bool) -> None:
    class Counted(Played):
        def __init__(self) -> None:
            self.replays = 0

        def capture(self, work: Callable[[], None]) -> Callable[[], None]:
            played = super().capture(work)

            def replay() -> None:
                self.replays += 1
                played()

            return replay

    rig, part = Rig(tiny_config(), torch.float64, packed=packed, divided=True), Counted()
    rig.model_runner.capture(GraphOptions((1, 4)), Played(), None, part)
    rig.poison()
    told = stories(tiny_config())[:3]
    other = Story(words_of(90, 44), (TEXT,) * 4)
    rig.prefill([other], [rig.fresh(other)])
    step = rig.launch_decode([other])  # one of these prompts, an image's encoding later, is launched into its slot
    assert rig.prefill_beside(told[:1]) == [None]
    rig.finish(step, [other])
    assert rig.prefill_beside(told[1:]) == [None] * 2
    run(rig, [other], 2)
    run(rig, told, 9)

    assert part.replays == 2 * packed
    assert_same(rig, [*told, other])


def test_images_in_turn_and_those_beside_the_steps_have_buffers_of_their_own() -> None:
    rig = Rig(tiny_config(), torch.float64, divided=True)
    runner, executor = rig.model_runner, rig.runner
    crops = [make_image(tiny_config(), (1, 1), seed) for seed in (1, 2)]
    groups = [[CropGroup(rig.job(one), 0, 1)] for one in crops]
    slots = executor._slots[0], executor._encoder_slots[0]
    with torch.inference_mode():
        for slot, group in zip(slots, groups, strict=True):
            runner.upload_crops(slot, group)
        for slot, group in zip(slots, groups, strict=True):
            runner.encode(slot, group)
        found = [runner._images.embeddings(group[0].job.number) for group in groups]
        wanted = [rig.plain.encode(one.pixels, one.tiling) for one in crops]

    for one, other in zip(found, wanted, strict=True):
        assert one is not None
        torch.testing.assert_close(one[0], other.view_as(one[0]), rtol=1e-9, atol=1e-9)


@both
@pytest.mark.parametrize("divided", [False, True])
def test_a_rehearsal_runs_the_largest_launches_on_the_scratch_page(packed: bool, divided: bool) -> None:
    rig = Rig(tiny_config(), torch.float32, packed=packed, divided=divided)

    for positions in (10, 200):
        rig.model_runner.rehearse(positions, images=2)

    assert rig.model_runner.cache.keys[:, 1:].isnan().all()
    assert not rig.model_runner.cache.keys[:, 0].isnan().all()


def test_a_closed_runner_holds_no_cache() -> None:
    rig = Rig(tiny_config(), torch.float32)
    rig.runner.close()
    assert rig.model_runner.cache.keys.numel() == rig.model_runner.cache.values.numel() == 0


@both
def test_a_closed_runner_holds_neither_graphs_nor_what_they_were_made_of(
    packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)  # a capture would keep what the test makes from the collector
    rig = Rig(tiny_config(), torch.float32, sizes=(1, 2), packed=packed)
    runner = rig.model_runner
    parts = [weakref.ref(part) for part in (runner._images, runner._prefill)]
    if packed:
        parts.append(weakref.ref(rig.model_runner._prefill._decoder))

    rig.runner.close()
    gc.collect()

    assert [part() for part in parts] == [None] * len(parts)


@both
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs need a CUDA device")
def test_graphs_on_a_card_equal_one_sequence_at_a_time(packed: bool, caplog: pytest.LogCaptureFixture) -> None:
    config, card = tiny_config(), torch.device("cuda", 0)
    rig = Rig(config, torch.float32, sizes=(1, 2, 6), device=card, packed=packed)
    told = stories(config)

    rig.prefill(told, [rig.fresh(story) for story in told])
    run(rig, told, 8)

    assert [record.message for record in caplog.records if record.name == "photonlite"] == []
    assert_same(rig, told)
    rig.runner.close()


@pytest.mark.parametrize("sizes", [(), (1, 2, 4, 8)], ids=["as-it-is", "graphs"])
def test_masks_and_scores_of_mixed_rows_are_those_of_the_plain_runner(sizes: tuple[int, ...]) -> None:
    config = tiny_config()
    rig = Rig(config, torch.float64, sizes=sizes)
    bits = np.full(-(-272 // 32), 0x5555_5555, np.int32)
    fork = Allowed((30, 31, 40, 77), scored=(77, 30, 31, 40))
    place = Allowed((5, 40, 41), coordinate=5, scored=(5, 41))
    either = Allowed(mask=bits | 0x60, coordinate=5, size=6)
    told = [
        Story(words_of(1, 77, 2, 40, 3), (fork, TEXT, fork, place, COORDINATE), make_image(config, (1, 2))),
        Story(words_of(90, 41, 42), (TEXT, Allowed(mask=bits), either, either, SIZE)),
        Story(words_of(91, 44), (either, place, Allowed(mask=bits, scored=(4, 6)), TEXT, Allowed((7,), scored=(7,)))),
    ]
    rig.prefill(told, [rig.fresh(story) for story in told])
    for _ in range(4):
        rig.decode(told)

    assert_same(rig, told)
    for story in told:
        for token, allowed in zip(story.sequence.tokens, story.allowed, strict=True):
            assert len(token.scores) == len(allowed.scored)
    assert sum(told[0].sequence.tokens[0].scores) == pytest.approx(1)
    assert told[2].sequence.tokens[4].scores == (1.0,)


class Kept:
    """A store that takes everything."""

    def __init__(self) -> None:
        self.found: dict[str, HostTensor] = {}

    def wants(self, image: str, kind: str, units: int, size: int) -> bool:
        return True

    def allocate(self, size: int) -> Any:
        return np.empty(size, np.uint8)

    def keep(self, key: str, cache_salt: str, kind: str, tensor: HostTensor, units: int) -> None:
        assert units == {"embeddings": 3, "pages": 26}[kind]
        self.found[kind] = tensor


def keeping(**options: Any) -> tuple[Rig, Kept]:
    """Make a rig whose runner has kept what it computed for an image of three crops."""
    store, config = Kept(), tiny_config()
    device = options.get("device", CPU)
    rig = Rig(config, keeper=ImageKeeper(device, store), **options)
    first = Story(words_of(1, 77, 2, 40, 3), BOXES, make_image(config, (1, 2)))
    job = rig.job(first.crops)  # type: ignore[arg-type]
    rig.encode(CropGroup(job, 0, job.total))
    rig.prefill([first], [rig.fresh(first, job)])
    rig.model_runner._images._keeper.close()  # type: ignore[union-attr]
    rig.model_runner._images._keeper = None
    rig.poison()
    return rig, store


def restored(rig: Rig, story: Story, store: Kept) -> BatchItem:
    """Begin a story behind its stored image."""
    job, sequence = rig.job(StoredImage(store.found["embeddings"])), rig.open(story)  # type: ignore[arg-type]
    place = sequence.images[0].pages
    assert place is not None
    job.pages = StoredPages(place, store.found["pages"])
    rig.encode(CropGroup(job, 0, 1))
    count, stored = sequence.num_tokens - sequence.prefix_len, RestoredPages(job, place, 0)
    return BatchItem(sequence, sequence.prefix_len, count, 0, (job,), begins=True, restored=(stored,))


@both
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
@pytest.mark.parametrize(("device", "dtype"), DEVICES)
def test_prompts_go_on_behind_stored_keys_and_values_as_behind_computed_ones(
    packed: bool, kv_dtype: KvDtype, device: torch.device, dtype: torch.dtype
) -> None:
    if kv_dtype == "fp8" and device is CPU and packed:
        pytest.skip("packed prompts in FP8 are a card's")
    rig, store = keeping(packed=packed, device=device, kv_dtype=kv_dtype, dtype=dtype)
    crops = make_image(tiny_config(), (1, 2))
    behind = [Story(words_of(90, 41, 42, 43), (TEXT,) * 9, crops), Story(words_of(1, 77, 2, 40, 3), BOXES, crops)]
    beside = stories(tiny_config())[2:]

    rows = [restored(rig, story, store) for story in behind] + [rig.fresh(story) for story in beside]
    rig.prefill([*behind, *beside], rows)
    run(rig, [*behind, *beside], 8)

    if kv_dtype == "auto":
        assert_same(rig, [*behind, *beside])
    else:
        assert all(len(story.sequence.tokens) == 9 for story in behind)


def test_a_row_whose_stored_keys_and_values_are_gone_fails_alone() -> None:
    rig, store = keeping(dtype=torch.float64)
    story, other = Story(words_of(90, 41), (TEXT,) * 9, make_image(tiny_config(), (1, 2))), stories(tiny_config())[1]
    row = restored(rig, story, store)
    with torch.inference_mode():
        rig.model_runner.cache.keys.zero_()  # what lies there would be taken for the image
        rig.model_runner.cache.values.zero_()
    rig.runner.forget(row.jobs[0])

    found = rig.prefill([story, other], [row, rig.fresh(other)])

    assert isinstance(found[0], NumericalError)
    assert isinstance(found[1], Token)


def test_nothing_is_kept_of_an_image_whose_encoding_failed() -> None:
    store, config = Kept(), tiny_config()
    rig = Rig(config, torch.float64, keeper=ImageKeeper(CPU, store))
    story = Story(words_of(90, 41), (TEXT,) * 9, make_image(config, (1, 2)))
    job = rig.job(story.crops)  # type: ignore[arg-type]
    rig.encode(CropGroup(job, 0, job.total - 1))
    job.failed = True
    rig.encode(CropGroup(job, job.total - 1, 1))

    rig.prefill([story], [rig.fresh(story, job)])

    assert store.found == {}
