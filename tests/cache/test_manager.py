import itertools
from typing import Any

import pytest

from photonlite.batch import PageCopy
from photonlite.request import Request, SamplingSettings, Token
from photonlite.sequence import Sequence
from tests.cache.sequences import (
    Admission,
    NamedImage,
    admit,
    admitted,
    check,
    forget,
    manager_of,
    sequence,
    served,
    state_of,
)

# Pages of 4 positions; BOS and image are positions 0 to 5, so the image ends inside the second page.
PREFIX = 6
NUMBERS = itertools.count(10**6)
ANYTHING: Any = None  # for arguments that the cache does not read


def about(image: str, prompt=(1, 2, 3), **options):
    return sequence(prompt, image, prefix=PREFIX, **options)


def test_the_first_question_saves_the_image_tail():
    manager = manager_of(8)
    first = about("a")
    assert state_of(manager, "a") == "missing"
    admission = admitted(manager, first)
    assert admission == Admission(0, saves=(PageCopy(first.pages[1], target=4),))
    assert len(first.pages) == 3
    assert 4 not in first.pages
    assert state_of(manager, "a") == "building"
    check(manager, [first])
    manager.confirm(first)
    assert state_of(manager, "a") == "ready"
    manager.release(first)
    check(manager, [])


def test_another_question_shares_full_pages_and_copies_the_tail():
    manager = manager_of(9)
    first, second = about("a"), about("a", (7, 8))
    saved = admitted(manager, first).saves[0].target
    manager.confirm(first)
    admission = admitted(manager, second)
    assert admission == Admission(PREFIX, copies=(PageCopy(saved, second.pages[1]),))
    assert second.pages[0] == first.pages[0]
    assert not {saved, *first.pages} & set(second.pages[1:])
    check(manager, [first, second])


def test_the_same_prompt_shares_the_tail_page_without_a_copy():
    manager = manager_of(9)
    first, second = about("a"), about("a")
    admitted(manager, first)
    manager.confirm(first)
    assert admitted(manager, second) == Admission(8)
    assert second.pages[:2] == first.pages[:2]
    assert second.pages[2] != first.pages[2]
    check(manager, [first, second])


def test_an_image_that_fills_its_pages_has_no_tail_to_save_or_copy():
    manager = manager_of(8)
    first, second = sequence((1, 2), "a", prefix=8), sequence((3, 4), "a", prefix=8)
    assert admitted(manager, first) == Admission(0)
    manager.confirm(first)
    assert admitted(manager, second) == Admission(8)
    assert second.pages[:2] == first.pages[:2]
    assert manager.pages_needed(sequence((1, 2), "a", prefix=8, budget=3)) == 3


def test_text_alone_shares_full_pages_of_equal_prompts():
    manager = manager_of(9)
    served(manager, sequence((1, 2, 3, 4, 5, 6, 7, 8)))
    assert admitted(manager, sequence((1, 2, 3, 4, 5, 6, 7, 9, 9))).start == 8
    assert admitted(manager, sequence((1, 2, 3, 9))).start == 4
    assert admitted(manager, sequence((1, 2, 9, 4))).start == 0


def test_text_of_another_salt_shares_nothing():
    manager = manager_of(usable=30)
    served(manager, salted((1, 2, 3, 4, 5, 6, 7, 8), "a"))

    assert admitted(manager, salted((1, 2, 3, 4, 5, 6, 7, 8), "b")).start == 0
    assert admitted(manager, sequence((1, 2, 3, 4, 5, 6, 7, 8))).start == 0
    assert admitted(manager, salted((1, 2, 3, 4, 5, 6, 7, 8), "a")).start > 0


def salted(prompt, cache_salt):
    made = sequence(prompt)
    made.cache_salt = cache_salt
    return made


def test_one_position_is_left_to_compute():
    manager = manager_of(9)
    served(manager, sequence((1, 2, 3, 4, 5, 6, 7)))
    assert admitted(manager, sequence((1, 2, 3, 4, 5, 6, 7))).start == 4


def test_a_text_never_matches_an_image_nor_one_image_another():
    manager = manager_of(20)
    served(manager, about("a"))
    assert admitted(manager, sequence((0, 0, 0, 0, 0, 1, 2, 3))).start == 0
    assert admitted(manager, about("b")).start == 0
    assert state_of(manager, "") == "missing"


def test_prompts_that_differ_in_a_coordinate_are_different():
    manager = manager_of(20)
    served(manager, sequence((1, 2, Token(5, (0.25,)), 4)))
    assert admitted(manager, sequence((1, 2, Token(5, (0.5,)), 4))).start == 0
    assert admitted(manager, sequence((1, 2, Token(5, (0.25,)), 4))).start == 4


