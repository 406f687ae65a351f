import pytest

from photonlite.engine.core import EngineCore
from photonlite.observe.trace import Tracer
from photonlite.request import Token
from photonlite.sequence import Sequence
from tests.engine.fakes import PAGE, Bench, ends_at


def short_of_pages(length: int = 30, *, usable: int = 16, swap_pages: int = 40, depth: int = 2) -> Bench:
    """Three answers together need more pages than there are."""
    bench = Bench(ends_at(length), pages=usable + 1, swap_pages=swap_pages, prefix_caching=False, depth=depth)
    bench.runner.per_position = 1.0  # computing again is dear
    return bench


def until_it_leaves(bench: Bench) -> Sequence:
    """Tick until a sequence is on its way out."""
    bench.runner.copies_last = True
    for _ in range(200):
        bench.core.tick()
        if bench.runner.copying:
            return bench.runner.copying[0].sequence
    raise AssertionError("no sequence has left")


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("lasting", [False, True])
def test_nothing_is_computed_twice(depth: int, lasting: bool) -> None:
    bench = short_of_pages(depth=depth)
    bench.runner.copies_last = lasting
    sinks = [bench.ask(budget=30) for _ in range(3)]
    bench.run()

    metrics, positions = bench.core.metrics, {one: [0] * one.longest for one in bench.sequences}
    for step in bench.runner.steps:
        for row in step.rows:
            for position in range(row.start, row.start + row.count):
                positions[row.sequence][position] += 1
    assert all(set(counts) == {1} for counts in positions.values())
    assert [len(sink.tokens) for sink in sinks] == [30, 30, 30]
    assert metrics.swaps > 0
    assert metrics.preemptions == 0
    assert metrics.pages_swapped_out == metrics.pages_swapped_in > 0
    assert bench.everything_is_free()
    assert bench.scheduler.running.swap.places is not None
    assert bench.scheduler.running.swap.places.free == 40


def test_pages_stay_until_they_are_copied_and_others_decode_meanwhile() -> None:
    bench = short_of_pages()
    for _ in range(3):
        bench.ask(budget=30)
    one = until_it_leaves(bench)
    (transfer,) = bench.runner.copying
    free, steps = bench.pages.free, len(bench.runner.steps)

    assert transfer.pages == tuple(one.pages[: len(transfer.pages)])
    assert one.row == transfer.row
    assert one.inflight_refs == 0
    bench.check()
    bench.core.tick()
    assert bench.pages.free <= free
    assert one.row == transfer.row
    assert len(bench.runner.steps) >= steps
    assert all(one not in [row.sequence for row in step.rows] for step in bench.runner.steps[steps:])
    bench.runner.copies_last = False
    bench.core.tick()
    assert (one.row, one.pages) == (None, [])
    assert bench.scheduler.running.swap.swapped == [one]


def test_swapped_sequences_return_before_waiting_ones_are_admitted() -> None:
    bench = short_of_pages()
    for _ in range(6):
        bench.ask(budget=30)
    bench.run()

    begun = [row.sequence.number for step in bench.runner.steps if step.kind == "prefill" for row in step.rows]
    assert begun == sorted(begun)
    back = [one.sequence.number for one in bench.runner.transfers if one.direction == "in"]
    assert back
    for number in back:
        came = next(at for at, one in enumerate(bench.runner.transfers) if one.sequence.number == number)
        assert bench.runner.transfers[came].direction == "out"


@pytest.mark.parametrize(
    ("page_s", "swap_pages", "why"),
    [(1e6, 40, "computing it again takes less time"), (0.0, 1, "host memory has room for 1"), (0.0, 40, "copying")],
)
def test_costs_and_room_decide_and_the_trace_says_so(page_s: float, swap_pages: int, why: str) -> None:
    bench = short_of_pages(swap_pages=swap_pages)
    bench.core = EngineCore(bench.scheduler, bench.runner, 2, tracer=Tracer())
    bench.scheduler.running.swap.page_s = bench.runner.per_page = page_s
    for _ in range(3):
        bench.ask(budget=30)
    bench.run()

    swaps = why == "copying"
    spans = [span for span in bench.core.tracer.spans() if span.name == ("swap" if swaps else "recompute")]
    assert spans
    assert all(why in span.args["why"] for span in spans)
    assert (bench.core.metrics.swaps > 0) == swaps
    assert (bench.core.metrics.preemptions > 0) == (not swaps)


def test_a_slow_bus_is_tried_again_after_a_while() -> None:
    bench = short_of_pages()
    swap, one = bench.scheduler.running.swap, bench.sequences
    bench.ask(budget=30)
    one[0].num_computed_tokens = one[0].num_committed_tokens = 8
    swap.recompute_s, swap.page_s = (lambda sequence: 1.0), 10.0

    assert [swap.chooses_swap(one[0]) for _ in range(400)].count(True) > 0


def test_a_prompt_that_gave_nothing_is_not_kept() -> None:
    bench = short_of_pages()
    bench.ask(budget=30)
    one, swap = bench.sequences[0], bench.scheduler.running.swap
    one.num_computed_tokens = 8  # and none of them committed: what the prompt has read is void

    assert not swap.chooses_swap(one)
    assert "must start again" in swap.take_choices()[0].why


