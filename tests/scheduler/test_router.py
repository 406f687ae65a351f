import itertools
from random import Random

import numpy as np
import pytest

from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.config import EngineConfig, RouterRule
from photonlite.errors import SettingsError
from photonlite.request import Request, SamplingSettings, Token
from photonlite.scheduler.limits import Limits
from photonlite.scheduler.router import DECREASE, GROWTH, AnswerLengths, Router, peak
from photonlite.sequence import Sequence
from tests.engine.fakes import Bench, FakeSink, Words, ends_at

PAGE = 4


def limits(rule: RouterRule, share: float = 1.0, longest: int = 100) -> Limits:
    return Limits(8, 16, 1000, 8, max_positions=longest, router=rule, router_budget=share)


class Desk:
    """A router, its cache, and sequences that are admitted or not."""

    def __init__(self, rule: RouterRule, usable: int = 100, share: float = 1.0) -> None:
        self.cache = CacheManager(PagePool(usable + 1, PAGE), prefix_caching=False)
        self.router = Router(self.cache, limits(rule, share))
        self.running: list[Sequence] = []
        self._numbers = itertools.count()

    def sequence(self, prompt: int, budget: int, *, realtime: bool = False) -> Sequence:
        request = Request("query", (Token(1),) * prompt, Words(budget), budget, SamplingSettings(), realtime=realtime)
        one = Sequence(next(self._numbers), request, FakeSink(), 1)
        self.cache.name(one)
        return one

    def start(self, prompt: int, budget: int, *, realtime: bool = False) -> bool:
        one = self.sequence(prompt, budget, realtime=realtime)
        if not self.router.admits(one, self.running, ()):
            return False
        assert self.cache.admit(one) is not None
        self.router.note_start(one, self.running)
        self.running.append(one)
        return True

    def end(self, one: Sequence, tokens: int) -> None:
        one.tokens = [Token(7)] * tokens
        self.running.remove(one)
        self.router.note_change()
        self.cache.release(one)
        self.router.note_end(one)


