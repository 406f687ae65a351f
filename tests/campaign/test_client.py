import json
import random

import pytest

from bench.campaign.client import BROKEN, Answer, Ask, Load, ask, fault, query, statuses
from tests.server.live import live

TYPED = json.dumps({"error": {"message": "no", "type": "t", "code": "c"}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "complaint"),
    [
        (200, b"", ""),
        (400, TYPED, ""),
        (503, TYPED, ""),
        (504, TYPED, ""),
        (500, TYPED, "status 500"),
        (502, TYPED, "status 502"),
        (503, b"busy", "without a code"),
        (404, b'{"error": "no"}', "without a code"),
        (404, b'{"error": {"message": "", "type": "t", "code": "c"}}', "without a code"),
        (BROKEN, b"", "the connection broke"),
    ],
)
def test_what_a_client_may_get(status, body, complaint):
    line = fault(Answer(status, body, 0.0, 1.0))
    assert complaint in line
    assert bool(line) == bool(complaint)


def test_answers_come_with_their_status_and_body():
    with live() as server:
        answer = ask(server.port, Ask("/health"), source="127.0.0.9")
        typed = ask(server.port, Ask("/v1/query", b"[]"))
    assert answer.status == 200
    assert answer.ended > answer.begun
    assert (typed.status >= 400, bool(typed.code), fault(typed)) == (True, True, "")
    assert ask(server.port, Ask("/health")).status == BROKEN


def test_a_load_asks_until_it_is_stopped():
    chance = random.Random(0)
    with live() as server:
        with Load(server.port, lambda number: query(chance), 2) as load:
            first = load.wait(lambda answer: answer.status == 200)
            assert load.wait(lambda answer: first is not None and answer.begun > first.ended) is not None
        taken = load.drain()
    assert statuses(taken) == {"200": len(taken)}
    assert load.answers == []
