"""Whether the encoder gets a part of the card or shares all of it, decided for each launch of images. No torch.

```
parts      encoder's SMs    ■■■■■■■■■■■■■■■■■■■■ image ■■■■■■■■■■■■■■■■■■■■│     what decodes loses little speed, and no
           the others       decode ─ decode ─ decode ─ decode ─ decode ─ dec   step waits for images or their prompts
whole      all SMs          ■■■ image ■■■ │ decode ─ decode ─ prompt ─ ...     nothing idles where little decodes
```
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class PartSpeeds(NamedTuple):
    """Speeds of work in its part of a card while the other part is busy, as shares of those alone on the whole card."""

    encode: float
    decode: float


Measured = Mapping[int, Mapping[float, PartSpeeds]]
"""Speeds by rows that decode, and by decoding's share of the SMs."""

WEIGHTS = 21.0
"""Rows whose keys and values take a decode step as long to read as the weights: Moondream 2, contexts of 850."""

DEFAULT_SHARES = {(9, 0): 68 / 132}
"""The encoder's share of the SMs where nothing was tuned, by compute capability."""

_THIRD, _MIDDLE, _HALF = 32 / 132, 48 / 132, 64 / 132

DEFAULT_SPEEDS: Measured = {
    8: {_THIRD: PartSpeeds(0.69, 0.41), _MIDDLE: PartSpeeds(0.62, 0.52), _HALF: PartSpeeds(0.53, 0.65)},
    32: {_THIRD: PartSpeeds(0.70, 0.41), _MIDDLE: PartSpeeds(0.62, 0.55), _HALF: PartSpeeds(0.54, 0.67)},
    64: {_THIRD: PartSpeeds(0.69, 0.41), _MIDDLE: PartSpeeds(0.61, 0.53), _HALF: PartSpeeds(0.51, 0.67)},
}
"""Measured on an H100 with Moondream 2 (`bench/results/overlap.md`)."""


@dataclass(frozen=True, slots=True)
class PartTable:
    """Speeds in the two parts of a card, for one division of it.

    Attributes:
        speeds: By rows that decode; at least one entry.
        weights: Rows whose keys and values take a decode step as long to read as the weights.
    """

    speeds: Mapping[int, PartSpeeds]
    weights: float = WEIGHTS

    def at(self, rows: int) -> PartSpeeds:
        """Return the speeds beside so many rows, on a line between the nearest numbers that were measured."""
        low = max((one for one in self.speeds if one <= rows), default=min(self.speeds))
        high = min((one for one in self.speeds if one >= rows), default=max(self.speeds))
        return _on_line((low, self.speeds[low]), (high, self.speeds[high]), rows)


def table_at(share: float, measured: Measured = DEFAULT_SPEEDS, weights: float = WEIGHTS) -> PartTable:
    """Return the table for a division in which decoding has a share of the SMs, on a line through the nearest two."""
    found = {}
    for rows, speeds in measured.items():
        nearest = sorted(speeds.items(), key=lambda one: abs(one[0] - share))[:2]
        found[rows] = _on_line(nearest[0], nearest[-1], share)
    return PartTable(found, weights)


def parts_pay(encode_s: float, decode_s: float, rows: int, later: int, table: PartTable) -> bool:
    """Whether encoding and decoding get more done in parts of the card than one after the other on all of it.

    The encoding takes `encode_s` alone on the whole card, and what decodes, `rows`, goes on there for about `decode_s`.
    In parts both have `encode_s / speeds.encode`, in which decoding does as much as it can there, or all that there is
    to do. That is worth less where `later` requests could share its steps if they were there.
    """
    speeds, weights = table.at(rows), table.weights
    seconds = encode_s / speeds.encode
    shared = rows / (rows + later) * (weights + rows + later) / (weights + rows)
    return encode_s + shared * min(decode_s, seconds * speeds.decode) > seconds


def _on_line(first: tuple[float, PartSpeeds], second: tuple[float, PartSpeeds], place: float) -> PartSpeeds:
    (low, one), (high, other) = first, second
    part = (place - low) / (high - low) if high != low else 0.0
    return PartSpeeds(*(min(1.0, max(0.05, a + part * (b - a))) for a, b in zip(one, other, strict=True)))
