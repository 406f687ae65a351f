"""A model that answers at once, hangs until it is let go, or fails: whatever a test of the server wants."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from photonlite.api.adapters import Adapter
from photonlite.api.tasks import OPTIONS
from photonlite.config import DEFAULT_IMAGE_LIMITS
from photonlite.errors import AdapterError, UnknownAdapterError
from photonlite.results import Answer, Caption, Detections, Metrics, Points, Segments
from photonlite.server.calls import SKILLS, Call, Skill
from photonlite.skills.chat import flat_text, read_messages

BOX = {"x_min": 0.25, "y_min": 0.25, "x_max": 0.75, "y_max": 0.75}
OUTLINE = {"path": "M0 0L1 0L1 1Z", "bbox": BOX, "polygon": [[0.25, 0.25], [0.75, 0.25], [0.75, 0.75]]}
METRICS = Metrics(0.001, 0.002, 0.003, 0.004, prompt_tokens=740, output_tokens=3, time_to_first_token_s=0.006)
PIECES = ("two ", "of ", "them")


class FakeModel:
    """Finds one object in the middle of every image, and says "two of them" in three pieces.

    Attributes:
        calls: What it was asked, in order.
        cancelled: Calls that were given up before they had their answer, streams among them.
        refusal: Raised by `check_call`, which is asked before an image is decoded.
        error: Raised instead of an answer.
        failure: Raised instead of an answer that hung, when it is let go.
        late_error: Raised by streams after their first piece.
        results: Answers by skill; what a test puts here is given as it is.
        pieces: Of streamed text.
        begun: Set as soon as a call has come; `asked` is the same for threads.
        given_up: For threads: set as soon as a call was cancelled.
    """

    def __init__(self, error: BaseException | None = None) -> None:
        self.name = "fake"
        self.device = "cpu"
        self.skills: tuple[str, ...] = SKILLS
        self.max_batch = 8
        self.sight = 400
        self.reads_several = False
        self.image_limits = DEFAULT_IMAGE_LIMITS
        self.alive = True
        self.last_tick_s = 0.0
        self.waits_for_device = False
        self.calls: list[Call] = []
        self.cancelled = 0
        self.refusal: BaseException | None = None
        self.error = error
        self.failure: BaseException | None = None
        self.late_error: BaseException | None = None
        self.results: dict[str, Mapping[str, Any]] = {}
        self.pieces: tuple[str, ...] = PIECES
        self.begun = asyncio.Event()
        self.asked = threading.Event()
        self.given_up = threading.Event()
        self.named: dict[str, Adapter] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free = asyncio.Event()
        self._free.set()

    def hang(self) -> None:
        """Answer nothing, and give no piece after the first, until `release`."""
        self._free.clear()

    def release(self) -> None:
        """From any thread."""
        if self._loop is None:
            self._free.set()
        else:
            self._loop.call_soon_threadsafe(self._free.set)

    def give_up(self) -> None:
        self.cancelled += 1
        self.given_up.set()

    def __getattr__(self, name: str) -> Any:
        """Return the asynchronous method of a skill: `acaption`, ..."""
        if name[:1] == "a" and name[1:] in SKILLS:
            return partial(self._ask, name[1:])
        raise AttributeError(name)

    async def achat(self, messages: Any, *, stream: bool = False, **given: Any) -> Mapping[str, Any]:
        """Take a conversation as one question about its first image."""
        conversation = read_messages(messages)
        image = next(iter(conversation.images), None)
        return await self._ask("query", image, stream=stream, question=flat_text(conversation.turns), **given)

    async def _ask(self, skill: Skill, image: Any, *, stream: bool = False, **given: Any) -> Mapping[str, Any]:
        options = {name: given.pop(name) for name in OPTIONS}
        call = Call(skill, image, given, stream, **options)
        await self._take(call)
        return self._streamed(call) if stream else await self.run(call)

    async def run(self, call: Call) -> Mapping[str, Any]:
        await self._hold()
        if self.failure is not None:
            raise self.failure
        return self.results.get(call.skill) or _result(call)

    def _streamed(self, call: Call) -> Any:
        result: Any = Caption("") if call.skill == "caption" else Answer("")
        result["caption" if call.skill == "caption" else "answer"] = FakeText(self, result)
        return result

    def check_call(self, method: str, **arguments: Any) -> None:
        if self.refusal is not None:
            raise self.refusal

    def adapters(self) -> list[Adapter]:
        return list(self.named.values())

    def load_adapter(self, adapter: str, *, name: str | None = None) -> Adapter:
        if adapter == "broken":
            raise AdapterError("the adapter 'broken' uses use_dora (True), which is not supported")
        loaded = self.named[name or adapter] = Adapter(name or adapter, "key", adapter, 4, 100)
        return loaded

    def unload_adapter(self, name: str) -> None:
        if self.named.pop(name, None) is None:
            raise UnknownAdapterError(f"no adapter is called {name!r}")

    def metrics(self) -> dict[str, Any]:
        return {"counters": {"requests_submitted": len(self.calls)}, "gauges": {"running": 0}, "histograms": {}}

    async def _take(self, call: Call) -> None:
        self.calls.append(call)
        self._loop = asyncio.get_running_loop()
        self.begun.set()
        self.asked.set()
        if self.error is not None:
            raise self.error

    async def _hold(self) -> None:
        try:
            await self._free.wait()
        except asyncio.CancelledError:
            self.give_up()
            raise


class FakeText:
    """The pieces of a streamed text, whose result gets its outcome at the end."""

    def __init__(self, fake: FakeModel, result: Any) -> None:
        self._fake = fake
        self._result = result
        self._waiting = list(fake.pieces)
        self._first = True
        self._ended = False

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        if not self._first:
            if self._fake.late_error is not None:
                raise self._fake.late_error
            await self._fake._free.wait()
        self._first = False
        if not self._waiting:
            self._ended = True
            self._result.metrics, self._result.finish_reason = METRICS, "stop"
            raise StopAsyncIteration
        return self._waiting.pop(0)

    async def aclose(self) -> None:
        if not self._ended:
            self._ended = True
            self._fake.give_up()


def _result(call: Call) -> Mapping[str, Any]:
    known: dict[str, Any] = {"metrics": METRICS, "finish_reason": "stop"}
    label = call.arguments.get("object")
    thoughts = {"text": "hm", "grounding": []} if call.arguments.get("reasoning") else None
    results: dict[str, Mapping[str, Any]] = {
        "detect": Detections([{**BOX, "label": label, "score": 0.5}], **known),
        "point": Points([{"x": 0.5, "y": 0.5, "label": label, "score": 0.5}], **known),
        "segment": Segments([{**OUTLINE, "label": label, "score": 0.5}], **known),
        "caption": Caption("".join(PIECES), **known),
        "query": Answer("".join(PIECES), thoughts, **known),
    }
    return results[call.skill]
