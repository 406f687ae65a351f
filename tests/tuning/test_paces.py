import pytest

from photonlite.errors import SettingsError
from photonlite.tuning.paces import FEWEST, SKIPPED, Pace, alone, beside, intervals_until, turns
from tests.tuning.virtual import Timed, VirtualCard

DECODE, ENCODE = Timed("decode", 0.002), Timed("encode", 0.012)


def test_a_pace_has_mean_and_99th_percentile() -> None:
    pace = Pace.of([1.0] * 99 + [2.0])

    assert pace.mean == pytest.approx(1.01)
    assert 1.0 < pace.p99 < 2.0
    assert pace.count == 100
    assert Pace.of([3.0]) == Pace(3.0, 3.0, 1)


def test_a_pace_without_intervals_is_refused() -> None:
    with pytest.raises(SettingsError, match="measure for longer"):
        Pace.of([])


def test_first_intervals_and_those_behind_the_window_do_not_count() -> None:
    ends = [9.0, 9.5, 11.0, 13.0, 16.0]

    assert intervals_until(ends) == [1.5, 2.0, 3.0]
    assert intervals_until(ends, 13.5) == [1.5, 2.0]


def test_work_alone_repeats_at_the_speed_of_its_part() -> None:
    card = VirtualCard(speeds={("decode", 64): 0.5})
    part, _ = card.divided(64)

    pace = alone(card, part, part.capture(DECODE), 0.4)

    assert (pace.mean, pace.p99) == (pytest.approx(0.004), pytest.approx(0.004))
    assert card.ran == [[("decode", SKIPPED + FEWEST)], [("decode", SKIPPED + 100)]]


def test_long_work_is_measured_once() -> None:
    card = VirtualCard()
    lane = card.whole()

    assert alone(card, lane, lane.capture(ENCODE), 0.05).mean == pytest.approx(0.012)
    assert len(card.ran) == 1


@pytest.mark.parametrize("swapped", [False, True])
def test_beside_each_other_both_slow_down_as_the_table_says(swapped: bool) -> None:
    card = VirtualCard(beside={("decode", "encode"): 0.5, ("encode", "decode"): 0.8})
    lanes = card.whole(), card.whole()
    placed = [
        (lane, lane.capture(work), alone(card, lane, work)) for lane, work in zip(lanes, (DECODE, ENCODE), strict=True)
    ]

    first, second = beside(card, *(placed[::-1] if swapped else placed), seconds=0.4)

    decode, encode = (second, first) if swapped else (first, second)
    assert (decode.mean, encode.mean) == (pytest.approx(0.004), pytest.approx(0.015))
    assert decode.p99 == pytest.approx(0.004), "no interval after the encodings have ended"


def misjudged(card: VirtualCard, decode_s: float) -> tuple[Pace, Pace]:
    """Measure both at once, after decoding alone has seemed to take so long."""
    lanes = card.whole(), card.whole()
    decode = lanes[0], lanes[0].capture(DECODE), Pace(decode_s, decode_s, FEWEST)
    return beside(card, decode, (lanes[1], lanes[1].capture(ENCODE), Pace.of([ENCODE.seconds])), seconds=0.1)


def test_a_window_of_too_few_intervals_is_widened() -> None:
    card = VirtualCard()

    decode, encode = misjudged(card, 0.05)  # ten steps end before the second encoding does

    assert (decode.mean, encode.mean) == (pytest.approx(DECODE.seconds), pytest.approx(ENCODE.seconds))
    assert encode.count >= FEWEST
    assert [queues[0] for queues in card.ran] == [("decode", SKIPPED + 10 * 2**attempt) for attempt in range(3)]


def test_a_window_is_not_widened_for_ever() -> None:
    card = VirtualCard(speeds={("decode", VirtualCard.sms): 1e6})

    with pytest.raises(SettingsError, match="measure for longer"):
        misjudged(card, 0.05)


def test_by_turns_each_has_half_and_decoding_waits_for_an_encoding() -> None:
    card = VirtualCard()
    lane = card.whole()
    short, long = ((work, alone(card, lane, work)) for work in (DECODE, ENCODE))

    decode, encode = turns(card, lane, short, long, 0.4)

    assert encode.mean == pytest.approx(0.024)
    assert decode.mean == pytest.approx(0.004, rel=0.02)
    assert decode.p99 == pytest.approx(0.014), "a step and the encoding in front of it"
    assert DECODE.seconds / decode.mean + ENCODE.seconds / encode.mean == pytest.approx(1, abs=0.02)
