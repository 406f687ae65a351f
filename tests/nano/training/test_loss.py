import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from bench.nano.questions.layout import BOS, COORD, SIZE, Questions
from bench.nano.questions.tokenizer import FIRST_INTEGER, INTEGERS
from bench.nano.scenes.batched.layouts import MAX_OBJECTS
from bench.nano.scenes.batched.truth import TOLD
from bench.nano.training.loss import (
    Learner,
    PackedAttention,
    Rows,
    Weights,
    _soft_integer,
    cut_sheet,
    image_tokens,
    pack,
    soft_cross_entropy,
)
from photonlite.images.crops import CropSpec, cut_crops
from photonlite.models.moondream.model import coord_from_bin, size_from_bin
from photonlite.request import Token
from tests.plain import PlainRunner
from tests.tiny import CPU, tiny_config, tiny_model

CONFIG = tiny_config(text={"vocab_size": 1000})
COORD_BINS, SIZE_BINS = CONFIG.region.coord_out_dim, CONFIG.region.size_bins


def coordinate(index):
    return Token(COORD, (float(coord_from_bin(torch.tensor(index), COORD_BINS)),))


def size(*indices):
    return Token(SIZE, tuple(float(size_from_bin(torch.tensor(index), SIZE_BINS)) for index in indices))


def words(*ids):
    return [Token(token_id) for token_id in ids]


# Two images with the same four questions each: two boxes or none, one point or two, an outline, a text.
PROMPTS = [
    [words(1, 77, 2, 40, 3), words(1, 77, 2, 41, 42, 3)],
    [words(1, 89, 2, 50, 3)] * 2,
    [[*words(1, 92, 2), coordinate(5), coordinate(6), *words(50, 3)], words(1, 92, 2, 50, 3)],
    [words(1, 90, 2, 51, 3)] * 2,
]
LEADS = [FIRST_INTEGER + n for n in (9, 11, 31, 4)]  # the integers of an outline's first two vertices
STEPS = [FIRST_INTEGER, FIRST_INTEGER + 17, FIRST_INTEGER + 50]  # the others
ANSWERS = [
    [[coordinate(7), coordinate(30), size(20, 9), coordinate(39), coordinate(0), size(3, 29), *words(BOS)], words(BOS)],
    [[coordinate(12), coordinate(13), *words(BOS)], [*map(coordinate, (1, 2, 3, 4)), *words(BOS)]],
    [[coordinate(9), coordinate(8), size(12, 13), *words(77, *LEADS[:2], 78, *LEADS[2:], *STEPS, BOS)], words(BOS)],
    [words(60, 61, 62, BOS), words(63, BOS)],
]
LENGTHS = [14, 10, 20, 9]  # the last one has no place to spare
NUMBERS = 44  # where the text begins
DECISION, TYPED, TEXT = range(3)
IN_PARTS = [DECISION, DECISION, DECISION, TEXT]


def questions(prompts, answers, length):
    """Rows of tokens as tensors."""
    ids = torch.full((len(prompts), length), BOS)
    values, weight = torch.zeros(len(prompts), length, 2), torch.zeros(len(prompts), length)
    outline = torch.zeros(len(prompts), length, dtype=torch.bool)
    for row, (prompt, said) in enumerate(zip(prompts, answers, strict=True)):
        for place, token in enumerate([*prompt, *said]):
            ids[row, place] = token.id
            values[row, place] = torch.tensor((token.values * 2)[:2] or (0.0, 0.0))
            outline[row, place] = place >= len(prompt) and token.id in (*LEADS, *STEPS)
        weight[row, len(prompt) : len(prompt) + len(said)] = 1
    values[..., 0] = torch.where(outline, (ids - FIRST_INTEGER) / (INTEGERS - 1), values[..., 0])
    return Questions(ids, values, weight, outline)


@pytest.fixture
def pixels():
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (2, 20, 20, 3), generator=generator, dtype=torch.uint8)


@pytest.fixture
def packed():
    """Every question at the same place in all rows, with its padding."""
    asked = [questions(*question) for question in zip(PROMPTS, ANSWERS, LENGTHS, strict=True)]
    owner = torch.arange(4).repeat_interleave(torch.tensor(LENGTHS)).expand(2, -1)
    start = torch.tensor([0, *itertools.accumulate(LENGTHS[:-1])])[owner]
    return Rows(*(torch.cat(columns, 1) for columns in zip(*asked, strict=True)), torch.tensor(IN_PARTS)[owner], start)


