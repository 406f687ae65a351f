"""Both depths side by side: what was measured of one workload with one number of streams."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.bubble.cost_model import batch_zombie_share, predicted_gain, zombie_share
from bench.bubble.figures import Quartiles, Steady, steady, together
from bench.bubble.rounds import Chosen, Rig, Round
from bench.bubble.subjects import Subject, Workload, requests

TRACED = 5
"""Traced rounds at most: more would not change their figures."""


@dataclass(frozen=True, slots=True)
class DepthFigures:
    """Measurements of one depth, in seconds.

    Attributes:
        periods: Between commits at full batch, the mean of each round that was not traced.
        steady: Of rounds that were traced.
        walls: Of each round that was not traced, from the commit of the last prefill until the engine was free again:
            the steps of zombies are part of it.
        answers: The same, until the last token.
        steps: Decode steps of these rounds.
        rows: Of these steps.
        zombies: Of these rows.
        tokens: Of these rounds.
        requests: Of these rounds.
        last: The last round that was traced.
    """

    periods: list[float]
    steady: Steady
    walls: list[float]
    answers: list[float]
    steps: int
    rows: int
    zombies: int
    tokens: int
    requests: int
    last: Round

    @classmethod
    def of(cls, plain: Sequence[Round], traced: Sequence[Round]) -> "DepthFigures":
        """Compute the figures of rounds."""
        return cls(
            periods=[one.period for one in plain],
            steady=together([steady(one.steady_spans) for one in traced]),
            walls=[_wall(one) for one in plain],
            answers=[one.last_end - one.prefilled for one in plain],
            steps=sum(one.steps for one in plain),
            rows=sum(one.rows for one in plain),
            zombies=sum(one.zombies for one in plain),
            tokens=sum(len(tokens) for one in plain for tokens in one.tokens),
            requests=sum(len(one.tokens) for one in plain),
            last=traced[-1],
        )

    @property
    def period(self) -> float:
        """Median of rounds: what the cost model calls T."""
        return statistics.median(self.periods)

    @property
    def length(self) -> float:
        """Tokens of a request, on average: L."""
        return self.tokens / self.requests

    @property
    def zombie_share(self) -> float:
        """Share of all rows that carried finished sequences."""
        return self.zombies / self.rows if self.rows else math.nan


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of the answers of both depths.

    Attributes:
        same: Sequences that agree in every token.
        sequences: All of them.
        tokens: Tokens before the first difference.
        all_tokens: All of them.
    """

    same: int
    sequences: int
    tokens: int
    all_tokens: int

    @classmethod
    def of(cls, pairs: Iterable[tuple[Sequence[Chosen], Sequence[Chosen]]]) -> "Agreement":
        """Compare pairs of answers."""
        compared = [(_common(one, other), max(len(one), len(other))) for one, other in pairs]
        return cls(
            same=sum(common == length for common, length in compared),
            sequences=len(compared),
            tokens=sum(common for common, _ in compared),
            all_tokens=sum(length for _, length in compared),
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Blocking against pipelined decoding.

    Attributes:
        workload: What was decoded.
        streams: Sequences at a time.
        block: Depth 1.
        pipe: Depth 2.
        told_walls: Of rounds at depth 2 whose budgets tell the host where each sequence ends, so that none becomes a
            zombie; as `DepthFigures.walls`, in the same order.
        agreement: Of the answers.
    """

    workload: Workload
    streams: int
    block: DepthFigures
    pipe: DepthFigures
    told_walls: list[float]
    agreement: Agreement

    @property
    def gain(self) -> float:
        """T_block / T_pipe: the median of pairs of rounds."""
        return statistics.median(self.gain_rounds)

    @property
    def gain_rounds(self) -> list[float]:
        """T_block / T_pipe of each pair of rounds."""
        return _ratios(self.block.periods, self.pipe.periods)

    @property
    def batch_share(self) -> float:
        """The z that the model derives for a batch that runs to its end."""
        return batch_zombie_share(self.pipe.period, statistics.median(self.pipe.walls))

    @property
    def measured_shares(self) -> list[float]:
        """The z of single rounds: the share of the decode phase that goes when the host knows the ends."""
        return [1 - ratio for ratio in _ratios(self.told_walls, self.pipe.walls)]

    @property
    def batch_predicted(self) -> float:
        """The speed-up that the model gives for a batch that runs to its end, as a factor."""
        return predicted_gain(self.gain, self.batch_share)

    @property
    def observed_rounds(self) -> list[float]:
        """The speed-up that was seen, as a factor: the ratio of the decode phases of each pair of rounds."""
        return _ratios(self.block.walls, self.pipe.walls)

    @property
    def observed(self) -> Quartiles:
        """Median and quartiles of the observed speed-up."""
        return Quartiles.of(self.observed_rounds)

    def differences(self, share: float) -> list[float]:
        """Return the observed less the predicted speed-up of each pair of rounds, for a given z."""
        pairs = zip(self.observed_rounds, self.gain_rounds, strict=True)
        return [observed - predicted_gain(gain, share) for observed, gain in pairs]

    @property
    def observed_answers(self) -> float:
        """The same until the last token, without the last zombie's step: what a caller sees."""
        return statistics.median(_ratios(self.block.answers, self.pipe.answers))


def streams_share(one: Comparison, found: Iterable[Comparison]) -> float:
    """Return z that the model derives for streams of equal rate.

    Args:
        one: Whose z.
        found: All comparisons, `one` among them: the cost of a row comes from those of the same workload.
    """
    periods: Mapping[int, float] = {
        other.streams: other.pipe.period for other in found if other.workload == one.workload
    }
    return zombie_share(one.streams, one.pipe.length, periods)


def streams_predicted(one: Comparison, found: Iterable[Comparison]) -> float:
    """Return the speed-up that the model gives for streams of equal rate, as a factor."""
    return predicted_gain(one.gain, streams_share(one, found))


def compare(rigs: tuple[Rig, Rig], subject: Subject, workload: Workload, streams: int, rounds: int) -> Comparison:
    """Run rounds on engines of depth 1 and 2 alternately, so that drift affects both.

    Args:
        rigs: Of depth 1 and 2.
        subject: Whose requests are put.
        workload: Of the requests.
        streams: Requests of a round.
        rounds: Without tracing: blocking, pipelined, and pipelined with known ends. At most `TRACED` of the first two
            kinds are repeated with tracing. One more, the first, warms up.
    """
    blocking, pipelined = rigs
    kinds = [(blocking, False), (pipelined, False), (pipelined, True)]
    plain: list[list[Round]] = [[], [], []]
    for number in range(rounds + 1):
        for kind in _turn(range(3), number):
            rig, told = kinds[kind]
            one = rig.run(requests(subject, workload, streams, seed=number, bounded=told), traced=False)
            if number > 0:
                plain[kind].append(one)
    traced: list[list[Round]] = [[], []]
    for number in range(min(rounds, TRACED)):
        for kind in _turn(range(2), number):
            made = requests(subject, workload, streams, seed=rounds + 1 + number)
            traced[kind].append(rigs[kind].run(made, traced=True))
    block, pipe = (DepthFigures.of(plain[depth], traced[depth]) for depth in (0, 1))
    return Comparison(
        workload,
        streams,
        block,
        pipe,
        told_walls=[_wall(one) for one in plain[2]],
        agreement=Agreement.of(_pairs(plain[0] + traced[0], plain[1] + traced[1])),
    )


def _turn(kinds: range, number: int) -> list[int]:
    """Return the kinds, rotated by one each time."""
    first = number % len(kinds)
    return [*kinds[first:], *kinds[:first]]


def _ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    return [value / other for value, other in zip(values, others, strict=True)]


def _wall(one: Round) -> float:
    return one.freed - one.prefilled


def _pairs(block: Sequence[Round], pipe: Sequence[Round]) -> Iterable[tuple[Sequence[Chosen], Sequence[Chosen]]]:
    return (pair for one, other in zip(block, pipe, strict=True) for pair in zip(one.tokens, other.tokens, strict=True))


def _common(one: Sequence[Chosen], other: Sequence[Chosen]) -> int:
    """Count the tokens before the first difference."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
