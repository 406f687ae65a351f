from types import SimpleNamespace

import pytest

from bench.overlap.served import Place, await_streams, ways_of
from photonlite.config import EngineConfig


def test_ways_in_parts_are_measured_for_each_size() -> None:
    ways = ways_of(["turns", "reserved"], [36, 68])

    assert list(ways) == ["turns", "reserved, 36 SMs", "reserved, 68 SMs"]
    configs = [EngineConfig(**settings) for settings in ways.values()]
    assert [(one.encode_sms, one.realtime_part) for one in configs] == [(None, False), (36, True), (68, True)]


def test_a_stream_that_fails_ends_the_wait_for_its_tokens() -> None:
    place = Place(lambda place: None)
    place.on_finish(SimpleNamespace(error=RuntimeError("the card is lost")))  # type: ignore[arg-type]

    with pytest.raises(RuntimeError, match="card is lost"):
        await_streams(lambda: False, [place])
