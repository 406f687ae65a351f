import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from photonlite.errors import NumericalError
from photonlite.grammar.automata.tables import words
from photonlite.grammar.decoding.grammars import MaskCache
from photonlite.kernels.columns import PARAM_COLUMNS, PENDING_COLUMNS, RESULT_COLUMNS, U0, U1, U2
from photonlite.kernels.reference.embedding import InputTables, embed_pending
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.request import MAX_SCORED, Allowed, SamplingSettings, Token
from photonlite.runner.sampling_params import (
    SampledRow,
    Variant,
    read_results,
    uniform,
    write_scored,
)
from photonlite.runner.slots import NO_VALUE
from photonlite.runner.tokens import InputEmbedding, apply_head, sample_from_hidden
from tests.plain import PlainRunner, Sampler
from tests.runner.needs import SamplingParams, variant_of, write_choice
from tests.tiny import CPU, tiny_config, tiny_model

FEWER_SIZES, MORE_SIZES = tiny_config(), tiny_config(region={"size_out_dim": 130})  # 40 coordinates; 30 and 65 sizes
VOCAB, COORDINATES, SIZES = 70, 100, 20
END, X, WH = 0, 5, 6
ANY = Allowed()
FORCED_X, FORCED_WH, WORD = Allowed((X,), coordinate=X), Allowed((WH,), size=WH), Allowed((7,))
REASONING = Allowed(suppressed=(1, 2), coordinate=X)
DECIDES, ANY_DECIDES = Allowed((X, END), coordinate=X, end=END), Allowed(None, coordinate=X, end=END)
KINDS = (
    ANY, FORCED_X, FORCED_WH, WORD, REASONING, DECIDES, ANY_DECIDES,
    Allowed(suppressed=(3, 9, 69)),
    Allowed((2, 8, 30, 31, 32, 63, 64, 69)),
    Allowed((4, X, WH), coordinate=X, size=WH),
    Allowed((END, X), coordinate=X, end=END),
    Allowed((X, 40), coordinate=X, end=40),
    Allowed((40, X), coordinate=X, end=40),
    Allowed((3, X, 12, 40), coordinate=X, end=40),
    Allowed(None, (1, 2), coordinate=X, end=40),
)  # fmt: skip
SCORED = (
    *KINDS,
    Allowed((2, 8, 30, 31, 69), scored=(69, 2)),
    Allowed((X, 40), coordinate=X, scored=(X, 40)),
    Allowed((7,), scored=(7,)),
    Allowed(None, (1, 2), scored=(1, 3)),
)
GREEDY = (0.0, 1.0)
FIRST = (1.0, 0.0)  # top-p leaves one: which one is a question of ties
WARM = (0.7, 0.9)
DAMAGE = {1001.0: math.nan, 1002.0: math.inf, 1003.0: -math.inf}
DIM = VOCAB + COORDINATES + 2 * SIZES


