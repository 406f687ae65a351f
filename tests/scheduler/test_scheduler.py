from itertools import pairwise

import numpy as np
import pytest

from photonlite.batch import CropGroup, EncodeJob, Step
from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.errors import CapacityError
from photonlite.image_inputs import UncutImage
from photonlite.images.crops import ImageCrops
from photonlite.request import Request, SamplingSettings, Token
from photonlite.scheduler.adapters import AdapterSlots
from photonlite.scheduler.limits import Limits
from photonlite.scheduler.queues import EncoderQueue, WaitingQueue
from photonlite.scheduler.scheduler import Decision
from photonlite.sequence import Sequence
from tests.engine.fakes import Bench, FakeImage, FakeSink, Words, ends_at
from tests.engine.test_runs import Scripted, script


def launched(bench: Bench) -> list[str]:
    return [
        f"{step.kind} {' '.join(str(row.sequence.number) for row in step.rows)}".strip() for step in bench.runner.steps
    ]


def test_first_come_first_served() -> None:
    bench = Bench(ends_at(2), max_batch=1)
    for _ in range(3):
        bench.ask()
    bench.run()

    assert [name for name in launched(bench) if name.startswith("prefill")] == ["prefill 0", "prefill 1", "prefill 2"]


def test_prompts_that_fit_are_prefilled_together() -> None:
    bench = Bench(ends_at(2))
    for _ in range(3):
        bench.ask()
    bench.run()

    assert launched(bench)[0] == "prefill 0 1 2"


def test_no_request_overtakes_one_that_waits_for_pages() -> None:
    # Six usable pages: the first takes four, the second needs three, the third would fit.
    bench = Bench(ends_at(40), pages=7, prefix_caching=False)
    lengths = (13, 9, 1)
    for number, length in enumerate(lengths):
        prompt = tuple(Token(1) for _ in range(length))
        request = Request("query", prompt, Words(2), 2, SamplingSettings())
        bench.sequences.append(Sequence(number, request, FakeSink(), 1))
        bench.hand_in(bench.sequences[-1])
    plan = bench.plan()

    assert plan is not None
    assert [row.sequence.number for row in plan.rows] == [0]
    assert [sequence.number for sequence in bench.scheduler.waiting] == [1, 2]


def test_a_request_that_could_not_run_alone_is_refused_with_numbers() -> None:
    bench = Bench(ends_at(2), pages=5)
    with pytest.raises(CapacityError, match=r"19 positions, which takes 5 pages of 4, but the KV cache has 4.*lower"):
        bench.ask(budget=17)
    bench.ask(budget=14)


def test_decoding_takes_turns_with_encoding_and_prompts() -> None:
    bench = Bench(ends_at(30))
    bench.ask()
    for _ in range(3):
        bench.core.tick()
    for name in "abc":
        bench.ask(image=FakeImage(name))
    bench.run()

    kinds = [step.kind for step in bench.runner.steps[3:]]
    others = [index for index, kind in enumerate(kinds) if kind != "decode"]
    assert others
    # Whoever is being decoded gets a step between any two launches of other work.
    assert all(later - earlier > 1 for earlier, later in pairwise(others))


@pytest.mark.parametrize("depth", [1, 2])
def test_prompts_do_not_wait_until_an_answer_has_ended_that_goes_on_in_runs(depth: int) -> None:
    places = [place for place in range(80) if place % 4]  # without a pipeline every launch is one of runs
    bench = Bench(script(places, 80), depth=depth)
    bench.runner.per_position = 0.001
    bench.ask(Scripted(places))
    for _ in range(3):
        bench.core.tick()
    before = launched(bench)
    bench.ask()
    bench.run()

    after = launched(bench)[len(before) :]
    assert "run 0" in before
    assert after.index("prefill 1") <= 2, after
    assert after.count("run 0") > 10


def test_encoding_keeps_to_the_time_budget_while_others_are_decoded() -> None:
    bench = Bench(ends_at(60))
    bench.scheduler.policy.crops.per_unit = bench.runner.per_crop = 0.0015  # seconds: two fit into 4 ms
    bench.ask()
    for _ in range(3):
        bench.core.tick()
    bench.ask(image=FakeImage("a"))
    bench.run()
    groups = [[group.count for group in step.plan.groups] for step in bench.runner.steps if step.kind == "encode"]
    assert groups == [[2], [1]]

    bench.ask(image=FakeImage("b"))  # nothing is decoded: all at once
    bench.run()
    last = [step for step in bench.runner.steps if step.kind == "encode"][-1]
    assert [group.count for group in last.plan.groups] == [3]


