"""Measures a model on a card and makes its tuning: works alone, pairs of them in parts, and schedules of both.

```
alone      encodings by crops, decode steps by streams           on the whole card
pairs      the largest encoding beside the steps of each         in each division of the card  ->  R -> P
schedule   one image encoded beside about as long of decoding    for each number of streams
```
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from photonlite.tuning.interference import Pair, table_of
from photonlite.tuning.lanes import Card
from photonlite.tuning.paces import SECONDS, alone, beside
from photonlite.tuning.schedule import StreamTuning, Tuning
from photonlite.tuning.search import search
from photonlite.tuning.works import Work

_SEARCH_S = 10.0  # for the schedule of one number of streams

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds of encodings by crops and of decode steps by streams, alone; and pairs of them by streams."""

    encode: Mapping[int, float]
    steps: Mapping[int, float]
    pairs: Mapping[int, Sequence[Pair]]


def measure(
    card: Card,
    encodings: Mapping[int, Work],
    steps: Mapping[int, Work],
    splits: Sequence[int],
    say: Say,
    seconds: float = SECONDS / 2,
) -> Profile:
    """Measure works alone and in pairs.

    Args:
        card: Where they run.
        encodings: By crops; the largest is that of pairs.
        steps: Decode steps by streams.
        splits: SMs of decoding in each division of the card.
        say: Takes a line for each measurement.
        seconds: That one takes.
    """
    lane, most = card.whole(), max(encodings)
    alone(card, lane, lane.capture(encodings[most]), seconds)  # until the clock is up
    encode = {crops: alone(card, lane, lane.capture(work), seconds).mean for crops, work in encodings.items()}
    step = {streams: alone(card, lane, lane.capture(work), seconds).mean for streams, work in steps.items()}
    for what, times in (("crops", encode), ("streams", step)):
        say(", ".join(f"{size} {what} {1e3 * one:.2f} ms" for size, one in times.items()))
    pairs: dict[int, list[Pair]] = {streams: [] for streams in steps}
    for sms in splits:
        decode_lane, encode_lane = card.divided(sms)
        image = encode_lane.capture(encodings[most])
        image_alone = alone(card, encode_lane, image, seconds)
        for streams, work in steps.items():
            replay = decode_lane.capture(work)
            there = alone(card, decode_lane, replay, seconds)
            own, other = beside(card, (decode_lane, replay, there), (encode_lane, image, image_alone), seconds)
            pair = Pair(decode_lane.sms, encode[most] / other.mean, step[streams] / own.mean)
            pairs[streams].append(pair)
            sizes = f"{decode_lane.sms} + {encode_lane.sms} SMs, {streams} streams"
            say(f"{sizes}: encode {pair.compute:.2f}, decode {pair.other:.2f}, sum {pair.compute + pair.other:.2f}")
    return Profile(encode, step, pairs)


def tuning_of(profile: Profile, made_for: Mapping[str, str]) -> Tuning:
    """Search for a schedule for each number of streams, with the pairs of its own steps; that of most gain is used."""
    crops = max(profile.encode)
    tuned = {}
    for streams, step in profile.steps.items():
        count = max(1, round(profile.encode[crops] / step))
        decode = {size: size * step for size in sizes_of(count, 4)}
        pairs = tuple(profile.pairs[streams])
        plan = search(profile.encode, decode, table_of(pairs), limit_s=_SEARCH_S)
        turns = profile.encode[crops] + count * step
        tuned[streams] = StreamTuning(step, pairs, turns, plan.makespan, plan.encode_share)
    return Tuning(made_for, tuned, max(tuned, key=lambda one: tuned[one].gain))


def sizes_of(batch: int, pieces: int) -> list[int]:
    """Return about `pieces` sizes up to a batch, of which sums make it."""
    unit = max(1, batch // pieces)
    return sorted({batch, *(batch - unit * part for part in range(1, pieces) if batch > unit * part), unit})