@pytest.fixture
def learner(monkeypatch):
    """A learner that embeds numbers as they are, without training's noise."""
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    torch.manual_seed(0)
    attention = PackedAttention(CONFIG.prefix_length, 2, sum(LENGTHS), max(LENGTHS), CPU)
    return Learner(tiny_model(CONFIG), 4, attention).requires_grad_(False)


NOWHERE = (
    torch.zeros(2, 25, dtype=torch.bool), torch.zeros(2, 25, dtype=torch.long),
    torch.zeros(2, 25, 4), torch.zeros(2, 25, 2), torch.zeros(2, 25, 2 * TOLD),
)  # fmt: skip  # centres, numbers, boxes, points and outlines of all patches


def loss(learner, *batch):
    """The parts of the loss of a batch that ends with where its questions begin."""
    learner.attention.show(batch[-1])
    return learner(*batch[:-1])


@pytest.fixture
def targets():
    return torch.full((2, 25), 4), *NOWHERE


def hidden_of(learner, *batch):
    """The parts of the loss, and the hidden states of the questions, ``[B, L, dim]``."""
    seen = []
    handle = learner.model.register_forward_hook(lambda module, arguments, output: seen.append(output))
    parts = loss(learner, *batch)
    handle.remove()
    return parts, seen[0][:, CONFIG.prefix_length :]


def by_engine(model, image, prompt, answer):
    """Hidden states of one question after each of its tokens, by the plain oracle: ``[T, dim]``."""
    runner = PlainRunner(model, CPU, torch.float32)
    cache = runner.new_cache(CONFIG.text.max_context)
    runner.prefill_image(cache, runner.encode(image[None].numpy(), (1, 1)))
    states = [runner.extend(cache, [token]) for token in (*prompt, *answer)]
    return torch.stack(states)


def test_hidden_states_are_those_of_the_engine_that_serves(learner, pixels, packed, targets):
    _, hidden = hidden_of(learner, pixels, *targets, *packed)
    starts = [0, *itertools.accumulate(LENGTHS)]
    for row, which in itertools.product(range(2), range(4)):
        expected = by_engine(learner.model, pixels[row], PROMPTS[which][row], ANSWERS[which][row])
        found = hidden[row, starts[which] : starts[which] + len(expected)]
        assert torch.allclose(found, expected, atol=1e-4)
        assert torch.allclose(learner.model.logits(found), learner.model.logits(expected), atol=1e-4)


def test_loss_is_that_of_the_engine_predicting_every_answer(learner, pixels, packed, targets):
    parts, _ = hidden_of(learner, pixels, *targets, *packed)
    expected = {"decision": [], "text": [], "coord": [], "size": [], "path": [], "lead": []}
    model = learner.model
    for row, which in itertools.product(range(2), range(4)):
        prompt, answer = PROMPTS[which][row], ANSWERS[which][row]
        states = by_engine(model, pixels[row], prompt, answer)
        for token, state in zip(answer, states[len(prompt) - 1 :], strict=False):
            surprise = -model.logits(state).log_softmax(-1)[token.id]
            if token.id in (*LEADS, *STEPS):
                step = torch.tensor(float(token.id - FIRST_INTEGER))
                expected["lead" if token.id in LEADS else "path"].append(_soft_integer(model.logits(state), step))
            else:
                expected["text" if which == 3 else "decision"].append(surprise)
            if token.id == COORD:
                place = torch.tensor(token.values[0] * COORD_BINS)
                expected["coord"].append(soft_cross_entropy(model.coordinate_logits(state), place))
            if token.id == SIZE:
                place = (torch.tensor(token.values).log2() + 10) / 10 * (SIZE_BINS - 1)
                expected["size"].append(soft_cross_entropy(model.size_logits(state), place).sum())
    assert [len(losses) for losses in expected.values()] == [7 + 1 + 3 + 5 + 6 + 1, 4 + 2, 4 + 2 + 4 + 2, 3, 3, 4]
    for name, losses in expected.items():
        assert float(parts[name]) == pytest.approx(float(torch.stack(losses).mean()), abs=1e-4)


