"""How often sequences are read: a measure of work that does not depend on the machine's load."""

from typing import Any, ClassVar

from photonlite.request import Request, SamplingSettings, Token
from photonlite.sequence import Sequence
from tests.engine.fakes import PREFIX, Bench, FakeImage, FakeSink, Words


class Counted(Sequence):
    """A sequence that counts comparisons and attribute reads of all such sequences."""

    looks: ClassVar[int] = 0

    def __getattribute__(self, name: str) -> Any:
        Counted.looks += 1
        return super().__getattribute__(name)

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return self is other

    __hash__ = object.__hash__


def crowd(
    bench: Bench, count: int, *, realtime: bool = False, deadline: float | None = None, image: str | None = None
) -> list[Sequence]:
    """Submit requests: for text, or about images that are never cut; a `{}` in their names becomes a number."""
    made: list[Sequence] = []
    for number in range(len(bench.sequences), len(bench.sequences) + count):
        request = Request("query", (Token(1),), Words(90), 90, SamplingSettings(), realtime=realtime)
        shown = None if image is None else FakeImage(image.format(number), cut=False)
        one = Counted(number, request, FakeSink(), 1 if shown is None else PREFIX, shown, deadline)
        bench.core.scheduler.prepare(one)
        bench.core.submit(one)
        made.append(one)
    bench.sequences += made
    return made