def test_generated_tokens_are_not_cached():
    manager = manager_of(20)
    first, second = sequence((1, 2, 3)), sequence((1, 2, 3))
    first.tokens = [Token(number) for number in (4, 5, 6, 7, 8)]
    second.tokens = [Token(number) for number in (9, 9, 9, 9, 9)]
    served(manager, first)
    assert manager.prefix.owners().total() == 1
    assert admitted(manager, second).start == 4
    assert admitted(manager, sequence((1, 2, 3, 4, 5, 6, 7, 8))).start == 4


def test_a_pre_empted_sequence_finds_its_prompt_again_and_has_room_for_its_tokens():
    manager = manager_of(20)
    victim = about("a")
    admitted(manager, victim)
    manager.confirm(victim)
    manager.release(victim)
    victim.tokens = [Token(number) for number in range(4)]
    assert admitted(manager, victim) == Admission(8)
    assert len(victim.pages) == manager.pages.pages_for(PREFIX + 3 + 4 + 1)
    check(manager, [victim])


def test_blocks_being_built_are_not_reused():
    manager = manager_of(20)
    served(manager, about("a", (0,)))
    builder, follower = about("a", range(10)), about("a", range(10))
    admitted(manager, builder)
    held = manager.prefix.owners().total()
    assert admitted(manager, follower).start == PREFIX
    assert manager.prefix.owners().total() == held
    manager.withdraw(follower)
    assert manager.prefix.owners().total() == held
    manager.confirm(builder)
    third = about("a", range(10))
    assert admitted(manager, third).start == 12
    check(manager, [builder, follower, third])


def test_a_failed_step_removes_its_own_blocks_only():
    manager = manager_of(20)
    served(manager, about("a", range(2)))
    failing = about("a", range(10))
    assert admitted(manager, failing).start == 8
    assert manager.prefix.owners().total() == 5
    manager.withdraw(failing)
    assert manager.prefix.owners().total() == 3
    check(manager, [failing])
    manager.release(failing)
    assert admitted(manager, about("a", range(10))).start == 8

    broken = about("b", range(10))
    admitted(manager, broken)
    manager.withdraw(broken)
    assert state_of(manager, "b") == "missing"


def test_confirm_and_withdraw_do_nothing_where_nothing_is_pending():
    manager = manager_of(8)
    first = about("a")
    for act in (manager.confirm, manager.withdraw, manager.release):
        act(first)
    admitted(manager, first)
    for act in (manager.confirm, manager.confirm, manager.withdraw, manager.withdraw):
        act(first)
    assert state_of(manager, "a") == "ready"
    check(manager, [first])


def test_the_source_of_a_copy_is_not_evicted_until_the_sequence_is_released():
    manager = manager_of(8)
    served(manager, about("a"))
    second = about("a", (9,))
    source = admitted(manager, second).copies[0].source
    forget(manager)
    assert manager.pages.refcount(source) == 1
    check(manager, [second])
    manager.release(second)
    forget(manager)
    assert manager.pages.refcount(source) == 0


def test_a_sequence_that_builds_blocks_cannot_be_released():
    manager = manager_of(8)
    first = about("a")
    admitted(manager, first)
    with pytest.raises(AssertionError, match="2 blocks being built"):
        manager.release(first)
    check(manager, [first])


def test_a_sequence_without_output_reuses_the_whole_prefix():
    manager = manager_of(3)
    handle = about("a", (), budget=0)
    assert admitted(manager, handle) == Admission(0, saves=(PageCopy(handle.pages[1], 3),))
    manager.confirm(handle)
    manager.release(handle)
    other = sequence((1,))
    admitted(manager, other)
    again = about("a", (), budget=0)
    assert admitted(manager, again) == Admission(PREFIX)
    assert len(again.pages) == 2
    check(manager, [other, again])
    manager.confirm(again)
    manager.release(again)
    assert state_of(manager, "a") == "ready"


def test_an_image_without_room_for_its_tail_is_served_but_not_cached():
    manager = manager_of(4)
    other, first = sequence((1,)), about("a")
    admitted(manager, other)
    assert admitted(manager, first) == Admission(0)
    assert state_of(manager, "a") == "missing"
    assert manager.prefix.owners().total() == 0
    check(manager, [other, first])


def answered(manager, prompt, answer, **options):
    """A kept sequence that runs and has an answer."""
    one = sequence(prompt, budget=len(answer) + 1, kept=True, **options)
    admitted(manager, one)
    manager.confirm(one)
    one.tokens = [Token(number) for number in answer]
    one.num_committed_tokens = one.num_tokens - 1  # the last one has not been an input
    assert manager.grow(one, one.num_tokens)
    return one


def finish(manager, one, error=None):
    one.finalized, one.error = True, error
    manager.keep_answer(one)
    manager.release(one)


