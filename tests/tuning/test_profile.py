import pytest

from photonlite.tuning.interference import Pair
from photonlite.tuning.profile import Profile, measure, sizes_of, tuning_of
from photonlite.tuning.schedule import load_tuning, save_tuning
from tests.tuning.virtual import Timed, VirtualCard

SPEEDS = {("decode", 64): 0.85, ("encode", 68): 0.55, ("decode", 32): 0.5, ("encode", 100): 0.8}
BESIDE = {("decode", "encode"): 0.9, ("encode", "decode"): 0.9}
ENCODINGS = {3: Timed("encode", 0.0045), 6: Timed("encode", 0.0082), 9: Timed("encode", 0.012)}
STEPS = {8: Timed("decode", 0.0013), 32: Timed("decode", 0.0025)}


def profile_of(card: VirtualCard, said: list[str]) -> Profile:
    return measure(card, ENCODINGS, STEPS, (64, 32), said.append)


def test_works_are_measured_alone_and_in_pairs() -> None:
    said: list[str] = []

    profile = profile_of(VirtualCard(SPEEDS, BESIDE), said)

    assert profile.encode == {crops: pytest.approx(work.seconds) for crops, work in ENCODINGS.items()}
    assert profile.steps == {streams: pytest.approx(work.seconds) for streams, work in STEPS.items()}
    [half, quarter] = profile.pairs[32]
    assert (half.sms, half.compute, half.other) == (64, pytest.approx(0.55 * 0.9), pytest.approx(0.85 * 0.9))
    assert (quarter.sms, quarter.compute, quarter.other) == (32, pytest.approx(0.72), pytest.approx(0.45))
    assert sum("SMs" in line for line in said) == 4


@pytest.mark.long
def test_schedules_of_a_profile_gain_what_pairs_do_and_survive_their_file(tmp_path) -> None:
    tuning = tuning_of(profile_of(VirtualCard(SPEEDS, BESIDE), []), {"card": "virtual", "sms": "132"})

    assert set(tuning.streams) == {8, 32}
    for one in tuning.streams.values():
        assert 1.05 < one.gain <= (0.55 + 0.85) * 0.9
    assert tuning.use == max(tuning.streams, key=lambda one: tuning.streams[one].gain)
    assert tuning.decode_sms in (32, 64)
    assert {count: one.step_s for count, one in tuning.streams.items()} == pytest.approx({8: 0.0013, 32: 0.0025})
    save_tuning(tmp_path / "tuning.json", tuning)
    assert load_tuning(tmp_path / "tuning.json") == tuning


@pytest.mark.long
def test_the_schedule_that_gains_most_is_used() -> None:
    pairs = {8: [Pair(64, 0.55, 0.85)], 32: [Pair(64, 0.4, 0.4)]}

    tuning = tuning_of(Profile({9: 0.012}, {8: 0.003, 32: 0.004}, pairs), {"sms": "132"})

    assert (tuning.use, tuning.decode_sms) == (8, 64)
    assert tuning.streams[32].decode_sms() is None


@pytest.mark.parametrize(("batch", "pieces"), [(1, 3), (2, 4), (3, 3), (5, 4), (9, 3), (10, 4), (13, 3)])
def test_sizes_fill_a_batch_in_two_pieces_too(batch: int, pieces: int) -> None:
    sizes = sizes_of(batch, pieces)

    assert max(sizes) == batch
    assert min(sizes) >= 1
    assert batch == 1 or any(batch - size in sizes for size in sizes)
    assert len(sizes) <= pieces + 1
