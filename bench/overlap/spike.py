"""Encoding beside decoding: in turns, on plain streams, in parts of the card, and with fewer programs."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch

from bench.bubble.subjects import random_model
from bench.gpu.command import say
from bench.overlap.rows import HEAD, PARTS, PROGRAMS, STREAMS, TUNED, TURNS, Row, best_split
from bench.overlap.tilings import FEW, Choices, Kinds, fewer_sms
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.fused.decode import FusedDecode
from photonlite.models.moondream.model import MoondreamModel
from photonlite.tuning.lanes import Card, Lane, Replay
from photonlite.tuning.paces import SECONDS, Pace, alone, beside, turns
from photonlite.tuning.profile import sizes_of
from photonlite.tuning.works import Decoding, Work, encoder_of, encoding

CONFINED = 1.4  # a part whose work runs at more than this multiple of its share of the SMs is none
_SEARCH_S = 40.0  # for the tilings of one part and number of streams


class Subject:
    """A model with random weights, its encoding and its decode steps.

    Args:
        config: Of the model.
        device: Where it is.
        dtype: Of its weights.
        crops: Of the image that is encoded.
        context: Positions of each sequence.
    """

    def __init__(
        self, config: MoondreamConfig, device: torch.device, dtype: torch.dtype, crops: int, context: int
    ) -> None:
        self.model: MoondreamModel = random_model(config, device, dtype)
        self.kinds = Kinds(config.text)
        self.context = context
        self._device, self._crops = device, crops
        self._steps: dict[int, Decoding] = {}
        self._encoder = encoder_of(self.model)
        self.encode: Work = encoding(self.model, self._encoder, crops, device)

    def encodings(self) -> dict[int, Work]:
        """Return the encodings of some numbers of crops up to that of the image."""
        sizes = sizes_of(self._crops, 3)
        return {crops: encoding(self.model, self._encoder, crops, self._device) for crops in sizes}

    def step(self, streams: int) -> Decoding:
        """Return the decode step of so many sequences."""
        if streams not in self._steps:
            with torch.inference_mode():
                decoder = FusedDecode(self.model.config.text, self.model.packed_blocks)
                self._steps[streams] = Decoding(self.model, streams, self.context, self._device, decoder)
        return self._steps[streams]


@dataclass(frozen=True, slots=True)
class Placed:
    """Work on a lane."""

    lane: Lane
    replay: Replay
    pace: Pace  # alone there


class Spike:
    """Runs the measurements and keeps their rows.

    Args:
        card: What has lanes.
        subject: What runs on them.
        streams: Numbers of sequences.
        seconds: That a measurement takes.
        on_row: Called after each row.

    Attributes:
        rows: What was measured.
    """

    def __init__(
        self,
        card: Card,
        subject: Subject,
        streams: Sequence[int],
        seconds: float = SECONDS,
        on_row: Callable[[], object] = lambda: None,
    ) -> None:
        self.rows: list[Row] = []
        self._card, self._subject, self._streams, self._seconds = card, subject, streams, seconds
        self._on_row = on_row
        self._parts: dict[int, tuple[Lane, Lane]] = {}
        self._encodings: dict[Lane, Placed] = {}
        say(" | ".join(HEAD))

    def whole(self) -> None:
        """Measure turns, and plain streams."""
        decode_lane, encode = self._whole
        for streams in self._streams:
            placed = self._decoding(decode_lane, streams)
            own = decode_lane.capture(self._subject.encode)  # turns share a lane
            found = turns(self._card, decode_lane, (placed.replay, placed.pace), (own, encode.pace), self._seconds)
            self._add(TURNS, streams, placed, encode, found)
            self._measure(STREAMS, streams, placed, encode)

    def parts(self, sms: int) -> None:
        """Measure parts of `sms` SMs for decoding and the rest for encoding."""
        for streams in self._streams:
            decode, encode = self._part(sms)
            placed = self._decoding(decode, streams)
            self._measure(PARTS, streams, placed, self._encoding(encode), self._confinement(self._encoding(encode)))

    def programs(self, sms: int) -> None:
        """Measure plain streams of which encoding uses `sms` SMs, where cuBLAS obeys, and decoding few programs."""
        kinds = self._subject.kinds
        decode_lane, _ = self._whole
        encode_lane = self._card.whole()
        with fewer_sms(sms, self._card.sms):
            encode = self._place(encode_lane, encode_lane.capture(self._subject.encode))
        for few in ({}, FEW):
            note = f"products have fewer programs: {kinds.programs(few)}" if few else "only cuBLAS is limited"
            for streams in self._streams:
                placed = self._decoding(decode_lane, streams, few)
                self._measure(PROGRAMS, streams, placed, encode, f"{note}; cuBLAS has {sms} SMs")

    def tuned(self, streams: int, sms: int | None, until: float) -> None:
        """Measure the best split, or a given one, with tilings searched for its part; not begun after `until`."""
        best = best_split(self.rows, streams)
        size = sms if sms is not None else best and best[0]
        if size is None or time.perf_counter() > until:
            say(f"{TUNED}, {streams} streams: " + ("no parts were measured" if size is None else "no time is left"))
            return
        decode, encode = self._part(size)
        if any(row.how == TUNED and row.streams == streams and row.sms[0] == decode.sms for row in self.rows):
            return
        step, stop = self._subject.step(streams), min(until, time.perf_counter() + _SEARCH_S)
        choices = self._subject.kinds.search(self._card, decode, step, stop, say)
        note = "; ".join(f"{name}: {choice}" for name, choice in choices.items()) or "the usual tilings are best"
        self._measure(TUNED, streams, self._decoding(decode, streams, choices), self._encoding(encode), note)

    @cached_property
    def _whole(self) -> tuple[Lane, Placed]:
        lane = self._card.whole()
        alone(self._card, lane, lane.capture(self._subject.encode), self._seconds)  # until the clock is up
        return self._card.whole(first=True), self._encoding(lane)

    def _part(self, sms: int) -> tuple[Lane, Lane]:
        if sms not in self._parts:
            lanes = self._card.divided(sms)
            self._parts[lanes[0].sms] = self._parts[sms] = lanes
        return self._parts[sms]

    def _decoding(self, lane: Lane, streams: int, choices: Choices | None = None) -> Placed:
        return self._place(lane, self._subject.kinds.capture(lane, self._subject.step(streams), choices or {}))

    def _encoding(self, lane: Lane) -> Placed:
        if lane not in self._encodings:
            self._encodings[lane] = self._place(lane, lane.capture(self._subject.encode))
        return self._encodings[lane]

    def _place(self, lane: Lane, replay: Replay) -> Placed:
        return Placed(lane, replay, alone(self._card, lane, replay, self._seconds))

    def _confinement(self, encode: Placed) -> str:
        """Say so if an encoding is too fast for its part: then its graph was not confined to it."""
        speed = self._whole[1].pace.mean / encode.pace.mean
        share = encode.lane.sms / self._card.sms
        return f"NOT CONFINED: {speed:.0%} of its speed on {share:.0%} of the SMs" if speed > CONFINED * share else ""

    def _measure(self, how: str, streams: int, decode: Placed, encode: Placed, note: str = "") -> None:
        first, second = ((one.lane, one.replay, one.pace) for one in (decode, encode))
        self._add(how, streams, decode, encode, beside(self._card, first, second, self._seconds), note)

    def _add(
        self, how: str, streams: int, decode: Placed, encode: Placed, found: tuple[Pace, Pace], note: str = ""
    ) -> None:
        whole = next((row.decode_whole for row in self.rows if row.streams == streams), decode.pace.mean)
        sms = decode.lane.sms, encode.lane.sms
        encode_whole = self._whole[1].pace.mean
        self.rows.append(Row(how, streams, sms, whole, encode_whole, decode.pace, encode.pace, *found, note))
        say(" | ".join(self.rows[-1].cells()) + (f" | {note}" if note else ""))
        self._on_row()


def run_all(
    spike: Spike,
    attempt: Callable[[str, Callable[[], object]], object],
    streams: Sequence[int],
    splits: Iterable[int],
    until: float,
) -> None:
    """Run all parts of the spike, each for itself, so that one which fails costs no other; the riskiest come last."""
    attempt("turns and plain streams", spike.whole)
    sizes = list(splits)
    for sms in sizes:
        attempt(f"parts, {sms} SMs for decoding", partial(spike.parts, sms))
    for number in sorted(streams, key=lambda one: abs(one - 32)):
        attempt(f"own tilings, {number} streams", partial(spike.tuned, number, None, until))
    for sms in sizes:
        attempt(f"own tilings for {sms} SMs", partial(spike.tuned, sorted(streams)[len(streams) // 2], sms, until))
    for sms in (84, 64):
        attempt(f"fewer programs, {sms} SMs for cuBLAS", partial(spike.programs, sms))
