"""Whether the encoder gets a part of the card or shares all of it, decided for each launch of images. No torch.

```
parts      encoder's SMs    ■■■■■■■■■■■■■■■■■■■■ image ■■■■■■■■■■■■■■■■■■■■│     what decodes loses little speed, and no
           the others       decode ─ decode ─ decode ─ decode ─ decode ─ dec   step waits for images or their prompts
whole      all SMs          ■■■ image ■■■ │ decode ─ decode ─ prompt ─ ...     nothing idles where little decodes
```
"""

from typing import NamedTuple


class PartSpeeds(NamedTuple):
    """Speeds of work in its part of a card while the other part is busy, as shares of those alone on the whole card."""

    encode: float
    decode: float


_MEASURED = {32 / 132: PartSpeeds(0.70, 0.41), 48 / 132: PartSpeeds(0.62, 0.55), 64 / 132: PartSpeeds(0.54, 0.67)}
"""By decoding's share of the SMs: of an H100, Moondream 2 at 32 streams (`bench/results/overlap.md`)."""

_WEIGHTS = 21
"""Rows whose keys and values take a decode step as long to read as the weights: Moondream 2, contexts of 850."""


def speeds_of(share: float) -> PartSpeeds:
    """Estimate the speeds in parts of a card of which decoding has a share of the SMs, on a line through two others."""
    (low, first), (high, second) = sorted(sorted(_MEASURED.items(), key=lambda one: abs(one[0] - share))[:2])
    place = (share - low) / (high - low)
    found = (one + place * (two - one) for one, two in zip(first, second, strict=True))
    return PartSpeeds(*(min(1.0, max(0.05, speed)) for speed in found))


def parts_pay(encode_s: float, decode_s: float, rows: int, later: int, speeds: PartSpeeds) -> bool:
    """Whether encoding and decoding get more done in parts of the card than one after the other on all of it.

    The encoding takes `encode_s` alone on the whole card, and what decodes, `rows`, goes on there for about `decode_s`.
    In parts both have `encode_s / speeds.encode`, in which decoding does as much as it can there, or all that there is
    to do. That is worth less where `later` requests could share its steps if they were there.
    """
    seconds = encode_s / speeds.encode
    shared = rows / (rows + later) * (_WEIGHTS + rows + later) / (_WEIGHTS + rows)
    return encode_s + shared * min(decode_s, seconds * speeds.decode) > seconds