@pytest.mark.parametrize("config", [FEWER_SIZES, MORE_SIZES])
def test_what_was_sampled_is_embedded_as_its_value_would_be(config: MoondreamConfig) -> None:
    model = tiny_model(config).double()
    inputs = InputEmbedding(model, CPU)
    largest = len(inputs.sizes) - 1
    rows = [[7, -1, -1], [5, 0, -1], [5, 39, -1], [6, 0, largest], [6, largest, 3], [271, -1, -1]]

    found = inputs.pending(torch.tensor(rows, dtype=torch.int32), torch.arange(len(rows), dtype=torch.int32))

    for row, (number, first, second) in enumerate(rows):
        if second >= 0:
            size = torch.tensor([[inputs.sizes[first], inputs.sizes[second]]])
            expected = model.embed_sizes(size)[0]
        elif first >= 0:
            expected = model.embed_coordinates(torch.tensor([inputs.coordinates[first]]))[0]
        else:
            expected = model.embed(torch.tensor(number))
        assert torch.allclose(found[row], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_fused_kernels_truth_embeds_as_the_model_does_bit_for_bit(dtype: torch.dtype) -> None:
    model = tiny_model(MORE_SIZES).to(dtype)
    inputs, weights = InputEmbedding(model, CPU), model.input_weights
    coordinates = model.embed_coordinates(torch.tensor(inputs.coordinates))
    sizes = torch.tensor(inputs.sizes)
    tables = InputTables(weights.words, coordinates, sizes, weights.frequencies, weights.weight, weights.bias)
    table = torch.tensor([[7, -1, -1], [5, 0, -1], [271, -1, -1], [6, 64, 3], [5, 39, -1], [6, 0, 64]]).int()

    for rows in ([0, 1, 2, 3, 4, 5], [3, 0], [5]):
        chosen = torch.tensor(rows, dtype=torch.int32)
        assert torch.equal(embed_pending(table, chosen, tables), inputs.pending(table, chosen))


def test_tokens_are_embedded_by_their_values_also_at_the_ends_of_the_range() -> None:
    model = tiny_model(FEWER_SIZES).double()
    tokens = [(7,), (5, 0.0), (5, 1.0), (6, 0.0, 1.0), (6, 0.3, 0.0)]
    bits = [
        [number, *(np.float32(value).view(np.int32) for value in values), *[NO_VALUE] * (2 - len(values))]
        for number, *values in tokens
    ]

    found = InputEmbedding(model, CPU).tokens(torch.tensor(np.array(bits, np.int32)))

    assert torch.equal(found[0], model.embed(torch.tensor(7)))
    assert torch.allclose(found[1:3], model.embed_coordinates(torch.tensor([0.0, 1.0])), rtol=0, atol=1e-12)
    sizes = model.embed_sizes(torch.tensor([[0.0, 1.0], [0.3, 0.0]]))
    assert torch.allclose(found[3:], sizes, rtol=0, atol=1e-12)


def damaged(logits: Tensor) -> Tensor:
    for code, value in DAMAGE.items():
        logits = logits.masked_fill(logits == code, value)
    return logits


class Heads:
    """Hidden states that are the logits of all heads, one after the other; codes stand for what is no number."""

    size_octaves = 1.0
    heads = None

    def __init__(self) -> None:
        self.numbers = self
        self.shape = None
        self.asked: list[str] = []

    def logits(self, hidden: Tensor) -> Tensor:
        self.asked.append("text")
        return damaged(hidden[..., :VOCAB])

    def coordinate_logits(self, hidden: Tensor) -> Tensor:
        self.asked.append("coordinate")
        return damaged(hidden[..., VOCAB : VOCAB + COORDINATES])

    def size_logits(self, hidden: Tensor) -> Tensor:
        self.asked.append("size")
        return damaged(hidden[..., VOCAB + COORDINATES :]).unflatten(-1, (2, SIZES))

    def coordinate_of(self, index: Tensor, bins: int) -> Tensor:
        return index.float()

    def size_of(self, index: Tensor, bins: int) -> Tensor:
        return index.float()


def packed(choices: list[SamplingParams | None]) -> tuple[Tensor, Tensor]:
    """Parameters and masks; masks that are not written hold garbage."""
    params = np.zeros((len(choices), PARAM_COLUMNS), np.int32)
    masks = np.full((len(choices), words(VOCAB)), 0x5A5A5A5A, np.int32)
    cache = MaskCache(VOCAB)
    for choice, row, mask in zip(choices, params, masks, strict=True):
        write_choice(choice, row, mask, cache)
    return torch.from_numpy(params), torch.from_numpy(masks)


def scores_of(choices: list[SamplingParams | None]) -> tuple[Tensor, Tensor]:
    ids = np.full((len(choices), MAX_SCORED), 3, np.int32)  # rubbish of an earlier step
    for choice, row in zip(choices, ids, strict=True):
        if choice is not None and choice.allowed.scored:
            write_scored(choice.allowed.scored, row, VOCAB)
    return torch.from_numpy(ids), torch.zeros(len(choices), MAX_SCORED)


def choose(heads: Any, hidden: Tensor, params: Tensor, masks: Tensor, *, variant: Variant, sampled: bool) -> Tensor:
    """Results; the pending table gets the same, each row in the place of another."""
    rows = len(hidden)
    pending = torch.full((rows, PENDING_COLUMNS), -7, dtype=torch.int32, device=hidden.device)
    results = torch.empty(rows, RESULT_COLUMNS, dtype=torch.int32, device=hidden.device)
    place = torch.arange(rows, dtype=torch.int32, device=hidden.device).flip(0)
    sample_from_hidden(heads, hidden, params, masks, results, pending, place, variant=variant, sampled=sampled)
    if hidden.device == CPU:  # no graph can hold the comparison
        assert torch.equal(pending.flip(0), results[:, :PENDING_COLUMNS])
    return results


def chosen(hidden: Tensor, choices: list[SamplingParams | None], heads: Any = None) -> list[SampledRow]:
    variant, sampled = variant_of(choices)
    results = choose(heads or Heads(), hidden, *packed(choices), variant=variant, sampled=sampled)
    return read_results(results.numpy(), len(choices))


def oracle(hidden: Tensor, choice: SamplingParams | None, seen: frozenset[int] = frozenset()) -> Token | None:
    """What the plain loop chooses, bins for values; None where it fails."""
    if choice is None:
        return Token(0)
    runner = PlainRunner(Heads(), CPU, torch.float32)  # type: ignore[arg-type]
    sampler = Sampler(
        SamplingSettings(
            temperature=choice.temperature,
            top_p=choice.top_p,
            top_k=choice.top_k or None,
            seed=choice.seed,
            repetition_penalty=choice.penalty,
        ),
        choice.index,
        seen,
    )
    try:
        return runner.next_token(hidden, choice.allowed, sampler)
    except NumericalError:
        return None


def assert_same(result: SampledRow, token: Token | None) -> None:
    assert bool(result.finite) == (token is not None)
    if token is not None:
        count = len(token.values)
        assert result[:3] == (token.id, *map(int, token.values), *[-1] * (2 - count))
        assert result.probability == pytest.approx(token.probability, rel=1e-5)
        assert result[5 : 5 + count] == pytest.approx(token.masses, rel=1e-5)
        assert all(mass == 0 for mass in result[5 + count :])


def random_hidden(rng: random.Random, rows: int, dtype: torch.dtype) -> Tensor:
    """Coarse logits, so that ties abound; some rows are damaged in one place or everywhere."""
    hidden = torch.tensor([[rng.randint(-3, 3) / 2 for _ in range(DIM)] for _ in range(rows)], dtype=dtype)
    for row in hidden:
        damage = rng.random()
        if damage < 0.2:
            row[rng.randrange(DIM)] = rng.choice(list(DAMAGE))
        elif damage < 0.25:
            row[:] = rng.choice([1001.0, 1003.0])
    return hidden


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", [[GREEDY], [GREEDY, FIRST, WARM]])
@pytest.mark.parametrize("kinds", [KINDS, (ANY, WORD), (FORCED_X, WORD), (FORCED_WH, WORD), (DECIDES, FORCED_X)])
def test_every_row_of_a_batch_gets_what_the_plain_loop_gives_it(
    dtype: torch.dtype, settings: list[tuple[float, float]], kinds: tuple[Allowed, ...]
) -> None:
    rng = random.Random(1)
    for _ in range(15):
        rows = rng.randint(1, 16)
        hidden = random_hidden(rng, rows, dtype)
        choices = [SamplingParams(rng.choice(kinds), *rng.choice(settings), rng.randrange(99), 2) for _ in range(rows)]
        wanted: list[SamplingParams | None] = [choice if rng.random() < 0.9 else None for choice in choices]

        for result, row, choice in zip(chosen(hidden, wanted), hidden, wanted, strict=True):
            assert_same(result, oracle(row, choice))


def test_every_row_of_a_batch_gets_the_scores_that_the_plain_loop_gives_it() -> None:
    rng = random.Random(2)
    for _ in range(15):
        rows = rng.randint(2, 16)
        hidden = random_hidden(rng, rows, torch.float64)
        settings = [rng.choice([GREEDY, WARM]) for _ in range(rows)]
        choices: list[SamplingParams | None] = [
            SamplingParams(rng.choice(SCORED), *setting, 1, 2) for setting in settings
        ]
        choices[0] = SamplingParams(SCORED[-1], *GREEDY, 1, 2)
        variant, sampled = variant_of(choices)
        target = (
            torch.empty(rows, RESULT_COLUMNS, dtype=torch.int32),
            torch.zeros(rows, PENDING_COLUMNS, dtype=torch.int32),
            torch.arange(rows, dtype=torch.int32),
        )
        scores = scores_of(choices)
        sample_from_hidden(Heads(), hidden, *packed(choices), *target, scores, variant=variant, sampled=sampled)  # type: ignore[arg-type]

        assert variant == "scored"
        for result, row, choice, values in zip(
            read_results(target[0].numpy(), rows), hidden, choices, scores[1], strict=True
        ):
            token = oracle(row, choice)
            assert_same(result, token)
            if token is not None:
                assert values[: len(token.scores)].tolist() == pytest.approx(token.scores, rel=1e-5, nan_ok=True)


def test_every_row_of_a_batch_gets_its_own_penalty_and_the_scores_of_the_model_without_it() -> None:
    rng = random.Random(3)
    changed = 0
    for _ in range(30):
        rows = rng.randint(2, 16)
        hidden = random_hidden(rng, rows, torch.float64)
        kinds = [rng.choice(SCORED) for _ in range(rows)]
        penalties = [rng.choice((1.0, 2.0, 0.5)) if allowed.free else 1.0 for allowed in kinds]
        choices: list[SamplingParams | None] = [
            SamplingParams(allowed, *rng.choice([GREEDY, WARM]), 1, 2, penalty=penalty)
            for allowed, penalty in zip(kinds, penalties, strict=True)
        ]
        variant, sampled = variant_of(choices)
        seen = [frozenset(rng.sample(range(VOCAB), rng.choice((0, 3, 30, VOCAB)))) for _ in range(rows)]
        target = torch.empty(rows, RESULT_COLUMNS, dtype=torch.int32)
        pending = torch.zeros(rows, PENDING_COLUMNS, dtype=torch.int32), torch.arange(rows, dtype=torch.int32)
        scores = scores_of(choices)
        masks = torch.zeros(rows, words(VOCAB), dtype=torch.int32)
        for mask, ids in zip(masks.numpy().view(np.uint32), seen, strict=True):
            for index in ids:
                mask[index // 32] |= np.uint32(1 << index % 32)
        given = masks if variant == "penalized" else None
        more: dict[str, Any] = {"variant": variant, "sampled": sampled}
        sample_from_hidden(Heads(), hidden, *packed(choices), target, *pending, scores, given, **more)  # type: ignore[arg-type]

        for result, row, choice, ids, values in zip(
            read_results(target.numpy(), rows), hidden, choices, seen, scores[1], strict=True
        ):
            token = oracle(row, choice, ids)
            assert_same(result, token)
            changed += token is not None and token != oracle(row, choice)
            if token is not None and row.max() < min(DAMAGE):
                assert values[: len(token.scores)].tolist() == pytest.approx(token.scores, rel=1e-5, nan_ok=True)
    assert changed > 5


@pytest.mark.parametrize(
    ("kinds", "asked"),
    [
        ([ANY, WORD], ["text"]),
        ([FORCED_X, WORD], ["coordinate"]),
        ([FORCED_WH], ["size"]),
        ([DECIDES, FORCED_X], ["text", "coordinate"]),
        ([FORCED_WH, FORCED_X], ["text", "coordinate", "size"]),
    ],
)
def test_heads_outside_the_variant_are_not_read(kinds: list[Allowed], asked: list[str]) -> None:
    heads = Heads()
    chosen(torch.zeros(len(kinds), DIM), [SamplingParams(allowed, *GREEDY, 0, 0) for allowed in kinds], heads)

    assert heads.asked == asked


@pytest.mark.parametrize("allowed", [None, WORD, FORCED_X, ANY])
def test_a_hidden_state_that_is_not_finite_is_reported_even_where_no_head_is_read(allowed: Allowed | None) -> None:
    hidden = torch.zeros(3, DIM)
    hidden[1, 7] = math.nan

    results = chosen(hidden, [allowed and SamplingParams(allowed, *GREEDY, 0, 0)] * 3)

    assert [result.finite for result in results] == [1, 0, 1]


def test_ties_of_a_decision_go_where_the_list_says_even_when_drawn() -> None:
    hidden = torch.zeros(1, DIM)
    for temperature, top_p in (GREEDY, FIRST):
        for end in (END, 40):
            listed = (Allowed((X, end), coordinate=X, end=end), Allowed((end, X), coordinate=X, end=end))
            ids = [chosen(hidden, [SamplingParams(allowed, temperature, top_p, 0, 0)])[0].id for allowed in listed]
            assert ids == [X, end]
    assert chosen(hidden, [SamplingParams(ANY_DECIDES, *GREEDY, 0, 0)])[0].id == END
    assert chosen(hidden, [SamplingParams(Allowed(None, coordinate=X, end=40), *GREEDY, 0, 0)])[0].id == X


def expected_shares(logits: Tensor, temperature: float, top_p: float, top_k: int) -> np.ndarray[Any, Any]:
    """The softmax of the first top-k, cut at top-p, in float64 and entry by entry."""
    weights = (logits.double() / temperature).softmax(-1).tolist()
    order = sorted(range(len(weights)), key=lambda i: -weights[i])[: top_k or None]
    total = sum(weights[i] for i in order)
    weights = [weight / total for weight in weights]
    kept, before = [0.0] * len(weights), 0.0
    for index in order:
        kept[index] = weights[index] if before <= top_p else 0.0
        before += weights[index]
    return np.array(kept) / sum(kept)


def on_grid(logits: Tensor, params: SamplingParams, lane: int, variant: Variant) -> Tensor:
    """Results of one row for evenly spread random numbers in one lane."""
    count = 8192
    rows, masks = packed([params])
    rows = rows.repeat(count, 1)
    rows.view(torch.float32)[:, lane] = (torch.arange(count) + 0.5) / count
    return choose(Heads(), logits.expand(count, -1), rows, masks.expand(count, -1), variant=variant, sampled=True)


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"),
    [(1.0, 1.0, 0), (0.5, 0.9, 0), (2.0, 0.6, 0), (1.0, 0.3, 0), (2.0, 1.0, 3), (2.0, 0.6, 4), (1.0, 1.0, 10**6)],
)
def test_draws_have_the_proportions_of_the_restricted_softmax(temperature: float, top_p: float, top_k: int) -> None:
    hidden = torch.randn(DIM, generator=torch.Generator().manual_seed(3)) * 2
    heads = Heads()
    cases: list[tuple[Allowed, int, Variant, int, Tensor]] = [
        (ANY, U0, "text", 0, heads.logits(hidden)),
        (FORCED_X, U1, "coordinate", 1, heads.coordinate_logits(hidden)),
        (FORCED_WH, U1, "size", 1, heads.size_logits(hidden)[0]),
        (FORCED_WH, U2, "size", 2, heads.size_logits(hidden)[1]),
    ]
    for allowed, lane, variant, column, logits in cases:
        asked = SamplingParams(allowed, temperature, top_p, 0, 0, top_k)
        drawn = on_grid(hidden, asked, lane, variant)[:, column]
        counts = drawn.bincount(minlength=len(logits)).numpy()
        wanted = expected_shares(logits, temperature, top_p, top_k) * len(drawn)
        assert np.abs(counts - wanted).max() <= 1.5


def with_numbers(
    allowed: Allowed, temperature: float, top_p: float, numbers: list[float], variant: Variant = "text"
) -> list[int]:
    """Ids of a row in which all logits are equal, for some random numbers."""
    params, masks = packed([SamplingParams(allowed, temperature, top_p, 0, 0)] * len(numbers))
    params.view(torch.float32)[:, U0] = torch.tensor(numbers)
    hidden = torch.zeros(len(numbers), DIM)
    return choose(Heads(), hidden, params, masks, variant=variant, sampled=True)[:, 0].tolist()


def test_an_edge_belongs_to_what_comes_after_it() -> None:
    two = Allowed((3, 8))

    assert with_numbers(two, 1.0, 1.0, [0.0, 0.4999, 0.5, 0.9999]) == [3, 3, 8, 8]
    assert with_numbers(two, 1.0, 0.5, [0.4999, 0.5]) == [3, 8]  # those before hold 0.5, which is not more than top-p
    assert with_numbers(two, 1.0, 0.4999, [0.4999, 0.5]) == [3, 3]


def test_a_greedy_row_among_drawn_ones_takes_the_first_of_equals() -> None:
    assert with_numbers(Allowed((3, 8)), 0.0, 1.0, [0.0, 0.9999]) == [3, 3]
    assert with_numbers(Allowed((X, END, 9), coordinate=X, end=END), 0.0, 1.0, [0.0, 0.9999], "mixed") == [X, X]
    assert with_numbers(ANY_DECIDES, 0.0, 1.0, [0.0, 0.9999], "mixed") == [END, END]


def test_double_precision_is_not_rounded_to_ties() -> None:
    hidden = torch.ones(1, DIM, dtype=torch.float64)
    hidden[0, [9, VOCAB + 4]] += 1e-12

    assert chosen(hidden, [SamplingParams(ANY, *GREEDY, 0, 0)])[0].id == 9
    assert chosen(hidden, [SamplingParams(FORCED_X, *GREEDY, 0, 0)])[0].bin0 == 4


def test_a_decision_is_drawn_among_all_its_ids() -> None:
    hidden = torch.randn(DIM, generator=torch.Generator().manual_seed(4))

    for allowed, logits in ((DECIDES, hidden[[X, END]]), (ANY_DECIDES, hidden[:VOCAB].roll(-1))):
        ids = on_grid(hidden, SamplingParams(allowed, 1.0, 1.0, 0, 0), U0, "mixed")[:, 0]
        assert set(ids.tolist()) == {X, END}
        share = float((ids == X).float().mean())
        assert share == pytest.approx(float(1 - logits.softmax(-1)[-1]), abs=2e-4)


@pytest.mark.parametrize("number", [0.0, 2.0**-24, 1 - 2.0**-24])
def test_the_ends_of_the_random_numbers_never_reach_what_is_not_allowed(number: float) -> None:
    rng = random.Random(2)
    kinds = [kind for kind in KINDS if kind.forced is None and kind.end is None] * 40
    scale = torch.tensor([rng.choice([0.1, 1.0, 30.0, 1000.0]) for _ in kinds])[:, None]
    hidden = torch.randn(len(kinds), DIM, generator=torch.Generator().manual_seed(5)) * scale
    choices: list[SamplingParams | None] = [
        SamplingParams(kind, rng.choice([1e-60, 0.5, 1.0, 1e300]), rng.choice([0.0, 0.5, 1.0]), 0, 0) for kind in kinds
    ]
    params, masks = packed(choices)
    params.view(torch.float32)[:, [U0, U1, U2]] = number

    results = read_results(choose(Heads(), hidden, params, masks, variant="mixed", sampled=True).numpy(), len(kinds))

    assert all(kind.permits(result.id) for kind, result in zip(kinds, results, strict=True))
    assert all(result.finite for result in results)
    if number == 0:
        # The most probable entry comes first.
        greedy = chosen(hidden, [SamplingParams(kind, *GREEDY, 0, 0) for kind in kinds])
        cold = [choice is not None and choice.temperature < 1e200 for choice in choices]
        assert all(a.id == b.id or not order for a, b, order in zip(results, greedy, cold, strict=True))


def test_a_row_draws_the_same_in_any_company() -> None:
    rng = random.Random(6)
    rows = 24
    hidden = torch.randn(rows, DIM, generator=torch.Generator().manual_seed(6))
    choices = [SamplingParams(rng.choice(KINDS), rng.choice([0.0, 1.0]), 0.95, seed, 3) for seed in range(rows)]
    alone = [chosen(hidden[row : row + 1], [choices[row]])[0] for row in range(rows)]

    order = rng.sample(range(rows), 17)
    together = chosen(hidden[order], [choices[row] for row in order])

    for row, result in zip(order, together, strict=True):
        assert result[:4] == alone[row][:4]
        assert result[4:] == pytest.approx(alone[row][4:], rel=1e-6)


def test_seed_and_index_decide_what_is_drawn() -> None:
    choices = [SamplingParams(ANY, 1.0, 1.0, seed, index) for seed in range(4) for index in range(4)]

    ids = [result.id for result in chosen(torch.zeros(len(choices), DIM), list(choices))]

    assert ids == [int(uniform(choice.seed, choice.index, 0) * VOCAB) for choice in choices]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("region", [{}, {"decoder": "linear"}, {"norm": True}, {"decoder": "linear", "norm": True}])
def test_heads_as_data_are_the_models_own(region: dict[str, Any], dtype: torch.dtype) -> None:
    model = tiny_model(tiny_config(region=region)).to(dtype)
    hidden = torch.randn(5, 24, generator=torch.Generator().manual_seed(1)).to(dtype)

    for head, logits in (
        (model.heads.text, model.logits(hidden)),
        (model.heads.coordinate, model.coordinate_logits(hidden)),
        (model.heads.size, model.size_logits(hidden).flatten(1)),
    ):
        assert torch.equal(apply_head(head, hidden), logits)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kinds", [KINDS, (ANY, WORD), (FORCED_X, WORD), (FORCED_WH, WORD)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_captured_graph_chooses_what_the_cpu_chooses(kinds: tuple[Allowed, ...], temperature: float) -> None:
    rng = random.Random(7)
    rows = 16
    batches = []
    for _ in range(4):
        hidden = torch.randn(rows, DIM)
        choices: list[SamplingParams | None] = [
            SamplingParams(kind, temperature, 0.9, rng.randrange(99), 0)
            for kind in (*kinds, *rng.choices(kinds, k=rows))[:rows]
        ]
        batches.append((hidden, choices))
    variant, sampled = variant_of(batches[0][1])
    buffers = [torch.zeros(rows, DIM).cuda(), *(tensor.cuda() for tensor in packed(batches[0][1]))]
    choose(Heads(), *buffers, variant=variant, sampled=sampled)  # type: ignore[arg-type]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = choose(Heads(), *buffers, variant=variant, sampled=sampled)  # type: ignore[arg-type]

    for hidden, choices in batches:
        for buffer, source in zip(buffers, (hidden, *packed(choices)), strict=True):
            buffer.copy_(source)
        graph.replay()
        for result, wanted in zip(read_results(out.cpu().numpy(), rows), chosen(hidden, choices), strict=True):
            assert result[:4] == wanted[:4]
            assert result[4:] == pytest.approx(wanted[4:], rel=1e-4, abs=1e-6)


class PlacesAlone(Heads):
    """Heads without sizes."""

    size_octaves = 0.0

    def size_logits(self, hidden: Tensor) -> Tensor:
        raise AssertionError("there are no sizes")

    size_of = size_logits  # type: ignore[assignment]


@pytest.mark.parametrize("variant", ["mixed", "scored", "decide"])
def test_a_model_with_coordinates_and_no_sizes_samples_in_every_variant(variant: Variant) -> None:
    hidden = random_hidden(random.Random(4), 6, torch.float64).nan_to_num(0.0).clamp(-3, 3)
    choices: list[SamplingParams | None] = [
        SamplingParams(allowed, *GREEDY, 1, 2) for allowed in (FORCED_X, DECIDES, WORD, ANY, ANY_DECIDES, REASONING)
    ]

    found = choose(PlacesAlone(), hidden, *packed(choices), variant=variant, sampled=False)

    for result, row, choice in zip(read_results(found.numpy(), 6), hidden, choices, strict=True):
        assert_same(result, oracle(row, choice))


def test_a_model_with_coordinates_and_no_sizes_embeds_words_coordinates_and_places_of_images() -> None:
    model = tiny_model(FEWER_SIZES)
    model.size_octaves = 0.0
    inputs = InputEmbedding(model, CPU)

    pending = torch.tensor([[7, -1, -1], [5, 39, -1]], dtype=torch.int32)
    found = inputs.pending(pending, torch.arange(2, dtype=torch.int32))
    half = int(np.float32(0.5).view(np.int32))
    rows = [[7, NO_VALUE, NO_VALUE], [5, half, NO_VALUE], [-1, NO_VALUE, NO_VALUE]]
    tokens = inputs.tokens(torch.tensor(rows, dtype=torch.int32))

    assert inputs.sizes == []
    assert torch.equal(found[0], model.embed(torch.tensor(7)))
    assert torch.allclose(found[1], model.embed_coordinates(torch.tensor(inputs.coordinates[39:40]))[0])
    assert torch.equal(tokens[0], found[0])
    assert torch.allclose(tokens[1], model.embed_coordinates(torch.tensor([0.5]))[0])
    assert tokens[2].isfinite().all()  # replaced by the image