def test_an_answer_is_not_kept_behind_a_block_that_may_be_withdrawn():
    manager = manager_of(40)
    prompt, answer = range(8), range(100, 114)
    first = answered(manager, prompt, answer)
    second = sequence([*prompt, *answer[:4], 7, 7, 7, 7])  # its prompt has the first page of the answer
    admitted(manager, second)
    finish(manager, first)
    check(manager, [second])

    manager.withdraw(second)
    finish(manager, second, RuntimeError("its step fails"))
    check(manager, [])
    assert admitted(manager, sequence([*prompt, *answer])).start == 8  # the answer was computed again, or not kept


def test_an_answer_behind_a_prompt_of_less_than_a_page_is_kept():
    manager = manager_of(40)
    finish(manager, answered(manager, (1,), range(100, 114)))

    assert admitted(manager, sequence([1, *range(100, 114), 2, 3])).start == 12


def test_an_answer_is_kept_while_a_step_still_carries_its_sequence():
    manager = manager_of(40)
    first = answered(manager, (1, 2), range(100, 114))
    manager.keep_answer(first)
    again = sequence([1, 2, *range(100, 114), 3])
    assert admitted(manager, again).start == 16
    manager.release(first)
    check(manager, [again])


def test_a_failed_answer_is_not_kept():
    manager = manager_of(40)
    finish(manager, answered(manager, range(8), range(100, 114)), RuntimeError("cancelled"))

    assert admitted(manager, sequence([*range(8), *range(100, 114)])).start == 8


def test_without_caching_nothing_is_kept():
    manager = manager_of(8, prefix_caching=False)
    assert served(manager, about("a")) == served(manager, about("a")) == Admission(0)
    assert state_of(manager, "a") == "missing"
    assert manager.prefix.owners().total() == 0
    assert manager.pages_needed(about("a", budget=4)) == 3


def test_short_pages_refuse_an_admission_and_change_nothing():
    manager = manager_of(8)
    served(manager, about("a"))
    served(manager, sequence((1, 2, 3)))
    running = sequence((9, 9))
    admitted(manager, running)

    def state():
        return manager.prefix.owners(), manager.pages.free, vars(manager.prefix).copy()

    before = state()
    waiting = about("a", range(20))
    assert admit(manager, waiting) is None
    assert waiting.pages == []
    assert state() == before
    # The refused admission has not made the image more recently used than the text.
    assert manager.grow(running, 24)
    assert (state_of(manager, "a"), manager.prefix.evictions) == ("missing", 2)
    check(manager, [running])


def test_growing_evicts_idle_blocks_or_changes_nothing():
    manager = manager_of(6)
    served(manager, about("a"))
    running = sequence((1,))
    admitted(manager, running)
    assert manager.grow(running, 20)
    assert manager.prefix.evictions > 0
    pages = list(running.pages)
    assert not manager.grow(running, 28)
    assert running.pages == pages
    assert manager.grow(running, 24)
    assert running.pages[:5] == pages
    check(manager, [running])


def test_a_chain_in_use_is_not_evicted():
    manager = manager_of(6)
    first = about("a")
    admitted(manager, first)
    manager.confirm(first)
    assert admit(manager, sequence(range(11))) is None
    forget(manager)
    assert state_of(manager, "a") == "ready"
    manager.release(first)
    forget(manager)
    assert state_of(manager, "a") == "missing"
    assert manager.pages.free == manager.pages.usable


@pytest.mark.parametrize("budget", [1, 2])
def test_the_position_behind_the_last_token_needs_no_room(budget: int):
    manager = manager_of(8)
    last = sequence((1, 2, 3), budget=budget)
    admitted(manager, last)
    assert len(last.pages) == budget


def test_a_sequence_is_admitted_once():
    manager = manager_of(8)
    first = about("a")
    admitted(manager, first)
    with pytest.raises(AssertionError, match="pages in hand"):
        admit(manager, first)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 7, 16])
@pytest.mark.parametrize("cached", ["nothing", "the image", "image and prompt", "something else"])
def test_a_request_that_fits_can_run_alone(size: int, cached: str):
    budget, prompt = 9, (1, 2, 3, 4)
    longest = PREFIX + len(prompt) + budget - 1
    manager = manager_of(1, size)
    while not manager.fits(about("a", prompt, budget=budget)):
        manager = manager_of(manager.pages.usable + 1, size)
    if cached != "nothing":
        prompts = {"the image": (8,), "image and prompt": prompt, "something else": (8, 9)}
        served(manager, about("b" if cached == "something else" else "a", prompts[cached]))
    for confirmed_early in (True, False):
        alone = about("a", prompt, budget=budget)
        assert alone.longest == longest
        admitted(manager, alone)
        if confirmed_early:
            manager.confirm(alone)
        assert all(manager.grow(alone, positions) for positions in range(PREFIX, longest + 1))
        check(manager, [alone])
        manager.confirm(alone)
        manager.release(alone)