@pytest.mark.parametrize("changed", range(4))
def test_questions_do_not_see_one_another(learner, pixels, packed, targets, changed):
    _, before = hidden_of(learner, pixels, *targets, *packed)
    ids, *others = packed
    start = sum(LENGTHS[:changed])
    ids = ids.clone()
    ids[:, start] = 100
    _, after = hidden_of(learner, pixels, *targets, ids, *others)
    same = (before - after).abs().amax((0, 2)) < 1e-6
    expected = torch.ones(sum(LENGTHS), dtype=torch.bool)
    expected[start : start + LENGTHS[changed]] = False
    assert torch.equal(same, expected)


def test_a_place_sees_nothing_that_comes_after_it(learner, pixels, packed, targets):
    _, before = hidden_of(learner, pixels, *targets, *packed)
    ids, *others = packed
    ids = ids.clone()
    ids[:, 7] = 100
    _, after = hidden_of(learner, pixels, *targets, ids, *others)
    same = (before - after).abs().amax((0, 2)) < 1e-6
    assert same.tolist() == [not 7 <= place < LENGTHS[0] for place in range(sum(LENGTHS))]


def test_all_questions_see_the_image(learner, pixels, packed, targets):
    _, before = hidden_of(learner, pixels, *targets, *packed)
    _, after = hidden_of(learner, 255 - pixels, *targets, *packed)
    assert bool(((before - after).abs().amax(2) > 1e-3).all())


def test_numbers_are_embedded_with_a_little_noise(learner, pixels, packed, targets, monkeypatch):
    _, exact = hidden_of(learner, pixels, *targets, *packed)
    monkeypatch.undo()
    torch.manual_seed(0)
    _, noisy = hidden_of(learner, pixels, *targets, *packed)
    moved = (exact - noisy).abs().amax(2)[0]
    prompt = len(PROMPTS[0][0])
    assert float(moved[:prompt].max()) < 1e-6
    assert float(moved[prompt : prompt + 6].min()) > 1e-6
    assert float(moved[NUMBERS:].max()) < 1e-6


def test_what_is_padded_or_asked_is_no_loss(learner, pixels, packed, targets):
    """Only answers count: other prompts and paddings as targets change nothing."""
    nothing = loss(learner, pixels, *targets, *packed._replace(weight=torch.zeros_like(packed.weight)))
    assert [float(nothing[name]) for name in ("decision", "text", "coord", "size", "path", "lead", "start")] == [0] * 7


def test_json_counts_apart_from_decisions(learner, pixels, packed, targets):
    first, others = packed.weight.clone(), packed.weight.clone()
    first[:, LENGTHS[0] :], others[:, : LENGTHS[0]] = 0, 0
    alone, rest = (loss(learner, pixels, *targets, *packed._replace(weight=some)) for some in (first, others))
    assert float(alone["typed"]) == 0
    part = packed.part.clone()
    part[:, : LENGTHS[0]] = TYPED
    parts = loss(learner, pixels, *targets, *packed._replace(part=part))
    assert float(parts["typed"]) == pytest.approx(float(alone["decision"]), abs=1e-5)
    assert float(parts["decision"]) == pytest.approx(float(rest["decision"]), abs=1e-5)
    assert float(parts["decision"]) != pytest.approx(float(parts["typed"]), abs=1e-3)


def test_an_answer_of_double_weight_counts_twice(learner, pixels, packed, targets):
    def text(weight):
        return float(loss(learner, pixels, *targets, *packed._replace(weight=weight))["text"])

    one, other, double = (packed.weight.clone() for _ in range(3))
    one[0, NUMBERS:], other[1, NUMBERS:] = 0, 0
    double[1, NUMBERS:] *= 2
    # Four tokens of the first image, two of the second.
    expected = (4 * text(other) + 2 * 2 * text(one)) / 8
    assert text(double) == pytest.approx(expected, abs=1e-5)


# ---- packing


def test_packed_questions_are_learned_as_wide_ones(learner, pixels, packed, targets):
    asked = [questions(*question) for question in zip(PROMPTS, ANSWERS, LENGTHS, strict=True)]
    close = pack(asked, IN_PARTS, 52)
    assert int((close.start == torch.arange(52)).sum(1).min()) > 4  # there is room behind them
    found, expected = (loss(learner, pixels, *targets, *rows) for rows in (close, packed))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(float(value), rel=1e-4, abs=1e-5), name


