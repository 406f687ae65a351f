"""`Engine.submit`: the sequence that it makes of a request."""

import time
from collections.abc import Iterator

import pytest
import torch

from photonlite.config import EngineConfig
from photonlite.engine.engine import Engine
from photonlite.request import Request, SamplingSettings, Token
from tests.engine.fakes import FakeSink, Words
from tests.tiny import CPU, tiny_config, tiny_model


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine(tiny_model(tiny_config()), CPU, torch.float32, EngineConfig(max_batch=2))
    yield engine
    engine.close(drain=False)


@pytest.mark.parametrize("seconds_ago", [0.0, 40.0])
def test_a_deadline_counts_from_the_call_not_from_the_submission(engine: Engine, seconds_ago: float) -> None:
    request = Request("query", (Token(1),), Words(2), 2, SamplingSettings())
    asked = time.perf_counter() - seconds_ago
    sequence = engine.submit(request, FakeSink(), deadline_s=6000.0, submitted=asked)

    assert sequence.deadline == asked + 6000.0
    assert sequence.times.submitted == asked