def test_an_answer_that_a_run_has_ended_keeps_only_what_steps_have_computed():
    manager = manager_of(12)
    first = sequence((1, 2, 3), budget=20, kept=True)
    admitted(manager, first)
    manager.confirm(first)
    assert manager.grow(first, 17)
    first.tokens = [Token(number) for number in range(13)]
    first.num_committed_tokens = 9  # what follows was known, and needed no step
    finish(manager, first)
    again = sequence((1, 2, 3, *range(13)), budget=20)
    assert admitted(manager, again).start == 8


def whole(prompt: tuple[int, ...], image: str | None = "a", begun: int = 0) -> Sequence:
    """A sequence whose prompt attends to itself in both directions, but for the tokens that its answer begins with."""
    request = Request("test", tuple(map(Token, prompt)), ANYTHING, 8, SamplingSettings())
    named = None if image is None else NamedImage(image)
    before = PREFIX if named else 1
    block = before + len(prompt) - begun
    return Sequence(next(NUMBERS), request, ANYTHING, before, named, prompt_block=block)


def test_a_prompt_in_both_directions_is_reused_up_to_its_last_position() -> None:
    manager = manager_of(20)
    first = served(manager, whole((1, 2, 3)))
    again = served(manager, whole((1, 2, 3)))
    continued = served(manager, whole((1, 2, 3, 9, 9), begun=2))

    assert (first.start, len(first.copies), len(first.saves)) == (0, 0, 0)  # 8 positions fill two pages
    assert [(one.start, one.copies, one.saves) for one in (again, continued)] == [(8, (), ())] * 2


@pytest.mark.parametrize("other", [(1, 2, 4), (1, 7, 3), (1, 2), (1, 2, 3, 3)])
def test_another_prompt_about_the_image_shares_nothing(other: tuple[int, ...]) -> None:
    manager = manager_of(20)
    served(manager, whole((1, 2, 3)))
    sequence = whole(other)
    manager.name(sequence)

    assert manager.image_state(sequence.images[0]) == "missing"
    assert served(manager, sequence).start == 0


def test_a_prompt_in_both_directions_shares_nothing_with_another_image_or_a_causal_prompt() -> None:
    manager = manager_of(20)
    served(manager, whole((1, 2, 3)))
    served(manager, whole((1, 2, 3, 4, 5, 6, 7, 8), None))

    assert served(manager, whole((1, 2, 3), "b")).start == 0
    assert served(manager, sequence((1, 2, 3, 4, 5, 6, 7, 8))).start == 0
    assert served(manager, whole((1, 2, 3, 4, 5, 6, 7, 8), None)).start == 8


def test_a_prompt_that_ends_with_its_image_is_not_kept() -> None:
    manager = manager_of(20)
    served(manager, whole(()))

    assert served(manager, whole(())).start == 0
    assert manager.prefix.idle_pages == 0


def test_the_tail_of_a_prompt_in_both_directions_is_copied() -> None:
    manager = manager_of(20)
    assert manager.pages_needed(whole((1, 2, 3, 4))) == 6  # 10 positions and 7 of an answer, and the tail
    saved = served(manager, whole((1, 2, 3, 4)))
    found = served(manager, whole((1, 2, 3, 4)))

    assert (saved.start, len(saved.saves)) == (0, 1)
    assert (found.start, [copy.source for copy in found.copies]) == (9, [saved.saves[0].target])


@pytest.mark.parametrize("block", [5, 10])
def test_a_block_ends_behind_the_image_and_inside_the_prompt(block: int) -> None:
    request = Request("test", (Token(1),) * 3, ANYTHING, 8, SamplingSettings())
    with pytest.raises(AssertionError, match=f"a block of {block} positions in a prompt of 9"):
        Sequence(0, request, ANYTHING, PREFIX, NamedImage("a"), prompt_block=block)


@pytest.mark.parametrize("image", [None, "a"])
def test_requests_of_different_adapters_share_nothing(image: str | None):
    manager = manager_of(40)
    prompt = tuple(range(12))
    served(manager, first := sequence(prompt, image, prefix=PREFIX, adapter="x"))
    for other in ("", "y"):
        assert admitted(manager, sequence(prompt, image, prefix=PREFIX, adapter=other)).start == 0
    assert admitted(manager, sequence(prompt, image, prefix=PREFIX, adapter="x")).start > 0
    assert first.adapter_key == "x"


def test_an_answer_is_kept_for_its_own_adapter_alone():
    manager = manager_of(40)
    finish(manager, answered(manager, (1,), range(100, 114), adapter="x"))
    longer = [1, *range(100, 114), 2, 3]
    assert admitted(manager, sequence(longer)).start == 0
    assert admitted(manager, sequence(longer, adapter="x")).start == 12