def stepped_peak(held: list[int], left: list[int]) -> int:
    """Let sequences grow one position a step; each is there up to its last one."""
    return max(
        sum(has + step for has, more in zip(held, left, strict=True) if more >= step) for step in range(max(left) + 1)
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_is_the_most_that_sequences_hold_at_any_step(seed: int) -> None:
    random = Random(seed)
    count = random.randrange(1, 12)
    held, left = ([random.randrange(30) for _ in range(count)] for _ in range(2))

    assert peak(np.array(held, float), np.array(left, float)) == stepped_peak(held, left)


def test_lengths_have_mean_and_spread() -> None:
    lengths, values = AnswerLengths(), [3, 9, 40, 12, 7]
    for value in values:
        lengths.observe(value)

    assert lengths.mean == pytest.approx(np.mean(values))
    assert lengths.spread == pytest.approx(np.std(values))


def test_old_lengths_fade() -> None:
    lengths = AnswerLengths()
    for value in [5] * 1000 + [50] * 1000:
        lengths.observe(value)

    assert lengths.mean == pytest.approx(50, rel=0.01)


def test_an_answer_is_expected_to_be_as_long_as_its_limit_until_some_have_ended_and_then_as_theirs() -> None:
    desk = Desk("static")
    one = desk.sequence(3, 60)
    assert desk.router.tokens_to_come(one) == 60

    for length in (6, 10) * 4:
        ended = desk.sequence(3, 60)
        ended.tokens = [Token(7)] * length
        desk.router.note_end(ended)
    assert desk.router.tokens_to_come(one) == 8 + 2
    assert desk.router.tokens_to_come(desk.sequence(3, 5)) == 5  # its own limit
    one.tokens = [Token(7)] * 30
    assert desk.router.tokens_to_come(one) == 2  # longer than expected: a spread more


def test_failed_answers_do_not_count() -> None:
    desk = Desk("static")
    for _ in range(8):
        failed = desk.sequence(3, 60)
        failed.tokens, failed.error = [Token(7)], ValueError()
        desk.router.note_end(failed)

    assert desk.router.tokens_to_come(desk.sequence(3, 60)) == 60


def test_a_static_budget_bounds_what_sequences_will_need_together() -> None:
    # 40 positions; each holds two pages and gets 10 more.
    desk = Desk("static", usable=10)
    assert desk.start(5, 10)
    assert desk.start(5, 10)
    assert not desk.start(5, 10)
    assert Desk("static", usable=10).start(35, 10)  # alone it may


def test_a_budget_above_the_allocation_admits_more() -> None:
    desk = Desk("static", usable=10, share=1.5)

    assert [desk.start(5, 10) for _ in range(4)] == [True, True, True, False]


def test_answers_that_end_at_different_times_need_less_than_their_sum() -> None:
    desk = Desk("static", usable=12)  # 48 positions
    assert desk.start(5, 24)  # 8 and 24
    assert desk.start(7, 2)  # 8 and 2: when it ends, both hold 20
    assert desk.start(3, 4)  # 4 and 4: 12 + 8 when it ends


def test_once_a_prompt_was_held_back_prompts_start_again_when_there_is_room_for_several() -> None:
    desk = Desk("static", usable=500)  # 2,000 positions; the room is 40
    for length in (1900, 20, 40):
        assert desk.start(length, 1)
    _, short, longer = desk.running
    held = desk.sequence(64, 1)
    assert not desk.router.admits(held, desk.running, ())

    desk.end(short, 1)  # 1,944 held: it would just fit, and share a launch with no other
    assert not desk.router.admits(desk.sequence(40, 1), desk.running, ())
    assert desk.router.admits(desk.sequence(40, 1, realtime=True), desk.running, ())
    desk.end(longer, 1)
    assert desk.router.admits(desk.sequence(40, 1), desk.running, ())
    assert desk.router.admits(desk.sequence(88, 1), desk.running, ())  # from then on up to the budget


def test_greedy_admits_whatever_is_asked_and_realtime_requests_need_no_budget() -> None:
    desk = Desk("greedy", usable=10)
    assert all(desk.start(5, 100) for _ in range(4))

    desk = Desk("static", usable=10)
    assert desk.start(5, 30)
    assert not desk.start(5, 30)
    assert desk.start(5, 30, realtime=True)


def test_reserve_admits_only_what_fits_at_its_longest() -> None:
    desk = Desk("reserve", usable=10)
    assert desk.start(5, 13)  # 18 positions: 5 pages
    assert desk.start(5, 13)
    assert not desk.start(1, 2)
    desk.end(desk.running[0], 3)
    assert desk.start(5, 13)


def test_what_ended_sequences_held_is_forgotten() -> None:
    desk = Desk("static", usable=10)
    assert desk.start(5, 10)
    assert desk.start(5, 10)
    assert not desk.start(5, 10)
    desk.end(desk.running[0], 3)
    assert desk.start(5, 10)


def test_reserve_counts_sequences_that_have_ended_and_are_still_carried() -> None:
    desk = Desk("reserve", usable=10)
    assert desk.start(5, 13)
    zombie = desk.running.pop()

    assert not desk.router.admits(desk.sequence(5, 17), desk.running, [zombie])
    assert desk.router.admits(desk.sequence(5, 13), desk.running, [zombie])


def test_the_budget_grows_while_it_holds_somebody_back_and_pages_are_idle() -> None:
    desk = Desk("adaptive", usable=100)  # 400 positions
    assert desk.start(9, 380)
    router, refused = desk.router, desk.sequence(9, 300)
    assert not router.admits(refused, desk.running, ())
    assert router.budget == pytest.approx(400 * (1 + GROWTH))
    for _ in range(1000):
        router.admits(refused, desk.running, ())
    assert router.budget == 600

    router.budget = 400.0
    assert desk.start(350, 1)  # 91 pages in use
    assert not router.admits(refused, desk.running, ())
    assert router.budget == 400


def test_the_budget_shrinks_by_a_factor_down_to_one_longest_request() -> None:
    router = Desk("adaptive", usable=100).router
    router.note_victim()
    assert router.budget == pytest.approx(400 * DECREASE)
    for _ in range(1000):
        router.note_victim()
    assert router.budget == 100  # max_positions

    static = Desk("static").router
    static.note_victim()
    assert static.budget == 400


def test_a_forecast_is_compared_with_what_its_sequences_needed() -> None:
    desk = Desk("static", usable=100)
    assert desk.start(6, 40)
    assert desk.start(6, 20)
    assert desk.router.figures()["predicted"] == (8 + 8 + 20 + 20) / PAGE
    first, second = desk.running
    desk.end(first, 4)
    assert desk.router.figures()["peak"] == 0
    desk.end(second, 8)

    figures = desk.router.figures()
    assert (figures["forecast"], figures["peak"]) == (14, (8 + 8 + 4 + 4) / PAGE)  # when the first one ends


def test_pages_of_the_prefix_cache_are_counted_once() -> None:
    bench = Bench(ends_at(90), pages=200, router="static")
    for _ in range(4):
        bench.ask(budget=90)
        bench.core.tick()
        bench.core.tick()
    router, running = bench.scheduler.running.router, bench.scheduler.running
    held = sum((len(one.pages) - one.shared_pages) * PAGE for one in running)

    assert held == router.used * PAGE


def test_an_adaptive_engine_answers_everything_with_few_pages() -> None:
    bench = Bench(ends_at(30), pages=25, router="adaptive", max_positions=60)
    sinks = [bench.ask(budget=50) for _ in range(12)]
    bench.run(2000)

    assert all(sink.ends and sink.ends[0].error is None for sink in sinks)
    assert bench.everything_is_free()


@pytest.mark.parametrize(("rule", "preempts"), [("greedy", True), ("reserve", False)])
def test_reserve_never_takes_pages_back(rule: RouterRule, preempts: bool) -> None:
    bench = Bench(ends_at(30), pages=17, router=rule)
    sinks = [bench.ask(budget=40) for _ in range(6)]
    bench.run(2000)

    assert all(len(sink.tokens) == 30 for sink in sinks)
    assert (bench.core.metrics.preemptions > 0) == preempts


def test_settings_name_the_rules_and_bound_the_budget() -> None:
    with pytest.raises(SettingsError, match=r"'router' is 'eager'.*'adaptive' or 'static' or 'greedy' or 'reserve'"):
        EngineConfig(router="eager")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"'router_budget' is 2.*at most 1.5"):
        EngineConfig(router_budget=2)
