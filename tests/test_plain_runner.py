import math
from typing import Any

import pytest
import torch
from torch import Tensor

from photonlite.errors import NumericalError
from photonlite.models.layers import MaskedAttention
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.model import MoondreamModel
from photonlite.request import Allowed, SamplingSettings, Token
from tests.models.moondream.golden import CASES, SKILLS, TOLERANCE, distance, embeddings, expected, loaded
from tests.plain import DenseCache, PlainRunner, Sampler
from tests.tiny import CPU, tiny_config, tiny_model


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


GREEDY = Sampler(SamplingSettings())
SHAPES = [
    pytest.param(tiny_config(), id="one-shared-kv-head"),
    pytest.param(tiny_config(text={"n_heads": 6, "n_kv_heads": 3, "dim": 24}), id="3-of-6-kv-heads"),
    pytest.param(tiny_config("moondream2", text={"n_kv_heads": 3, "n_layers": 4}), id="all-kv-heads"),
    pytest.param(tiny_config(vision={"crop_size": 28, "max_crops": 3}), id="grid-of-7"),
]
WORDS = [Token(n) for n in (40, 41, 42)]
MIXED = [Token(77), Token(5, (0.3,)), Token(5, (0.8,)), Token(6, (0.25, 0.5)), Token(78)]


@pytest.mark.parametrize("case", CASES)
def test_cached_prefill_equals_the_reference(case: dict[str, Any]) -> None:
    runner = PlainRunner(loaded().model, CPU, torch.float32)
    prefix = runner.new_cache(730)
    hidden = runner.prefill_image(prefix, embeddings(case))
    assert distance(hidden, expected(case, "prefix_hidden_last")) <= TOLERANCE

    for skill in SKILLS:
        cache = runner.new_cache(800)
        runner.copy(prefix, cache)
        last = runner.extend(cache, [Token(n) for n in case[f"{skill}_prompt_ids"]])
        assert distance(last, expected(case, f"{skill}.hidden_last")) <= TOLERANCE
        assert distance(loaded().model.logits(last), expected(case, f"{skill}.logits")) <= TOLERANCE


@pytest.mark.parametrize("case", CASES)
def test_spatial_references_equal_the_reference(case: dict[str, Any]) -> None:
    runner = PlainRunner(loaded().model, CPU, torch.float32)
    question = loaded().prompts.decode(case["spatial_refs_prompt_ids"][8:-1])
    prompt = loaded().prompts.query(question, reasoning=False, refs=case["spatial_refs"])
    cache = runner.new_cache(800)
    runner.prefill_image(cache, embeddings(case))

    logits = loaded().model.logits(runner.extend(cache, prompt))

    assert distance(logits, expected(case, "spatial_refs.logits")) <= TOLERANCE


def whole(model: MoondreamModel, image: Tensor | None, tokens: list[Token]) -> Tensor:
    """The last hidden state without a cache: one pass over everything, embedded one by one."""
    rows = [model.embed(torch.tensor([0]))]
    rows += [image] if image is not None else []
    for token in tokens:
        if len(token.values) == 1:
            rows.append(model.embed_coordinates(torch.tensor(token.values)))
        elif token.values:
            rows.append(model.embed_sizes(torch.tensor([token.values])))
        else:
            rows.append(model.embed(torch.tensor([token.id])))
    x = torch.cat(rows)[None]
    mask = torch.ones(x.shape[1], x.shape[1]).tril().bool()
    if image is not None:
        mask[: 1 + len(image), : 1 + len(image)] = True
    return model(x, torch.arange(x.shape[1]), MaskedAttention(mask))[0, -1]


@pytest.mark.parametrize("config", SHAPES)
@pytest.mark.parametrize("with_image", [True, False])
def test_decoding_with_a_cache_equals_the_whole_sequence(config: MoondreamConfig, with_image: bool) -> None:
    model = tiny_model(config)
    runner = PlainRunner(model, CPU, torch.float32)
    cache = runner.new_cache(config.text.max_context)
    image = None
    if with_image:
        pixels = torch.randint(0, 256, (3, config.vision.crop_size, config.vision.crop_size, 3), dtype=torch.uint8)
        image = runner.encode(pixels.numpy(), (1, 2))
        runner.prefill_image(cache, image)

    sequence = list(WORDS)
    hidden = runner.extend(cache, WORDS)
    for token in MIXED:
        assert torch.allclose(hidden, whole(model, image, sequence), atol=1e-4)
        hidden = runner.extend(cache, (token,))
        sequence.append(token)
    assert torch.allclose(hidden, whole(model, image, sequence), atol=1e-4)
    assert cache.num_computed_tokens == (config.prefix_length if with_image else 1) + len(sequence)


def test_a_prompt_may_hold_coordinates() -> None:
    model = tiny_model(tiny_config())
    runner = PlainRunner(model, CPU, torch.float32)

    hidden = runner.extend(runner.new_cache(20), [*MIXED, *WORDS])

    assert torch.allclose(hidden, whole(model, None, [*MIXED, *WORDS]), atol=1e-4)


