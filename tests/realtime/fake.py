"""A model whose answers come when a test lets them."""

import asyncio
import queue
from collections.abc import Callable
from typing import Any

from photonlite.api.adapters import Adapter
from photonlite.results import Detections
from tests.guard import GUARD


class Ask:
    """One question that the model was asked."""

    def __init__(self, task: str, image: Any, arguments: dict[str, Any]) -> None:
        self.task = task
        self.image = image
        self.arguments = arguments
        self.cancelled = False
        self._events = asyncio.get_running_loop()
        self._future: asyncio.Future[Any] = self._events.create_future()

    def answer(self, result: Any = None) -> None:
        self._later(lambda: self._future.set_result(result or Detections([{"label": "mug"}])))

    def fail(self, error: BaseException) -> None:
        self._later(lambda: self._future.set_exception(error))

    async def wait(self) -> Any:
        try:
            return await self._future
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    def _later(self, work: Callable[[], None]) -> None:
        self._events.call_soon_threadsafe(work)


class FakeModel:
    """Hands every question to the test, or answers at once where `replies` is set.

    Attributes:
        asked: Questions, as they come.
        closed: Whether it has been closed.
    """

    name = "fake"
    device = "cpu"
    skills = ("detect", "point", "caption", "query")

    def __init__(self, replies: Callable[[Any], Any] | None = None) -> None:
        self.asked: queue.Queue[Ask] = queue.Queue()
        self.replies = replies
        self.closed = False

    def next(self) -> Ask:
        return self.asked.get(timeout=GUARD)

    def close(self, *, drain: bool = True) -> None:
        self.closed = True

    def adapters(self) -> list[Adapter]:
        return [Adapter("shelf", "key", "path", 4, 100)]

    async def adetect(self, image: Any, **arguments: Any) -> Any:
        return await self._ask("detect", image, arguments)

    async def apoint(self, image: Any, **arguments: Any) -> Any:
        return await self._ask("point", image, arguments)

    async def _ask(self, task: str, image: Any, arguments: dict[str, Any]) -> Any:
        ask = Ask(task, image, arguments)
        self.asked.put(ask)
        return await ask.wait() if self.replies is None else self.replies(image)
