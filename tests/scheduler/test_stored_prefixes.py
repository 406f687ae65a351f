"""Prompts that begin behind stored pages up to the ends of their images."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from photonlite.batch import BatchItem
from photonlite.image_inputs import HostTensor, StoredImage, StoredPages
from photonlite.request import IMAGE, Request, SamplingSettings, Token
from photonlite.sequence import ImageSpan, Sequence
from tests.engine.fakes import Bench, FakeImage, FakeSink, Words, ends_at

NUMBERS = HostTensor(np.zeros(4, np.uint8), (1, 1, 1), "float32")
Part = int | tuple[str, int]
"""A word, or an image and the number of its positions."""


@dataclass
class Asked:
    sequence: Sequence
    images: list[FakeImage] = field(default_factory=list)


def ask(bench: Bench, *parts: Part, stored: str = "", budget: int = 3, of: Sequence | None = None) -> Asked:
    """Ask with images inside the prompt, some of them stored: with the pages of this prompt, or those of another."""
    tokens: list[Token] = []
    spans: list[ImageSpan] = []
    images: list[FakeImage] = []
    for part in parts:
        if isinstance(part, int):
            tokens.append(Token(part))
            continue
        images.append(FakeImage(part[0]))
        spans.append(ImageSpan(images[-1], len(tokens), part[1]))
        tokens += [IMAGE] * part[1]
    request = Request("query", tuple(tokens), Words(budget), budget, SamplingSettings())
    sequence = Sequence(len(bench.sequences), request, FakeSink(), 0, inside=tuple(spans))
    bench.sequences.append(sequence)
    bench.core.scheduler.prepare(sequence)
    for span, image, theirs in zip(spans, images, (of or sequence).images, strict=True):
        if span.key in stored:
            assert theirs.pages is not None
            image.stored = StoredImage(NUMBERS, StoredPages(theirs.pages, NUMBERS))
    bench.core.submit(sequence)
    return Asked(sequence, images)


def prompt_of(bench: Bench, asked: Asked) -> BatchItem:
    """Run everything; return the row with which a prompt began."""
    bench.run()
    sink: Any = asked.sequence.sink
    assert [end.error for end in sink.ends] == [None]
    [row] = [row for step in bench.runner.steps for row in step.rows if row.begins and row.sequence is asked.sequence]
    return row


def written(row: BatchItem) -> list[tuple[str, int, int]]:
    """Return whose stored pages are written, and to which of the sequence's pages."""
    return [(job.key, first, place.stop) for job, place, first in row.restored]


TWO: tuple[Part, ...] = (1, 2, ("a", 7), 3, ("b", 8), 4)


def test_a_prompt_begins_behind_the_whole_pages_of_all_its_images() -> None:
    bench = Bench(ends_at(2))
    row = prompt_of(bench, ask(bench, *TWO, stored="ab"))

    assert (row.start, row.count) == (16, 3)  # b ends at 18
    assert written(row) == [("a", 0, 2), ("b", 2, 4)]
    assert bench.core.metrics.pages_restored == 4
    assert bench.everything_is_free()


def test_pages_behind_missing_ones_are_of_no_use() -> None:
    bench = Bench(ends_at(2))
    only_first, only_second = ask(bench, *TWO, stored="a"), ask(bench, 9, *TWO, stored="b")

    first, second = prompt_of(bench, only_first), prompt_of(bench, only_second)

    assert (first.start, written(first)) == (8, [("a", 0, 2)])
    assert (second.start, written(second)) == (0, [])


def test_pages_of_the_same_image_in_another_prompt_are_not_taken() -> None:
    bench = Bench(ends_at(2))
    other = ask(bench, 2, 1, *TWO[2:]).sequence

    row = prompt_of(bench, ask(bench, *TWO, stored="ab", of=other))

    assert (row.start, written(row)) == (0, [])
    assert bench.core.metrics.images_restored == 2


def test_pages_that_the_prefix_cache_shares_are_not_written() -> None:
    bench = Bench(ends_at(2))
    words = tuple(range(20, 30))
    prompt_of(bench, ask(bench, ("a", 6), *words))  # pages 0 to 3 stay, of which the image ends in the second

    row = prompt_of(bench, ask(bench, ("a", 6), *words, ("b", 8), 4, stored="ab"))

    assert row.start == 24
    assert written(row) == [("b", 4, 6)]
    assert row.sequence.images[1].pages is not None
    assert row.sequence.images[1].pages.first == 1


def test_the_last_position_of_a_prompt_is_computed() -> None:
    bench = Bench(ends_at(2))

    row = prompt_of(bench, ask(bench, ("a", 8), stored="a", budget=0))

    assert (row.start, row.count, written(row)) == (0, 8, [])


def test_images_come_without_pages_where_the_device_has_no_room_for_more() -> None:
    bench = Bench(ends_at(2))
    bench.scheduler.encoder._staged_pages = 3
    asked = [ask(bench, number, ("ab"[number], 7), 4, stored="ab") for number in range(2)]

    rows = [prompt_of(bench, one) for one in asked]

    assert [row.start for row in rows] == [8, 0]
    assert bench.core.metrics.images_restored == 2


def test_the_first_request_gets_its_image_though_later_ones_that_wait_for_more_hold_all_places() -> None:
    bench = Bench(ends_at(2))
    bench.scheduler.encoder._max_jobs = bench.scheduler.policy.queues[0].max_jobs = 1
    late, second = ask(bench, 1, ("a", 4), 2), ask(bench, 1, ("b", 4), ("c", 4), 2)
    late.images[0].cut = False
    for _ in range(3):
        bench.core.tick()
    assert [job.key for job in bench.scheduler.encoder.jobs.values()] == ["b"]
    late.images[0].cut = True

    bench.run()

    assert prompt_of(bench, late).start == prompt_of(bench, second).start == 0
    assert bench.everything_is_free()