def uncut(*sizes: int, room: int, tiling: tuple[int, int] = (1, 1)) -> EncoderQueue:
    """Queue images of so many bytes, of which a launch may copy `room`."""
    encodings = EncoderQueue(
        CacheManager(PagePool(100, 4)), Limits(4, 8, 1000, 8, max_image_bytes=room), AdapterSlots(1)
    )
    leader = Sequence(0, Request("query", (Token(1),), Words(2), 2, SamplingSettings()), FakeSink(), 1)
    for number, size in enumerate(sizes):
        image = UncutImage(np.zeros(size, np.uint8), (1, 1), tiling, (), ())
        encodings.jobs[str(number)] = EncodeJob(number, str(number), image, leader)
    return encodings


def next_groups(encodings: EncoderQueue, room: int, enough: int) -> tuple[CropGroup, ...]:
    groups = encodings.next_groups(WaitingQueue(8), room, enough)
    for group in groups:
        group.job.launched += group.count
    return groups


def parts(encodings: EncoderQueue, room: int, enough: int) -> list[tuple[int, int, int]]:
    groups = next_groups(encodings, room, enough)
    return [(group.job.number, group.first, group.count) for group in groups]


def test_a_launch_begins_as_many_uncut_images_as_fit_in_order() -> None:
    encodings = uncut(40, 70, 10, 20, 500, 10, room=100)

    found = [[group.job.number for group in next_groups(encodings, 16, 8)] for _ in range(5)]

    assert found == [[0], [1, 2, 3], [4], [5], []]


def test_images_that_have_begun_need_no_further_upload() -> None:
    encodings = uncut(40, 60, 70, room=60, tiling=(1, 2))

    found = [parts(encodings, 2, 8) for _ in range(6)]

    assert found == [[(0, 0, 2)], [(0, 2, 1), (1, 0, 1)], [(1, 1, 2)], [(2, 0, 2)], [(2, 2, 1)], []]


def test_crops_of_several_images_share_a_launch_that_splits_none_once_it_is_half_full() -> None:
    bench = Bench(ends_at(2))
    for name in "abc":
        bench.ask(image=FakeImage(name))
    bench.run()

    first = bench.runner.steps[0]
    assert [(group.job.key, group.first, group.count) for group in first.plan.groups] == [("a", 0, 3), ("b", 0, 3)]


def test_a_launch_that_is_less_than_half_full_takes_part_of_the_next_image() -> None:
    encodings = uncut(1, 1, 1, room=100, tiling=(1, 4))  # five crops each

    found = [parts(encodings, 8, 6) for _ in range(3)]

    assert found == [[(0, 0, 5), (1, 0, 3)], [(1, 3, 2), (2, 0, 5)], []]


def pauses(bench: Bench) -> list[list[Step]]:
    """Launches of other kinds in front of each decode step but the first."""
    found: list[list[Step]] = [[]]
    for step in bench.runner.steps:
        if step.kind == "decode":
            found.append([])
        else:
            found[-1].append(step)
    return found[1:-1]


def loaded(max_pause_s: float) -> Bench:
    """One sequence that is decoded, and twenty that wait with images of three crops, of 1 ms each."""
    bench = Bench(ends_at(60), max_pause_s=max_pause_s)
    bench.scheduler.policy.crops.per_unit = bench.runner.per_crop = 0.001
    bench.scheduler.policy.prompts.per_unit = bench.runner.per_position = 0.0002
    bench.ask()
    for _ in range(3):
        bench.core.tick()
    for number in range(20):
        bench.ask(image=FakeImage(str(number)))
    bench.run()
    return bench


def test_launches_are_large_and_prompts_run_together_while_many_requests_wait() -> None:
    first = next(steps for steps in pauses(loaded(0.035)) if steps)

    assert [step.kind for step in first] == ["encode", "encode", "encode", "prefill"]
    assert [len(step.rows) for step in first if step.kind == "prefill"] == [3]  # the batch is full
    assert all(len(step.plan.groups) == 2 for step in first if step.kind == "encode")


@pytest.mark.parametrize("max_pause_s", [0.0, 0.01, 0.02, 0.035])
def test_a_decode_step_follows_the_longest_pause_however_many_requests_wait(max_pause_s: float) -> None:
    lengths = [sum(step.device_s for step in steps) for steps in pauses(loaded(max_pause_s))]

    assert max(lengths) <= max(0.004, max_pause_s) + 1e-9
    assert max(lengths) > 0.7 * max_pause_s


