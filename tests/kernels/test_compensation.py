import torch
from torch import Tensor

from photonlite.kernels.reference.compensation import _WIDTHS, quantise_for
from photonlite.kernels.reference.quantised import QuantisedWeight, dequantise, quantise, quantise_groups


def inputs(rows: int, columns: int) -> Tensor:
    """Return inputs whose columns depend on each other, as those of real layers do."""
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(columns, columns, generator=generator) / columns**0.5 + torch.eye(columns)
    return torch.randn(rows, columns // 4, generator=generator) @ mixed[: columns // 4] @ mixed


def moments(x: Tensor, group: int) -> Tensor:
    parts = x.view(len(x), -1, group).transpose(0, 1)
    return parts.transpose(1, 2) @ parts


def error(matrix: Tensor, weight: QuantisedWeight, x: Tensor) -> float:
    wanted = x @ matrix.t()
    return float((x @ dequantise(weight, torch.float32).t() - wanted).norm() / wanted.norm())


def test_results_for_the_inputs_are_better_than_of_the_nearest_numbers() -> None:
    matrix, x = torch.randn(48, 256, generator=torch.Generator().manual_seed(1)), inputs(900, 256)

    found = quantise_for(matrix, moments(x, 128))

    assert error(matrix, found, x) < 0.42 * error(matrix, quantise(matrix, "int4"), x)


def test_groups_make_up_for_each_other_where_their_moments_are_known() -> None:
    matrix, x = torch.randn(48, 256, generator=torch.Generator().manual_seed(1)), inputs(900, 256)

    within, whole = (quantise_for(matrix, known) for known in (moments(x, 128), x.t() @ x))

    assert error(matrix, whole, x) < 0.8 * error(matrix, within, x)


def test_moments_of_all_pairs_that_do_not_depend_are_those_of_groups() -> None:
    matrix = torch.randn(16, 256, generator=torch.Generator().manual_seed(4))
    known = moments(inputs(900, 128), 128).expand(2, -1, -1)  # damped alike: by the mean of what is given

    within, whole = quantise_for(matrix, known), quantise_for(matrix, torch.block_diag(*known))

    assert float((within.values != whole.values).float().mean()) < 0.02


def test_without_any_dependence_it_is_the_nearest_number() -> None:
    matrix = torch.randn(16, 128, generator=torch.Generator().manual_seed(2))
    found = quantise_for(matrix, torch.eye(128)[None] * 7)
    assert torch.equal(found.values, quantise_groups(matrix, _WIDTHS).values)


def test_each_group_takes_the_range_that_is_best_for_its_inputs() -> None:
    """A group whose largest numbers have hardly any input cuts them off for finer steps."""
    matrix = torch.randn(16, 256, generator=torch.Generator().manual_seed(3)).clamp(-2.9, 2.9)
    matrix[:, [7, 135]], matrix[:, [9, 137]] = 4, -4
    strength = torch.ones(2, 128)
    strength[0, [7, 9]] = 1e-3
    found = quantise_for(matrix, torch.diag_embed(strength))
    assert float((found.scale[:, 0] / found.scale[:, 1]).mean()) < 0.9


def test_columns_that_never_had_an_input_do_no_harm() -> None:
    matrix, x = torch.randn(16, 128), inputs(300, 128)
    x[:, 5:40] = 0
    for seen in (moments(x, 128), x.t() @ x, torch.zeros(1, 128, 128), torch.zeros(128, 128)):
        found = dequantise(quantise_for(matrix, seen), torch.float32)
        assert float((found - matrix).abs().max()) < 4 * float(matrix.abs().max())
        assert bool(found.isfinite().all())
