from types import SimpleNamespace
from typing import Any

import pytest

from bench.overlap import served
from bench.overlap.served import Place, await_streams, ways_of
from photonlite.config import EngineConfig
from photonlite.errors import StepError


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


def test_a_way_in_which_clients_fail_costs_no_other_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(model: str, *_: object) -> tuple[SimpleNamespace, float]:
        if model == "broken":
            raise StepError("the device failed")
        counted: dict[str, Any] = {"submitted": 8, "answered": 7, "late": 1, "dropped": {"deadline": 1, "closed": 0}}
        return SimpleNamespace(latency=SimpleNamespace(p99=0.0312), failures={}, **counted), 21.3

    monkeypatch.setattr(served, "play", play)

    rows = served.frame_rates({"12 SMs": "broken", "turns": "fine"}, 16, 1.0)  # type: ignore[dict-item]

    missed = "25.00% (1 deadline, 1 late)"
    assert [row[1:] for row in rows] == [["12 SMs", *["failed"] * 3], ["turns", "21.3/s", missed, "31.2 ms"]]