def test_a_copied_prefix_is_not_changed() -> None:
    runner = PlainRunner(tiny_model(tiny_config()), CPU, torch.float32)
    prefix = runner.new_cache(26)
    runner.prefill_image(prefix, torch.randn(25, 24))
    before = torch.stack(prefix.keys).clone()
    answers = []
    for _ in range(2):
        cache = runner.new_cache(60)
        runner.copy(prefix, cache)
        answers.append(runner.extend(cache, WORDS))

    assert torch.equal(answers[0], answers[1])
    assert torch.equal(torch.stack(prefix.keys), before)


def test_a_full_cache_refuses_tokens() -> None:
    cache = DenseCache(tiny_model(tiny_config()).shape, 4, CPU, torch.float32)
    cache.reserve(3)
    with pytest.raises(ValueError, match="2 positions after 3 exceed the cache's 4"):
        cache.reserve(2)


class Heads:
    """Logits instead of a network; counts calls of each head."""

    def __init__(self, **logits: list[float]) -> None:
        self.shape = tiny_model(tiny_config()).shape
        self.size_octaves = 10.0
        self.numbers = self
        self._logits = {name: torch.tensor(values) for name, values in logits.items()}
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def head(hidden: Tensor) -> Tensor:
            self.asked.append(name)
            return self._logits[name]

        return head

    def coordinate_of(self, index: Tensor, bins: int) -> Tensor:
        return index.float() / bins

    def size_of(self, index: Tensor, bins: int) -> Tensor:
        return index.float() / 100


def choose(heads: Heads, allowed: Allowed) -> Token:
    runner = PlainRunner(heads, CPU, torch.float32)  # type: ignore[arg-type]
    return runner.next_token(torch.zeros(24), allowed, GREEDY)


def test_forced_tokens_need_no_language_head() -> None:
    heads = Heads(coordinate_logits=[0.0, 0, 0, 5])

    token = choose(heads, Allowed((5,), coordinate=5))

    assert heads.asked == ["coordinate_logits"]
    assert (token.id, token.values, token.probability) == (5, (0.75,), 1.0)
    assert token.masses[0] == pytest.approx(math.exp(5) / (math.exp(5) + 3))


def test_a_size_has_a_width_and_a_height() -> None:
    heads = Heads(size_logits=[[0.0, 9, 0], [0, 0, 9]])

    token = choose(heads, Allowed((6,), size=6))

    assert token.values == pytest.approx((0.01, 0.02))
    assert len(token.masses) == 2


def test_the_end_needs_no_coordinate() -> None:
    heads = Heads(logits=[3.0, 0, 0, 0, 0, 0, 0])

    token = choose(heads, Allowed((5, 0), coordinate=5, end=0))

    assert (token.id, token.values, heads.asked) == (0, (), ["logits"])


def test_one_more_object_carries_a_coordinate_and_its_probability() -> None:
    heads = Heads(logits=[0.0, 0, 0, 7, 0, 2, 0], coordinate_logits=[4.0, 0])

    narrow = choose(heads, Allowed((5, 0), coordinate=5, end=0))
    wide = choose(heads, Allowed(None, coordinate=5, end=0))

    assert narrow.id == wide.id == 5
    assert narrow.values == wide.values == (0.0,)
    assert narrow.probability == pytest.approx(1 / (1 + math.exp(-2)))
    assert wide.probability == pytest.approx(1 - 1 / (5 + math.exp(7) + math.exp(2)))


def test_the_coordinate_id_is_text_where_the_grammar_says_so() -> None:
    heads = Heads(logits=[0.0, 0, 0, 0, 0, 9, 0])

    assert choose(heads, Allowed()) == Token(5)
    assert heads.asked == ["logits"]


def test_damaged_weights_raise_an_error() -> None:
    model = tiny_model(tiny_config())
    model.text.blocks[1].mlp.fc2.bias.fill_(math.nan)
    runner = PlainRunner(model, CPU, torch.float32)
    hidden = runner.extend(runner.new_cache(8), WORDS)

    for allowed in (
        Allowed(),
        Allowed((5, 0), coordinate=5, end=0),
        Allowed((5,), coordinate=5),
        Allowed((6,), size=6),
    ):
        with pytest.raises(NumericalError):
            runner.next_token(hidden, allowed, GREEDY)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_single_precision(dtype: torch.dtype) -> None:
    exact = tiny_model(tiny_config())
    coarse = tiny_model(tiny_config()).to(dtype)
    image = torch.randn(25, 24)
    last = []
    for model, kind in ((exact, torch.float32), (coarse, dtype)):
        runner = PlainRunner(model, CPU, kind)
        cache = runner.new_cache(60)
        runner.prefill_image(cache, image.to(kind))
        hidden = runner.extend(cache, [*WORDS, *MIXED])
        assert hidden.dtype == kind
        last.append(hidden.float())

    assert distance(*last) < 0.1 * float(last[0].abs().max())