def test_the_budget_bounds_prompts_that_are_prefilled_while_others_are_decoded() -> None:
    bench = Bench(ends_at(60))
    bench.scheduler.policy.prompts.per_unit = bench.runner.per_position = 0.001  # seconds: four fit into 4 ms
    bench.ask()
    for _ in range(3):
        bench.core.tick()
    for _ in range(3):
        bench.ask()
    bench.run()

    assert [name for name in launched(bench) if name.startswith("prefill")] == [
        "prefill 0", "prefill 1", "prefill 2", "prefill 3",
    ]  # fmt: skip


def test_a_pre_empted_sequence_keeps_its_pages_until_its_step_has_committed() -> None:
    bench = Bench(ends_at(27), pages=11, prefix_caching=False)
    bench.ask(budget=30)
    bench.ask(budget=30)
    victim = bench.sequences[1]
    seen: list[tuple[int, bool]] = []
    plan = bench.scheduler.plan

    def watched(now: float, *, encodes: bool = False) -> Decision:
        found = plan(now, encodes=encodes)
        if victim.preempting:
            seen.append((victim.inflight_refs, bool(victim.pages)))
        return found

    bench.scheduler.plan = watched  # type: ignore[method-assign]
    bench.run()

    assert seen
    assert all(refs > 0 and pages for refs, pages in seen)
    assert victim.times.preemptions == 1
    assert len(victim.tokens) == 27


def test_a_pre_empted_sequence_resumes_first_and_is_recomputed_from_its_tokens() -> None:
    bench = Bench(ends_at(27), pages=11, prefix_caching=False)
    bench.ask(budget=30)
    bench.ask(budget=30)
    bench.run()
    again = [step for step in bench.runner.steps if step.kind == "prefill"][-1]

    assert [row.sequence.number for row in again.rows] == [1]
    assert again.rows[0].start == 0
    assert again.rows[0].count == 3 + (again.rows[0].index or 0)
    assert bench.sequences[1].sink.tokens == bench.sequences[1].tokens  # type: ignore[attr-defined]


def test_the_features_of_an_image_without_requests_are_freed() -> None:
    bench = Bench(ends_at(60))
    bench.scheduler.policy.crops.per_unit = bench.runner.per_crop = 0.003
    bench.ask()
    for _ in range(3):
        bench.core.tick()
    bench.ask(image=FakeImage("a"))
    while not bench.scheduler.encoder.jobs:
        bench.core.tick()
    bench.core.cancel(bench.sequences[1])
    bench.run()

    assert [job.key for job in bench.runner.forgotten] == ["a"]
    assert bench.everything_is_free()


def test_an_image_whose_crops_are_dropped_while_the_engine_reads_them_is_encoded() -> None:
    class Dropping(FakeImage):
        looks = 0

        @property
        def crops(self) -> ImageCrops | None:
            self.looks += 1
            return None if self.looks > 1 else super().crops

    bench = Bench(ends_at(2))
    asked = bench.ask(image=Dropping("a"))
    bench.run()

    assert len(asked.tokens) == 2


def test_a_request_beyond_the_models_context_is_refused_though_the_cache_has_room() -> None:
    bench = Bench(ends_at(2), max_positions=12)
    with pytest.raises(CapacityError, match="grow to 13 positions, but the model's context has 12"):
        bench.ask(budget=11)
    bench.ask(budget=10)


def test_a_stream_of_prompts_does_not_keep_an_image_from_being_encoded() -> None:
    bench = Bench(ends_at(2))
    bench.ask()
    seen = bench.ask(image=FakeImage("a"))
    for _ in range(30):
        bench.core.tick()
        bench.core.tick()
        bench.ask()

    assert len(seen.tokens) == 2


def test_the_oldest_submission_is_the_earliest_call_in_whatever_order_requests_arrive() -> None:
    bench = Bench(ends_at(2))
    for realtime, submitted in ((False, 7.0), (False, 3.0), (True, 5.0), (False, 4.0)):
        bench.ask(realtime=realtime)
        bench.sequences[-1].times.submitted = submitted

    assert [bench.scheduler.oldest_submission(realtime=realtime) for realtime in (True, False)] == [5.0, 3.0]
    bench.run()
    assert bench.scheduler.oldest_submission(realtime=False) is None


def test_a_realtime_sequence_inherits_an_image_before_bulk_ones_that_are_older() -> None:
    bench = Bench(ends_at(2))
    for realtime in (False, True):
        bench.ask(image=FakeImage("same"), realtime=realtime)

    assert bench.scheduler._find_heir("same") is bench.sequences[1]
    assert bench.scheduler._find_heir("other") is None