def test_packed_questions_lie_one_behind_the_other():
    asked = [questions(*question) for question in zip(PROMPTS, ANSWERS, LENGTHS, strict=True)]
    rows = pack(asked, IN_PARTS, 60)
    for row in range(2):
        said = [[token.id for token in (*PROMPTS[n][row], *ANSWERS[n][row])] for n in range(4)]
        assert rows.ids[row].tolist() == [*itertools.chain(*said), *[BOS] * (60 - sum(map(len, said)))]
        begins = [0, *itertools.accumulate(map(len, said))]
        expected = [begin for begin, one in zip(begins, said, strict=False) for _ in one]
        assert rows.start[row].tolist() == [*expected, *range(begins[-1], 60)]
        assert float(rows.weight[row, begins[-1] :].sum()) == 0
        assert rows.part[row, : begins[-1]].tolist() == [
            part for part, one in zip(IN_PARTS, said, strict=True) for _ in one
        ]


def test_what_a_row_has_no_room_for_is_cut():
    asked = [questions(*question) for question in zip(PROMPTS, ANSWERS, LENGTHS, strict=True)]
    whole, cut = (pack(asked, IN_PARTS, room) for room in (60, 18))
    for column, kept in zip(whole, cut, strict=True):
        assert torch.equal(column[:, :18], kept)


# ---- tilings


@pytest.mark.parametrize("tiling", [(1, 2), (2, 1), (2, 2)])
def test_a_sheet_is_cut_as_an_image_is(tiling):
    config = dataclasses.replace(CONFIG.vision, max_crops=4)
    spec = CropSpec(config.crop_size, config.enc_patch_size, config.overlap_margin, 4)
    height, width = (n * spec.window + 2 * spec.margin for n in tiling)
    coarse = Image.fromarray(np.random.default_rng(0).integers(0, 256, (4, 4, 3), np.uint8))
    image = coarse.resize((3 * width, 3 * height), Image.Resampling.BICUBIC)  # smooth: filters hardly matter
    sheet = np.array(image.resize((width, height), Image.Resampling.LANCZOS))
    crops, found = cut_sheet(torch.from_numpy(sheet)[None], config)
    expected = cut_crops(image, spec)
    assert found == expected.tiling == tiling
    assert int((crops[1:, 0].int() - torch.from_numpy(expected.pixels[1:]).int()).abs().max()) <= 1
    assert float((crops[0, 0].float() - torch.from_numpy(expected.pixels[0]).float()).abs().mean()) < 2


def test_sheets_of_no_tiling_are_refused():
    with pytest.raises(ValueError, match="whole number of windows"):
        cut_sheet(torch.zeros(1, 21, 20, 3, dtype=torch.uint8), CONFIG.vision)


def test_image_tokens_of_a_tiling_are_those_of_the_engine(learner):
    vision = CONFIG.vision
    spec = CropSpec(vision.crop_size, vision.enc_patch_size, vision.overlap_margin, vision.max_crops)
    size = 2 * spec.window + 2 * spec.margin
    pixels = torch.randint(0, 256, (3, size, size, 3), dtype=torch.uint8)
    crops, tiling = cut_sheet(pixels, vision)
    tokens = image_tokens(learner.model, pixels)
    for i in range(3):
        module = learner.model.vision
        assert torch.allclose(tokens[i], module.project(module.encode(crops[:, i]), tiling), atol=1e-5)


# ---- the dense loss


def flat_heads(learner):
    """Heads that know nothing: every class is as likely as any other, every place is 0."""
    for parameter in learner.heads.parameters():
        torch.nn.init.zeros_(parameter)


def test_dense_loss_of_heads_that_know_nothing(learner, pixels, packed):
    flat_heads(learner)
    labels = torch.full((2, 25), 4)
    labels[0, :3] = torch.tensor([0, 1, 2])
    boxes = torch.full((2, 25, 4), 0.9)
    boxes[0, :3] = torch.tensor([[0.1], [0.2], [0.6]])
    outlines = torch.full((2, 25, 2 * TOLD), 0.9)
    outlines[0, :3] = 2 * boxes[0, :3, :1]
    outlines[0, :3, 2 * 8 :] = -1  # of eight vertices
    points = boxes[..., :2] + 0.1
    centres = labels == 0
    parts = loss(learner, pixels, labels, centres, NOWHERE[1], boxes, points, outlines, *packed)
    assert float(parts["patch_class"]) == pytest.approx(math.log(5))
    assert float(parts["patch_centre"]) == pytest.approx(math.log(2))
    # The places of background patches mean nothing.
    assert float(parts["patch_box"]) == pytest.approx(0.3)
    assert float(parts["patch_point"]) == pytest.approx(0.4)
    assert float(parts["patch_outline"]) == pytest.approx(0.6)


