"""The cost model of pipelined decoding: what hiding the host's work gains, and what zombies cost.

Gain. A blocking step takes ``T_block = forward + finalize + host``: the device waits while the host commits, plans and
launches. A pipelined step takes ``T_pipe = max(forward + finalize, host)``. Each step is ``T_block / T_pipe`` times as
fast. T depends on the rows of the batch; T(0) = 0, because an empty batch is not launched.

Cost. A sequence ends at step t. Step t+1 was launched before the host read that, so it carries the sequence once more,
as a zombie. An answer of L tokens does so once. With B streams of equal rate, a given row ends with probability 1/L at
each step, so a step carries a zombie with probability ``1 - (1 - 1/L)**B``, and B/L zombies on average. What one costs
depends on what blocking decoding would have done with its row at step t+1:

- The row stays empty, because no request is ready that soon. Without the zombie the step would have had one row less:
  the cost is the marginal cost of a row, ``T(B) - T(B-1)``. With B/L zombies a step::

      z(B, L) = B/L * (T(B) - T(B-1)) / T(B)

  One stream pays a whole step for each answer, z = 1/L, because T(0) = 0. The more rows share the reading of the
  weights, the less another row costs: z falls well below 1/L.
- A request that is ready takes the row. The step makes one token less than it could: the cost is the average cost of a
  row, ``T(B)/B``, and z = 1/L for every B.
- One batch runs to its end, as in the rounds measured here. Its rows fall from B to 0, and each sequence that ends with
  b rows left costs ``T(b) - T(b-1)``. The sum over b telescopes to T(B): all zombies together cost one step of the full
  batch, so z is T(B) over the duration of the decode phase. That is close to 1/L where lengths are alike.

Speed-up = ``T_block / T_pipe * (1 - z)``. T between measured numbers of streams is taken as linear.

Source: the factor (1 - z), z = 1/L for one stream and the remark that a zombie is nearly free in a large batch are from
https://moondream.ai/blog/popping-the-gpu-bubble, as are the figures of `PUBLISHED`. The formulas for B streams are
derived here. The first one gives all six published predictions within the rounding of the published periods.
"""

from collections.abc import Mapping
from dataclasses import dataclass


def step_zombie_chance(streams: int, length: float) -> float:
    """Return the probability that a step carries at least one zombie.

    Args:
        streams: Sequences that are decoded together, B.
        length: Tokens of an answer, L.
    """
    return float(1 - (1 - 1 / length) ** streams)


def row_cost(streams: int, periods: Mapping[int, float]) -> float:
    """Return what the last row adds to a step, T(B) - T(B-1), in the unit of the periods; never below 0.

    Args:
        streams: B.
        periods: T by number of streams, B among them; linear between them, and 0 for no streams.
    """
    fewer = max((count for count in periods if count < streams), default=0)
    return max(0.0, (periods[streams] - periods.get(fewer, 0.0)) / (streams - fewer))


def zombie_share(streams: int, length: float, periods: Mapping[int, float]) -> float:
    """Return z(B, L) of streams of equal rate whose rows stay empty when a sequence ends.

    Args:
        streams: B.
        length: Tokens of an answer, L.
        periods: T_pipe by number of streams; see :func:`row_cost`.
    """
    return streams / length * row_cost(streams, periods) / periods[streams]


def batch_zombie_share(period: float, duration: float) -> float:
    """Return z of one batch that runs to its end.

    Args:
        period: T_pipe of the full batch.
        duration: Of the pipelined decode phase, zombies included; in the same unit.
    """
    return period / duration


def predicted_gain(gain: float, zombies: float) -> float:
    """Return the predicted speed-up as a factor; the gain of a step is T_block / T_pipe, and `zombies` is z."""
    return gain * (1 - zombies)


@dataclass(frozen=True, slots=True)
class Published:
    """A row of the published study; periods in milliseconds, gains as factors.

    Attributes:
        hardware: Which card.
        streams: B.
        t_block: Period of blocking decoding.
        t_pipe: Period of pipelined decoding.
        length: Tokens of an answer, L.
        predicted: The study's prediction.
        observed: What it measured.
    """

    hardware: str
    streams: int
    t_block: float
    t_pipe: float
    length: int
    predicted: float
    observed: float


STUDY = "https://moondream.ai/blog/popping-the-gpu-bubble"

PUBLISHED = (
    Published("RTX 3090", 1, 5.44, 5.10, 104, 1.057, 1.065),
    Published("RTX 3090", 8, 7.52, 6.97, 113, 1.076, 1.078),
    Published("RTX 3090", 32, 11.74, 10.52, 113, 1.111, 1.116),
    Published("B200", 1, 3.11, 2.63, 115, 1.172, 1.176),
    Published("B200", 8, 4.04, 3.30, 115, 1.222, 1.219),
    Published("B200", 32, 5.55, 3.98, 104, 1.391, 1.354),
)


def published_share(row: Published) -> float:
    """Return z(B, L) of a published row, from the periods of its card."""
    periods = {other.streams: other.t_pipe for other in PUBLISHED if other.hardware == row.hardware}
    return zombie_share(row.streams, row.length, periods)
