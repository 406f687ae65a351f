"""Both depths side by side: what was measured of one workload with one number of streams."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.bubble.figures import Steady, predicted, steady, together, typical
from bench.bubble.rounds import Chosen, Rig, Round
from bench.bubble.subjects import Subject, Workload, requests


@dataclass(frozen=True, slots=True)
class DepthFigures:
    """Measurements of one depth, in seconds.

    Attributes:
        period: Between commits at full batch, of rounds that were not traced: what the text calls T.
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

    period: float
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
        """Take the figures of rounds."""
        periods = [later - earlier for one in plain for earlier, later in pairwise(one.commits)]
        return cls(
            period=typical(periods),
            steady=together([steady(one.steady_spans) for one in traced]),
            walls=[one.freed - one.prefilled for one in plain],
            answers=[one.last_end - one.prefilled for one in plain],
            steps=sum(one.steps for one in plain),
            rows=sum(one.rows for one in plain),
            zombies=sum(one.zombies for one in plain),
            tokens=sum(len(tokens) for one in plain for tokens in one.tokens),
            requests=sum(len(one.tokens) for one in plain),
            last=traced[-1],
        )

    @property
    def length(self) -> float:
        """Tokens of a request, on average: L."""
        return self.tokens / self.requests

    @property
    def zombie_share(self) -> float:
        """Rows that carried sequences which had ended, as a share of all rows: z."""
        return self.zombies / self.rows if self.rows else math.nan


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far the answers of both depths are the same.

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
        agreement: Of the answers.
    """

    workload: Workload
    streams: int
    block: DepthFigures
    pipe: DepthFigures
    agreement: Agreement

    @property
    def gain(self) -> float:
        """T_block / T_pipe."""
        return self.block.period / self.pipe.period

    @property
    def predicted(self) -> float:
        """The speed-up that the model promises, as a factor."""
        return predicted(self.block.period, self.pipe.period, self.pipe.zombie_share)

    @property
    def observed(self) -> float:
        """The speed-up that was seen, as a factor: the ratio of the total times of the decode phases."""
        return sum(self.block.walls) / sum(self.pipe.walls)

    @property
    def observed_rounds(self) -> list[float]:
        """The same of each pair of rounds."""
        return [one / other for one, other in zip(self.block.walls, self.pipe.walls, strict=True)]

    @property
    def observed_answers(self) -> float:
        """The same until the last token: what a caller waits for, who does not see the last zombie's step."""
        return sum(self.block.answers) / sum(self.pipe.answers)


def compare(rigs: tuple[Rig, Rig], subject: Subject, workload: Workload, streams: int, rounds: int) -> Comparison:
    """Run rounds on engines of depth 1 and 2 by turns, so that whatever drifts meets both.

    Args:
        rigs: Of depth 1 and 2.
        subject: Whose requests are put.
        workload: Of the requests.
        streams: Requests of a round.
        rounds: With and without tracing each; one more, the first, warms up.
    """
    runs: dict[tuple[int, bool], list[Round]] = {(depth, traced): [] for depth in (1, 2) for traced in (False, True)}
    for number in range(2 * rounds + 1):
        traced = number % 2 == 1
        for rig in rigs if number % 4 < 2 else rigs[::-1]:
            one = rig.run(requests(subject, workload, streams, seed=number), traced=traced)
            if number > 0:
                runs[rig.depth, traced].append(one)
    pairs = [
        pair
        for traced in (False, True)
        for one, other in zip(runs[1, traced], runs[2, traced], strict=True)
        for pair in zip(one.tokens, other.tokens, strict=True)
    ]
    block, pipe = (DepthFigures.of(runs[depth, False], runs[depth, True]) for depth in (1, 2))
    return Comparison(workload, streams, block, pipe, Agreement.of(pairs))


def _common(one: Sequence[Chosen], other: Sequence[Chosen]) -> int:
    """Count the tokens before the first difference."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
