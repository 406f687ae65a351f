import math

import pytest

from photonlite.observe.metrics import format_seconds


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.0, "0 us"),
        (8.3e-6, "8.30 us"),
        (512.4e-6, "512 us"),
        (999.7e-6, "1.00 ms"),
        (9.996e-3, "10.0 ms"),
        (2.934e-3, "2.93 ms"),
        (0.9996, "1.00 s"),
        (75.0, "75.0 s"),
        (4321.0, "4321 s"),
        (math.nan, "-"),
    ],
)
def test_times_are_written_with_three_digits_in_the_unit_that_fits(seconds, written):
    assert format_seconds(seconds) == written
