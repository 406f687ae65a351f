"""WebSocket `/v1/realtime`: frames in, results out, the newest frame wins; `realtime_messages` has the format."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, cast

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from photonlite.realtime.frames import FrameJob, FrameOutcome, FrameResult, Question
from photonlite.realtime.loop import Driver
from photonlite.realtime.state import LoopState
from photonlite.server.calls import Call, Skill, bounded
from photonlite.server.errors import UNFORESEEN, HttpError, to_http
from photonlite.server.ingress import Ingress
from photonlite.server.limits.callers import chosen_protocol
from photonlite.server.limits.limiter import Hold, Permit
from photonlite.server.routes.realtime_messages import (
    counts,
    error_message,
    read_frame,
    read_text,
    result_message,
    task_message,
)
from photonlite.server.transport.logs import LOGGER

GOING_AWAY: Final = 1001
"""Close code: the server stops."""

IDLE: Final = 1008
"""Close code: a violation of the server's rules, here that no frame came for a long time."""

_WINDOW: Final = 300
_MOST_UNSENT: Final = 64
_POLL_S: Final = 0.2
"""Seconds between checks whether the server drains, or no frames come."""


def routes(ingress: Ingress) -> list[BaseRoute]:
    """Return the route."""

    async def handle(websocket: WebSocket) -> None:
        async with await ingress.admit(websocket) as permit:
            await websocket.accept(subprotocol=chosen_protocol(websocket.scope.get("subprotocols") or ()))
            await RealtimeConnection(ingress, permit, websocket).serve()

    return [WebSocketRoute("/v1/realtime", handle)]


class Outbox:
    """Messages to be sent: the newest result, and a limited number of others.

    Attributes:
        unsent: Messages that were dropped because the client reads too slowly.
    """

    def __init__(self) -> None:
        self.unsent = 0
        self._result: Mapping[str, Any] | None = None
        self._others: deque[Mapping[str, Any]] = deque()
        self._there = asyncio.Event()

    def put(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "result":
            self.unsent += self._result is not None
            self._result = message
        elif len(self._others) < _MOST_UNSENT:
            self._others.append(message)
        else:
            self.unsent += 1
        self._there.set()

    async def take(self) -> Mapping[str, Any]:
        """Wait for the next message."""
        await self._there.wait()
        if self._others:
            message = self._others.popleft()
        else:
            message, self._result = cast(Mapping[str, Any], self._result), None
        if not self._others and self._result is None:
            self._there.clear()
        return message


class RealtimeConnection:
    """One client, whose socket has been accepted."""

    def __init__(self, ingress: Ingress, permit: Permit, socket: WebSocket) -> None:
        self._ingress = ingress
        self._permit = permit
        self._socket = socket
        self._outbox = Outbox()
        self._received = 0
        self._charged = 0
        self._last_frame = ingress.clock()
        self._state: LoopState | None = None
        self._driver: Driver | None = None

    async def serve(self) -> None:
        """Answer until the client leaves, sends no more frames or the server drains; then cancel what is in flight."""
        sending = asyncio.create_task(self._send())
        receiving = asyncio.create_task(self._receive())
        try:
            while not (self._ingress.draining or self._is_idle):
                await asyncio.wait((receiving, sending), timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
                if receiving.done() or sending.done():
                    break
        finally:
            await self._end(receiving, sending)
        for task in (receiving, sending):
            if not task.cancelled():
                task.result()
        with suppress(WebSocketDisconnect, RuntimeError):  # the client closed first
            if self._ingress.draining:
                await self._socket.close(GOING_AWAY, "the server is shutting down")
            elif self._is_idle:
                await self._socket.close(IDLE, f"no frame came for {self._ingress.config.frame_timeout_s:g} s")

    @property
    def _is_idle(self) -> bool:
        return self._ingress.clock() - self._last_frame > self._ingress.config.frame_timeout_s

    async def _end(self, *tasks: "asyncio.Task[None]") -> None:
        for task in tasks:
            task.cancel()
        if self._state is not None and self._driver is not None:
            self._state.close(drain=False)
            self._driver.cancel()
            await self._driver.drain()
        await asyncio.wait(tasks)

    async def _receive(self) -> None:
        while (message := await self._socket.receive())["type"] != "websocket.disconnect":
            data = message.get("bytes")
            frame = None if data is None else self._received
            self._received += data is not None
            try:
                if data is not None:
                    self._last_frame = self._ingress.clock()
                    self._take_frame(data, self._received - 1)
                else:
                    self._take_text(read_text(message["text"]))
            except Exception as error:  # fails this message alone
                self._tell(error, frame)

    async def _send(self) -> None:
        with suppress(WebSocketDisconnect):
            while True:
                message = await self._outbox.take()
                await self._socket.send_text(json.dumps(message, allow_nan=False))

    def _take_text(self, message: dict[str, Any]) -> None:
        if message == {"stats": True}:
            stats = {} if self._state is None else self._state.stats().to_dict()
            self._outbox.put({"type": "stats", "stats": {**stats, "unsent": self._outbox.unsent}})
            return
        question = self._asked(message)
        if self._state is None:
            self._state = LoopState(question, time.monotonic, window=_WINDOW)
            self._driver = Driver(self._state, self._answer, self._deliver)
        else:
            self._state.change(message)
        self._outbox.put(task_message(question))

    def _asked(self, message: Mapping[str, Any]) -> Question:
        """Return the question after a message; it is checked against the server's limits before any frame is."""
        if self._state is not None:
            question = self._state.question.changed(message)
        elif "task" in message:
            question = Question("", {}).changed(message)
        else:
            raise HttpError(422, 'the first message names a task: {"task": "detect", "object": "mug"}', code="no_task")
        call = Call(cast(Skill, question.task), b"", question.arguments)
        bounded(call, self._ingress.config, self._ingress.model.skills)
        return question

    def _take_frame(self, data: bytes, number: int) -> None:
        if self._state is None or self._driver is None:
            message = 'send a text message first that names a task: {"task": "detect", "object": "mug"}'
            raise HttpError(422, message, code="no_task")
        self._ingress.check_rate(self._permit.caller)
        image = read_frame(self._ingress.image(data))
        if len(image) > self._charged:  # the pending frame counts as large as the largest so far
            self._permit.charge(len(image) - self._charged)
            self._charged = len(image)
        self._state.submit(image, number)
        self._driver.wake()

    async def _answer(self, job: FrameJob) -> Mapping[str, Any]:
        image, question = job.frame.image, job.question
        call = Call(cast(Skill, question.task), image, question.arguments, deadline_s=job.deadline_s, realtime=True)
        with Hold(self._permit, len(image)):
            return await self._ingress.answer(call, self._permit, self._socket)

    def _deliver(self, outcome: FrameOutcome) -> None:
        if isinstance(outcome, FrameResult) and self._state is not None:
            counted = counts(self._state.stats()) | {"unsent": self._outbox.unsent}
            self._outbox.put(result_message(outcome, counted))
        elif not isinstance(outcome, FrameResult):
            self._tell(outcome.error, outcome.stamp)

    def _tell(self, error: BaseException, frame: int | None) -> None:
        failure = to_http(error)
        if failure.status == UNFORESEEN:
            LOGGER.error("a frame failed", exc_info=error, extra={"fields": {"id": self._permit.id}})
        self._outbox.put(error_message(failure, frame))
