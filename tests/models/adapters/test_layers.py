"""The copy of a model that adds adapters, against weights with the same changes."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from photonlite.kernels.adapters import AdapterRows
from photonlite.models.adapters.layers import AdaptedLayer, AdapterBank
from photonlite.models.adapters.terms import AdapterPlace, AdapterTerm, AdapterWeights
from photonlite.models.layers import MaskedAttention
from photonlite.models.quantised import QuantisedLinear, prepare
from tests.adapters import Matrices, linear_sizes, merged, random_matrices
from tests.tiny import CPU, tiny_config, tiny_model

MODEL = tiny_model(tiny_config()).double()
SIZES = linear_sizes(MODEL)


def weights_of(matrices: Matrices, key: str = "") -> AdapterWeights:
    terms = (AdapterTerm(AdapterPlace(name, 0, len(b)), a.double(), b.double()) for name, (a, b) in matrices.items())
    return AdapterWeights(key, tuple(terms))


def forward(model, x: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    return model.forward(x, torch.arange(x.shape[1]), MaskedAttention(mask))


def test_rows_of_one_batch_have_their_own_adapters() -> None:
    bank = AdapterBank(MODEL, slots=3, rank=4)
    ranks, changed = (4, 1, 3), [MODEL]
    for slot, rank in enumerate(ranks, start=1):
        matrices = random_matrices(SIZES, rank, slot)
        bank.write(slot, weights_of(matrices))
        changed.append(merged(MODEL, matrices, 1))
    x = torch.randn(6, 5, 24, dtype=torch.float64)
    slots = [1, 0, 3, 3, 2, 1]
    with torch.inference_mode(), bank.running(AdapterRows.of(slots, [1] * 6, CPU)) as model:
        found = forward(model, x)
    for row, slot in enumerate(slots):
        torch.testing.assert_close(found[row : row + 1], forward(changed[slot], x[row : row + 1]))


def test_images_are_encoded_with_their_own_adapters() -> None:
    matrices = random_matrices(SIZES, 2, 5)
    bank = AdapterBank(MODEL, slots=1, rank=2)
    bank.write(1, weights_of(matrices))
    changed = merged(MODEL, matrices, 1)
    crops = torch.randint(0, 256, (3, 20, 20, 3), dtype=torch.uint8)
    with torch.inference_mode(), bank.running(AdapterRows.of([1, 0], [2, 1], CPU)) as model:
        found = model.vision.encode(crops)
    torch.testing.assert_close(found[:2], changed.vision.encode(crops[:2]))
    torch.testing.assert_close(found[2:], MODEL.vision.encode(crops[2:]))
    with torch.inference_mode(), bank.running(AdapterRows.of([1], [1], CPU)) as model:
        torch.testing.assert_close(model.vision.project(found, (1, 2)), changed.vision.project(found, (1, 2)))


def test_page_locked_weights_are_one_piece_with_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, bool]] = []

    def empty(count: int, *, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:  # without a card nothing is locked
        made.append((count, pin_memory))
        return torch.zeros(count, dtype=dtype)

    weights = weights_of(random_matrices(SIZES, 3, 1))
    monkeypatch.setattr(torch, "empty", empty)
    found = weights.pinned()
    assert made == [(sum(term.a.numel() + term.b.numel() for term in weights.terms), True)]
    for one, other in zip(found.terms, weights.terms, strict=True):
        assert one.place == other.place
        assert torch.equal(one.a, other.a)
        assert torch.equal(one.b, other.b)


def test_a_slot_that_is_written_again_forgets_what_it_had() -> None:
    bank = AdapterBank(MODEL, slots=1, rank=4)
    bank.write(1, weights_of(random_matrices(SIZES, 4, 1)))
    few = random_matrices({"text.blocks.0.mlp.fc1": SIZES["text.blocks.0.mlp.fc1"]}, 2, 2)
    bank.write(1, weights_of(few))
    x = torch.randn(1, 3, 24, dtype=torch.float64)
    with torch.inference_mode(), bank.running(AdapterRows.of([1], [1], CPU)) as model:
        torch.testing.assert_close(forward(model, x), forward(merged(MODEL, few, 1), x))


def test_the_copy_shares_weights_and_leaves_the_model_alone() -> None:
    bank = AdapterBank(MODEL, slots=1, rank=4)
    bank.write(1, weights_of(random_matrices(SIZES, 4, 1)))
    assert not any(isinstance(layer, AdaptedLayer) for layer in MODEL.modules())
    own = {id(parameter) for parameter in MODEL.parameters()}
    assert {id(parameter) for parameter in bank.model.parameters()} == own
    assert bank.nbytes == sum(8 * 2 * 4 * (inputs + outputs) for inputs, outputs in SIZES.values())


def test_a_model_with_adapters_never_runs_without_rows() -> None:
    bank = AdapterBank(MODEL, slots=1, rank=4)
    bank.write(1, weights_of(random_matrices(SIZES, 4, 1)))
    with pytest.raises(AssertionError, match="without rows"):
        forward(bank.model, torch.zeros(1, 1, 24, dtype=torch.float64))
    with pytest.raises(AssertionError, match="slot 0 holds nothing"):
        bank.write(0, weights_of(random_matrices(SIZES, 1, 1)))


def test_rows_are_grouped_by_slot() -> None:
    rows = AdapterRows.of([2, 2, 0, 1, 2], [2, 1, 3, 0, 4], CPU)
    assert rows.units == 10
    assert rows.index.tolist() == [2] * 3 + [0] * 3 + [2] * 4
    ((slot, units),) = rows.groups
    assert slot == 2
    assert units.tolist() == [0, 1, 2, 6, 7, 8, 9]
    assert AdapterRows.of([0, 3], [2, 2], CPU).groups == ((3, slice(2, 4)),)


def test_places_are_counted_and_survive_writes_from_several_threads() -> None:
    bank, names = AdapterBank(MODEL, slots=4, rank=2), list(SIZES)
    parts = [weights_of(random_matrices({name: SIZES[name] for name in names[n::4]}, 2, n)) for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda slot: bank.write(slot, parts[slot - 1]), (1, 2, 3, 4)))
    assert bank.generation == len(names)
    bank.reserve(parts[0])
    assert bank.generation == len(names)
    for slot, weights in enumerate(parts, start=1):
        terms = {term.place: term for term in weights.terms}
        for place, stack in [pair for layer in bank._layers.values() for pair in layer.stacks.items()]:
            assert stack.ranks[slot] == (2 if place in terms else 0)


def test_layers_whose_weights_are_quantised_and_have_no_bias_take_terms() -> None:
    plain = nn.Linear(64, 24, bias=False)
    model = nn.ModuleDict({"head": nn.Linear(2, 2), "layer": QuantisedLinear.of(plain, "int8")})
    prepare(model, CPU)
    term = AdapterTerm(AdapterPlace("layer", 0, 24), torch.randn(3, 64), torch.randn(24, 3))
    bank = AdapterBank(model, slots=1, rank=3)
    bank.write(1, AdapterWeights("", (term,)))
    x = torch.randn(1, 5, 64)
    with torch.inference_mode(), bank.running(AdapterRows.of([1], [1], CPU)) as adapted:
        found = adapted["layer"](x)  # type: ignore[index]
    torch.testing.assert_close(found, model["layer"](x) + x @ term.a.T @ term.b.T, rtol=1e-4, atol=1e-4)
