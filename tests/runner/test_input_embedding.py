import numpy as np
import pytest
import torch

from photonlite.kernels.reference.embedding import InputTables, embed_pending
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.runner.slot import NO_VALUE
from photonlite.runner.tokens import InputEmbedding
from tests.tiny import CPU, tiny_config, tiny_model

FEWER_SIZES, MORE_SIZES = tiny_config(), tiny_config(region={"size_out_dim": 130})  # 40 coordinates; 30 and 65 sizes


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