def test_every_outline_of_a_row_has_a_beginning(learner, pixels, targets):
    asked = questions(PROMPTS[2], ANSWERS[2], LENGTHS[2])
    once, twice = (loss(learner, pixels, *targets, *pack([asked] * n, [DECISION] * n, 40)) for n in (1, 2))
    for name in ("lead", "path", "start"):
        assert float(twice[name]) == pytest.approx(float(once[name]), rel=1e-4)


def test_where_an_outline_begins_is_read_off_the_state_before_it(learner, pixels, packed, targets):
    """Two vertices, with an L between them, from the one place behind the M."""
    begins = (torch.tensor(LEADS) - FIRST_INTEGER) / (INTEGERS - 1)
    learner.start[1].weight.data.zero_()
    learner.start[1].bias.data = begins + torch.tensor([0.1, 0.2, -0.3, 0.4])
    parts, hidden = hidden_of(learner, pixels, *targets, *packed)
    assert float(parts["start"]) == pytest.approx(0.25, abs=1e-5)
    m = LENGTHS[0] + LENGTHS[1] + len(PROMPTS[2][0]) + 3  # behind the prompt and three numbers
    reads = torch.randn(4, CONFIG.text.dim)
    learner.start[1].weight.data = reads
    expected = (learner.start(hidden[0, m]) - begins).abs().mean()
    assert float(loss(learner, pixels, *targets, *packed)["start"]) == pytest.approx(float(expected), rel=1e-4)


def test_background_patches_count_less(learner, pixels, packed):
    flat_heads(learner)
    learner.heads.label.bias.data[4] = 3.0  # says background everywhere
    labels = torch.full((2, 25), 4)
    right = float(loss(learner, pixels, labels, *NOWHERE, *packed)["patch_class"])
    labels[0, 0] = 1
    mixed = float(loss(learner, pixels, labels, *NOWHERE, *packed)["patch_class"])
    wrong = right + 3.0
    assert mixed == pytest.approx((49 * 0.1 * right + wrong) / (49 * 0.1 + 1))


def test_patches_without_a_centre_count_less(learner, pixels, packed):
    flat_heads(learner)
    learner.heads.centre.bias.data.fill_(-2.0)  # says that none is anywhere
    centres, *places = NOWHERE
    labels = torch.full((2, 25), 4)
    right = float(loss(learner, pixels, labels, centres, *places, *packed)["patch_centre"])
    some = centres.clone()
    some[0, 0] = True
    mixed = float(loss(learner, pixels, labels, some, *places, *packed)["patch_centre"])
    assert mixed == pytest.approx((49 * 0.1 * right + right + 2.0) / (49 * 0.1 + 1))


def test_patches_without_a_centre_count_less_in_numbers(learner, pixels, packed):
    """Three of a kind, one of which has a patch besides that of its centre."""
    flat_heads(learner)
    learner.heads.number.bias.data[3] = 2.0  # says three everywhere
    centres, numbers, *places = (x.clone() for x in NOWHERE)
    labels = torch.full((2, 25), 4)
    labels[0, :4] = 1
    centres[0, :3] = True
    numbers[0, :4] = 3
    right = float(loss(learner, pixels, labels, centres, numbers, *places, *packed)["patch_number"])
    assert right == pytest.approx(math.log(math.exp(2.0) + MAX_OBJECTS) - 2.0)
    numbers[0, 0] = 2
    wrong = float(loss(learner, pixels, labels, centres, numbers, *places, *packed)["patch_number"])
    assert wrong == pytest.approx(right + 2.0 * 1 / 3.1)


@pytest.mark.parametrize(
    "part", ["patch_class", "patch_centre", "patch_number", "patch_box", "patch_point", "patch_outline"]
)
def test_the_dense_loss_teaches_the_vision_encoder(learner, pixels, packed, part):
    learner.requires_grad_(True)
    labels = torch.zeros(2, 25, dtype=torch.long)
    parts = loss(learner, pixels, labels, *NOWHERE[:4], torch.ones(2, 25, 2 * TOLD), *packed)
    parts[part].backward()
    assert float(learner.model.vision.patch_emb.weight.grad.abs().sum()) > 0
    assert learner.model.text.wte.grad is None