@pytest.mark.parametrize("when", ["leaving", "swapped", "returning"])
def test_a_sequence_that_is_cancelled_gives_everything_back(when: str) -> None:
    bench = short_of_pages()
    sinks = [bench.ask(budget=30) for _ in range(3)]
    one = until_it_leaves(bench)
    swap = bench.scheduler.running.swap
    if when != "leaving":
        bench.runner.copies_last = False
        bench.core.tick()
        assert one in swap.swapped
    if when == "returning":
        bench.runner.copies_last = True
        while one not in swap.returning:
            bench.core.tick()
    bench.core.cancel(one)
    bench.run()

    assert len(sinks[one.number].ends) == 1
    assert bench.everything_is_free()
    assert not len(swap)
    assert swap.places is not None
    assert swap.places.free == 40


@pytest.mark.parametrize("failing", [{0}, {1}, set(range(50))])
def test_a_copy_that_fails_is_computed_again(failing: set[int]) -> None:
    bench = short_of_pages()
    bench.runner.failing_copies = failing
    sinks = [bench.ask(budget=30) for _ in range(3)]
    bench.run()

    assert all(sink.ends[0].error is None and len(sink.tokens) == 30 for sink in sinks)
    assert bench.core.metrics.preemptions > 0
    assert bench.everything_is_free()


@pytest.mark.parametrize(("usable", "length", "every"), [(16, 20, 6), (20, 40, 12), (24, 40, 12)])
def test_what_comes_back_beside_a_stream_of_realtime_requests_works_before_it_leaves_again(
    usable: int, length: int, every: int
) -> None:
    def token(sequence: Sequence, index: int) -> Token:
        return Token(0 if sequence.realtime and index == length - 1 else 7)

    bench = Bench(token, pages=usable + 1, swap_pages=60, prefix_caching=False)
    bench.runner.per_position = 1.0
    bench.ask(budget=50)
    (bulk,) = bench.sequences
    for tick in range(600):
        if tick % every == 0 and bench.core.open_realtime < 4:
            bench.ask(budget=45, realtime=True)
        bench.core.tick()
        bench.check()

    assert bulk.times.swaps > 0
    assert len(bulk.tokens) >= 2 * bulk.times.swaps


@pytest.mark.parametrize(("pages", "length", "lasts"), [(14, 15, 4), (15, 15, 9), (16, 10, 4)])
def test_at_its_turn_no_realtime_prompt_takes_the_pages_of_what_comes_back(pages: int, length: int, lasts: int) -> None:
    def token(sequence: Sequence, index: int) -> Token:
        return Token(0 if sequence.realtime and index == length - 1 else 7)

    bench = Bench(token, pages=pages, swap_pages=60, prefix_caching=False)
    bench.runner.per_position = 1.0
    bench.ask(budget=50)
    (bulk,) = bench.sequences
    idle, came_back = 0, -1
    for tick in range(900):
        bench.runner.copies_last = tick % lasts != 0
        while bench.core.open_realtime < 5:
            bench.ask(budget=20, realtime=True)
        bench.core.tick()
        bench.check()
        swap = bench.scheduler.running.swap
        if bulk in swap.returning:
            came_back = bulk.num_computed_tokens
        elif bulk in swap.leaving and came_back >= 0:
            idle += came_back == bulk.num_computed_tokens
            came_back = -1

    assert bulk.times.swaps > 0
    assert idle == 0
    assert len(bulk.tokens) > 2 * bulk.times.swaps


@pytest.mark.parametrize(("length", "every"), [(6, 1), (9, 3)])
def test_a_long_bulk_sequence_ends_beside_a_stream_of_short_realtime_requests(length: int, every: int) -> None:
    def token(sequence: Sequence, index: int) -> Token:
        return Token(0 if sequence.realtime and index == length - 1 else 7)

    bench = Bench(token, pages=16, swap_pages=60, prefix_caching=False)
    bench.runner.per_position = 1.0
    bulk = bench.ask(budget=56)
    while len(bulk.tokens) < 20:
        bench.core.tick()
    for tick in range(900):
        if bench.core.open_realtime < 6 and tick % every == 0:
            bench.ask(budget=length + 2, realtime=True)
        bench.core.tick()
        bench.check()

    assert bench.sequences[0].times.swaps > 0
    assert bulk.ends


def test_of_bulk_sequences_one_that_has_worked_gives_way_before_one_that_has_just_come_back() -> None:
    bench = Bench(ends_at(60), pages=40, swap_pages=40, prefix_caching=False)
    for _ in range(3):
        bench.ask(budget=60)
    bench.core.tick()
    bench.core.tick()
    running = bench.scheduler.running
    first, second, third = running.sequences

    assert running._choose_victim(first) is third
    third.turn_end = third.num_computed_tokens + 1
    assert running._choose_victim(first) is second
    assert running._choose_victim(second) is third  # no older one gives way
    second.realtime = True  # nor a real-time one
    assert running._choose_victim(first) is third


def test_only_pages_that_the_cache_lost_come_back() -> None:
    bench = Bench(ends_at(30), pages=17, swap_pages=40)
    bench.runner.per_position = 1.0
    for _ in range(3):
        bench.ask(budget=30)  # all have the same prompt, which is less than a page
    bench.run()
    one = next(transfer for transfer in bench.runner.transfers if transfer.direction == "in")

    assert len(one.pages) == len(one.places) <= -(-one.sequence.longest // PAGE)


def test_an_engine_is_not_idle_while_pages_move() -> None:
    bench = short_of_pages()
    for _ in range(3):
        bench.ask(budget=30)
    until_it_leaves(bench)
    bench.core.end_all(ValueError())
    while bench.core.pipeline.oldest is not None:
        bench.runner.copies_last = True
        bench.core._commit(None)

    assert not bench.core.idle
    bench.run()
    assert bench.core.idle
    assert bench.everything_is_free()
