import numpy as np
import pytest

from bench.campaign.slope import slope, theil_sen

TIMES = np.linspace(0, 2, 240)


def noise(seed):
    """Return samples that resemble their neighbours, as those of memory do."""
    steps = np.random.default_rng(seed).normal(size=len(TIMES))
    values = np.zeros(len(TIMES))
    for index in range(1, len(TIMES)):
        values[index] = 0.8 * values[index - 1] + steps[index]
    return values


def test_the_slope_of_a_line_with_an_outlier_is_exact():
    values = 3 * TIMES
    values[7] = 1000
    assert theil_sen(TIMES, values) == pytest.approx(3)


def test_noise_is_flat_and_a_leak_is_not():
    flat = [slope(TIMES, 500 + noise(seed)).is_flat(0.5) for seed in range(10)]
    assert sum(flat) >= 8  # intervals of 95 %
    for seed in range(10):
        grown = slope(TIMES, 500 + 20 * TIMES + noise(seed))
        assert not grown.is_flat(0.5)
        assert grown.low < 20 < grown.high or abs(grown.value - 20) < 3


def test_what_shrinks_or_grows_negligibly_is_flat():
    assert slope(TIMES, -5 * TIMES).is_flat(0)
    grown = slope(TIMES, 0.4 * TIMES)
    assert grown.is_flat(0.5)
    assert not grown.is_flat(0.3)


def test_constant_samples_have_no_slope():
    assert slope(TIMES, np.full(len(TIMES), 7.0)) == pytest.approx((0, 0, 0))


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="7 samples are too few"):
        slope(TIMES[:7], TIMES[:7])