def test_every_part_of_the_loss_has_a_weight(learner, pixels, packed, targets):
    parts = loss(learner, pixels, *targets, *packed)
    assert set(parts) == set(vars(Weights()))
    assert all(value.ndim == 0 and bool(value.isfinite()) for value in parts.values())


# ---- soft targets


@pytest.mark.parametrize("position", [0.0, 10.0, 10.4, 39.0])
def test_soft_cross_entropy_is_least_at_its_target(position):
    bins = torch.arange(40)
    best = -0.5 * ((bins - position) / 2) ** 2
    logits = best.clone().requires_grad_(True)
    loss = soft_cross_entropy(logits, torch.tensor(position))
    loss.backward()
    assert float(logits.grad.abs().max()) < 1e-6
    least = float(loss.detach())
    assert least == pytest.approx(float(torch.distributions.Categorical(logits=best).entropy()), abs=1e-4)
    for other in (best.roll(1), best.roll(-3), best * 2, best / 2, torch.zeros(40)):
        assert float(soft_cross_entropy(other, torch.tensor(position))) > least + 0.01


def test_soft_cross_entropy_grows_with_the_distance():
    sharp = [-0.5 * ((torch.arange(40) - centre) / 1.0) ** 2 for centre in (20, 21, 23, 27)]
    losses = [float(soft_cross_entropy(logits, torch.tensor(20.0))) for logits in sharp]
    assert losses == sorted(losses)
    assert losses[-1] > losses[0] + 5


def test_soft_cross_entropy_of_a_batch_is_that_of_its_rows():
    logits, position = torch.randn(2, 3, 40), torch.rand(2, 3) * 40
    losses = soft_cross_entropy(logits, position)
    assert losses.shape == (2, 3)
    for i, j in itertools.product(range(2), range(3)):
        assert float(losses[i, j]) == pytest.approx(float(soft_cross_entropy(logits[i, j], position[i, j])), abs=1e-5)


def test_integers_of_an_outline_may_be_a_little_off():
    logits = torch.zeros(3, FIRST_INTEGER + INTEGERS + 50)
    for row, centre in enumerate((300, 310, 600)):
        steps = torch.arange(INTEGERS)
        logits[row, FIRST_INTEGER : FIRST_INTEGER + INTEGERS] = 10 - 0.5 * ((steps - centre) / 8) ** 2
    near, beside, far = _soft_integer(logits, torch.full((3,), 300.0)).tolist()
    assert near < beside < far
    assert beside - near < 1 < far - near
    other = logits.clone()
    other[:, -1] = 30.0  # another id, no integer, is likelier
    assert float(_soft_integer(other, torch.full((3,), 300.0))[0]) > near + 10


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch's compiler imports
def test_on_a_card_questions_attend_as_their_mask_says():
    card = PackedAttention(677, 2, 402, 170, torch.device("cuda"))
    q, k, v, out = (torch.randn(2, 677 + 402, 4, 64, device="cuda") for _ in range(4))
    compiled = torch.compile(lambda *qkv: card(0, *qkv), dynamic=False)

    def gradients(attention):
        leaves = [x.clone().requires_grad_(True) for x in (q, k, v)]
        made = attention(*leaves)
        (made * out).sum().backward()
        return [made.detach(), *(leaf.grad for leaf in leaves)]

    def masked(q, k, v):
        image = torch.arange(677 + 402, device="cuda") < 677
        seen = torch.cat((image.expand(2, 1, 677, -1), card._mask()), 2)
        return functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), seen).transpose(1, 2)

    for lengths in ([[166, 88, 36, 112], [100, 2, 170, 130]], [[50, 52, 170, 130], [30, 40, 80, 90]]):
        begins = [[0, *itertools.accumulate(row)] for row in lengths]
        starts = [
            [b for b, n in zip(row, of, strict=False) for _ in range(n)]
            for row, of in zip(begins, lengths, strict=True)
        ]
        card.show(torch.tensor([[*row, *range(len(row), 402)] for row in starts], device="cuda"))
        for found, expected in zip(gradients(compiled), gradients(masked), strict=True):
            torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)
