import asyncio
import itertools

import pytest

from bench.serve.images import Stock
from bench.serve.load import Level, Visit, arrivals, play
from bench.serve.wire import Client
from tests.serve.servers import BUSY, OK, request, serving


def visit(due, waited, status=200):
    return Visit(due, 0.0, waited, waited, status)


def test_arrivals_come_at_their_rate_and_do_so_again_for_the_same_seed():
    times = list(arrivals(50.0, 100.0, seed=3))
    assert times == list(arrivals(50.0, 100.0, seed=3)) != list(arrivals(50.0, 100.0, seed=4))
    assert len(times) == pytest.approx(5000, rel=0.06)
    assert times == sorted(times)
    assert times[0] > 0
    assert times[-1] < 100
    # Of a Poisson process, gaps scatter as widely as they are long.
    gaps = [after - before for before, after in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.2)


def test_a_level_counts_what_is_due_behind_its_beginning_and_answers_by_when_they_end():
    early = [visit(0.5, 1.0), visit(0.6, 0.1)]  # the first ends while it counts
    late = [visit(1.5, 0.2), visit(2.9, 5.0), visit(2.0, 0.01, 429), visit(2.5, 0.0, 503), visit(2.6, 0.0, 0)]
    level = Level(rate=2.0, settle_s=1.0, seconds=2.0, visits=[*early, *late], busy=0.0)
    assert level.counted == late
    assert level.answered == late[:2]
    assert level.refused == [late[2]]
    assert level.failures == 2
    assert level.goodput == 2 / 2.0


def test_load_does_not_wait_for_answers():
    free = asyncio.Event()
    waiting = []

    async def answer(body, writer):
        waiting.append(body)
        if len(waiting) == 20:
            free.set()  # no answer comes before
        await free.wait()
        writer.write(BUSY if body == b"1" else OK)

    async def use(port):
        client = Client("127.0.0.1", port)
        told = []
        stock = Stock([request(b"%d" % number) for number in range(200)])
        level = await play(client, stock, 400.0, settle_s=0.05, seconds=0.1, seed=1, tell=lambda: told.append(1))
        client.close()
        assert len(told) == len(level.visits)
        return level

    expected = list(arrivals(400.0, 0.15000000000000002, seed=1))
    assert len(expected) >= 20
    level = serving(answer, use)
    assert [one.due for one in level.visits] == expected
    assert [one.status for one in level.visits].count(429) == 1
    assert all(one.late >= 0 and one.late <= one.first <= one.waited for one in level.visits)
    assert (level.rate, level.settle_s, level.seconds) == (400.0, 0.05, 0.1)
