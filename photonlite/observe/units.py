"""How times are written for people."""

import math

_UNITS = ((1e6, "us"), (1e3, "ms"), (1.0, "s"))


def format_seconds(seconds: float) -> str:
    """Write a time with three digits, in microseconds, milliseconds or seconds; a dash where it is not a number."""
    if math.isnan(seconds):
        return "-"
    for scale, unit in _UNITS:
        value = seconds * scale
        # Compared as it will be rounded, so that 999.7 us is written as 1.00 ms.
        if value < 999.5 or unit == "s":
            break
    digits = 0 if value == 0 else 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"
