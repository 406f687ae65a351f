import pytest
import torch

from photonlite.kernels.autotune import fastest, first_of_least


@pytest.mark.parametrize(
    ("times", "best"),
    [([3.0], 0), ([3.0, 2.0, 2.5], 1), ([3.0, 2.95], 0), ([2.0, 1.0, 0.99], 1), ([3.0, 2.95, 2.0, 1.99], 2)],
)
def test_a_way_that_gains_next_to_nothing_is_not_preferred(times: list[float], best: int) -> None:
    assert first_of_least(times) == best


def test_the_only_way_need_not_be_measured() -> None:
    assert fastest([lambda: pytest.fail("it ran")]) == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_way_that_does_less_is_the_quickest() -> None:
    x = torch.randn(4096, 4096, device="cuda")

    def many() -> None:
        for _ in range(20):
            x @ x

    assert fastest([many, lambda: x @ x, many]) == 1
