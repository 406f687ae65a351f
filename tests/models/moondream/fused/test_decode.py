import copy
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from photonlite.kernels import cards
from photonlite.kernels.cards import Card
from photonlite.kernels.fp8 import has_fp8
from photonlite.kernels.reference.attention import FP8
from photonlite.kernels.small_batch_gemm import MAX_ROWS
from photonlite.kernels.triton_utils import HAS_TRITON
from photonlite.models.base import NextPositions
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.fused import decode as module
from photonlite.models.moondream.fused.decode import FusedDecode
from photonlite.models.moondream.model import MoondreamModel
from photonlite.runner.buffers import PagedCache
from photonlite.runner.decode import decode_attention
from photonlite.runner.slots import PAGES, POSITION, WRITE_SLOT
from tests.tiny import tiny_config, tiny_model

SCALES = (0.25, 0.125)
CONFIGS = [
    pytest.param(tiny_config(), id="one-shared-kv-head"),
    pytest.param(tiny_config("moondream2", text={"n_heads": 6, "n_kv_heads": 3}), id="3-of-6-kv-heads"),
    pytest.param(tiny_config(text={"n_layers": 1, "n_kv_heads": 3}), id="one-layer"),
]


class Context:
    """Sequences of some lengths in a cache of random keys and values, scattered over its pages.

    Args:
        model: Whose cache it is.
        lengths: Positions of each sequence.
        page: Positions of a page.
        seed: Of keys, values and pages; keys and values are the same for models of any type.
        kv_dtype: Of the cache; that of the model unless given.
    """

    def __init__(
        self,
        model: MoondreamModel,
        lengths: list[int],
        *,
        page: int = 16,
        seed: int = 0,
        kv_dtype: torch.dtype | None = None,
        steps: int = 10,
    ) -> None:
        self._model = model
        weight, shape = model.text.wte, model.shape
        self.device, self.dtype = weight.device, weight.dtype
        generator = torch.Generator(self.device).manual_seed(seed)
        each = -(-(max(lengths) + steps) // page)
        pages = 1 + each * len(lengths)
        scales = [SCALES] * shape.layers if kv_dtype == FP8 else []
        self.cache = PagedCache(shape, pages, page, self.device, kv_dtype or self.dtype, scales)
        for kept, scale in zip((self.cache.keys, self.cache.values), SCALES if scales else (1.0, 1.0), strict=True):
            for layer in kept:
                numbers = torch.randn(layer.shape, generator=generator, device=self.device)
                layer.copy_((numbers.bfloat16().float() / scale).to(kept.dtype))
        order = torch.randperm(pages - 1, generator=generator, device=self.device) + 1
        self.rows = torch.zeros(len(lengths), PAGES + each, dtype=torch.int32, device=self.device)
        self.rows[:, POSITION] = torch.tensor(lengths, device=self.device)
        self.rows[:, PAGES:] = order.view(len(lengths), each)
        self._page = page
        self._aim()

    def advance(self) -> None:
        self.rows[:, POSITION] += 1
        self._aim()

    def fused(self, decoder: FusedDecode, x: Tensor) -> Tensor:
        given = NextPositions(self.rows[:, POSITION], self.rows[:, WRITE_SLOT], self.rows[:, PAGES:])
        with torch.inference_mode():
            return decoder(x.to(self.device, self.dtype, copy=True), given, self.cache)

    def plain(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            attention = decode_attention(self.cache, self.rows)
            x = x.to(self.device, self.dtype)[:, None]
            return self._model.forward(x, self.rows[:, POSITION : POSITION + 1], attention)[:, 0]

    def _aim(self) -> None:
        position = self.rows[:, POSITION].long()
        page = self.rows[:, PAGES:].gather(1, (position // self._page)[:, None])[:, 0]
        self.rows[:, WRITE_SLOT] = page * self._page + position % self._page


def embeddings(rows: int, dim: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


def decoder_of(model: MoondreamModel) -> FusedDecode:
    return FusedDecode(model.config.text, model.packed_blocks)


@pytest.mark.parametrize("kv_dtype", [torch.float64, FP8], ids=["wide-kv", "fp8-kv"])
@pytest.mark.parametrize("page", [1, 4, 32])
@pytest.mark.parametrize("config", CONFIGS)
def test_steps_equal_those_of_the_plain_model(config: MoondreamConfig, page: int, kv_dtype: torch.dtype) -> None:
    model = tiny_model(config).double()
    decoder = decoder_of(model)
    fused, plain = (Context(model, [31, 0, 63, 64, 7], page=page, kv_dtype=kv_dtype) for _ in range(2))

    for step in range(5):
        x = embeddings(5, 24, step).double()
        torch.testing.assert_close(fused.fused(decoder, x), plain.plain(x), rtol=1e-10, atol=1e-10)
        for one, other in ((fused.cache.keys, plain.cache.keys), (fused.cache.values, plain.cache.values)):
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-10, atol=1e-10)
        fused.advance()
        plain.advance()


def test_a_failed_step_resets_its_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tiny_config())
    decoder = decoder_of(model)
    decoder._ready.fill_(7)  # as programs of a kernel on a card would have left it

    def full(*_: object) -> None:
        raise MemoryError("the card is full")

    monkeypatch.setattr(module, "linear_out", full)
    with pytest.raises(MemoryError):
        Context(model, [3]).fused(decoder, embeddings(1, 24))

    assert not decoder._ready.any()


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_every_count_that_is_awaited_is_cleared_later_in_the_same_step(
    layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tiny_config(text={"n_layers": layers}))
    decoder = decoder_of(model)
    ready = decoder._ready
    awaited, cleared = [], []

    def into(*arguments: Any) -> None:
        if (handshake := arguments[-1]) is not None:
            index = handshake.stale.storage_offset()
            cleared.append(index)
            ready[index] = 0
            ready[handshake.ready.storage_offset()] += handshake.count

    def out(*arguments: Any) -> None:
        if (handshake := arguments[-1]) is not None:
            awaited.append(handshake.ready.storage_offset())
            assert int(handshake.ready) == handshake.count > 0

    monkeypatch.setattr(module, "supported", lambda *_: True)
    monkeypatch.setattr(module, "linear_in", into)
    monkeypatch.setattr(module, "linear_out", out)
    context = Context(model, [3, 5])
    for _ in range(3):
        awaited.clear()
        cleared.clear()
        context.fused(decoder, embeddings(2, 24))
        assert awaited == list(range(layers - 1))
        # Not in the next step, some programs of which may start before the count is cleared.
        assert set(awaited) <= set(cleared[1:])


def test_on_the_cpu_the_plain_model_serves() -> None:
    assert tiny_model(tiny_config()).step_decoder() is None
    assert tiny_model(tiny_config()).bfloat16().step_decoder() is None


def test_an_older_card_runs_nothing_fused_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tiny_config()).bfloat16()
    monkeypatch.setattr(cards, "HAS_TRITON", True)
    found = {}
    for card in (Card("Tesla T4", (7, 5), 65_536), Card("L4", (8, 9), 101_376)):
        monkeypatch.setattr(cards, "card_of", lambda device, card=card: card)
        found[card.name] = model.step_decoder(), model.prompt_decoder(), model.plain_parts()

    assert found["Tesla T4"][:2] == (None, None)
    assert found["Tesla T4"][2].keys() == {"image encoder", "prompts", "decode steps"}
    assert all("needs compute capability 8.0, Tesla T4 has 7.5" in reason for reason in found["Tesla T4"][2].values())
    assert isinstance(found["L4"][0], FusedDecode)
    assert found["L4"][1] is not None
    assert found["L4"][2] == {}


gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")
BATCHES = (1, 2, 8, 32, 64)
EXCESS = 1.2
"""Bound of the fused error in multiples of the unfused one: both round to bfloat16 about as often."""


def config_of(dim: int, ff: int, heads: int, kv_heads: int, layers: int, context: int = 2048) -> MoondreamConfig:
    text = {"dim": dim, "ff_dim": ff, "n_heads": heads, "n_kv_heads": kv_heads, "n_layers": layers}
    sections = {"vision": {"proj_out_dim": dim}, "region": {"dim": dim}}
    return tiny_config(text={**text, "max_context": context}, **sections)


SHAPES = {
    "moondream2": config_of(2048, 8192, 32, 32, 4),
    "dim-224": config_of(224, 896, 7, 7, 6, 1024),
    "odd": config_of(40, 42, 5, 1, 2, 1024),
    # Its kernels are so small that a whole step may be queued before the first kernel runs.
    "tiny": config_of(64, 128, 2, 2, 2, 1024),
}


@functools.cache
def rounded(name: str, dtype: torch.dtype = torch.bfloat16) -> tuple[MoondreamModel, MoondreamModel]:
    """A model in half precision, and one with the same weights in float32, both on the card."""
    model = tiny_model(SHAPES[name]).to(dtype)
    return model.cuda(), copy.deepcopy(model).float().cuda()


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


def lengths_of(rows: int, longest: int) -> list[int]:
    return [longest - 37 * row % longest for row in range(rows)]


def replayed(work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    return graph.replay, out


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(("name", "dtype"), [*((name, torch.bfloat16) for name in SHAPES), ("dim-224", torch.float16)])
def test_rounding_costs_no_more_than_in_the_plain_model(name: str, dtype: torch.dtype) -> None:
    model, exact = rounded(name, dtype)
    decoder = decoder_of(model)
    total = [0.0, 0.0]
    for rows in (*BATCHES, MAX_ROWS + 6):
        lengths = lengths_of(rows, 850)
        fused, plain, truth = (Context(one, lengths) for one in (model, model, exact))
        errors = [0.0, 0.0]
        for step in range(3):
            x = embeddings(rows, model.shape.dim, step)
            wanted = truth.plain(x)
            errors[0] += distance(fused.fused(decoder, x), wanted)
            errors[1] += distance(plain.plain(x), wanted)
            for context in (fused, plain, truth):
                context.advance()
        # A few rows of a small model are a small sample.
        assert errors[0] < 1.5 * errors[1], f"{rows} rows: {errors}"
        total = [total[0] + errors[0], total[1] + errors[1]]
    assert total[0] < EXCESS * total[1], total


@pytest.mark.gpu
@gpu
def test_an_8_bit_cache_costs_as_much_accuracy_as_in_the_unfused_model() -> None:
    if not has_fp8(torch.device("cuda")):
        pytest.skip("the card has no FP8")
    model, exact = rounded("moondream2")
    decoder = decoder_of(model)
    for rows in BATCHES:
        lengths = lengths_of(rows, 850)
        truth = Context(exact, lengths)
        fused, plain = (Context(model, lengths, kv_dtype=FP8) for _ in range(2))
        x = embeddings(rows, model.shape.dim)
        wanted = truth.plain(x)
        assert distance(fused.fused(decoder, x), wanted) < EXCESS * distance(plain.plain(x), wanted)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("name", SHAPES)
def test_a_graph_gives_the_same_bits_again_and_again_after_any_other_step(name: str, rows: int) -> None:
    model, _ = rounded(name)
    decoder = decoder_of(model)
    context = Context(model, lengths_of(rows, 850))
    inputs = [embeddings(rows, model.shape.dim, seed).cuda().bfloat16() for seed in range(3)]
    x = inputs[0].clone()
    replay, out = replayed(lambda: context.fused(decoder, x))
    first = []
    for given in inputs:
        # Programs that start too early would read another step's values: the results then differ from the reference.
        x.copy_(given)
        torch.cuda.synchronize()
        replay()
        torch.cuda.synchronize()
        first.append(out.clone())
        assert distance(out, context.plain(given)) < 0.05

    for number in itertools.islice(itertools.cycle((0, 1, 2, 1, 0, 2)), 100):
        x.copy_(inputs[number])
        replay()
        assert torch.equal(out, first[number])


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("name", ["moondream2", "dim-224"])
def test_batch_size_changes_a_row_by_less_than_rounding(name: str) -> None:
    # Kernels are chosen by the number of rows and sum in another order. The difference must stay below the unfused
    # model's distance from the float32 reference, which is the cost of bfloat16.
    model, exact = rounded(name)
    decoder = decoder_of(model)
    lengths = lengths_of(64, 850)
    x = embeddings(64, model.shape.dim)
    wanted = Context(exact, lengths).plain(x)
    bound = distance(Context(model, lengths).plain(x), wanted)
    found = {}
    for size in BATCHES:
        context = Context(model, lengths)
        every = context.rows
        parts = []
        for first in range(0, 64, size):
            context.rows = every[first : first + size]
            parts.append(context.fused(decoder, x[first : first + size]))
        found[size] = torch.cat(parts)

    for one, other in itertools.combinations(BATCHES, 2):
        assert distance(found[one], found[other]) < bound, f"batches of {one} and {other}"
        for row in range(64):
            assert distance(found[one][row], found[other][row]) < 2 * bound, f"row {row} of {one} and {other}"


@pytest.mark.gpu
@gpu
def test_half_precision_on_a_card_is_fused_and_other_types_are_not() -> None:
    for dtype, fused in ((torch.bfloat16, True), (torch.float16, True), (torch.float32, False), (torch.float64, False)):
        assert (tiny_model(tiny_config()).to("cuda", dtype).step_decoder() is not None) == fused
