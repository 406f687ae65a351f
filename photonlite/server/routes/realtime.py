"""WebSocket `/v1/realtime`: frames in, results out, the newest frame wins.

The client sends text messages, JSON objects that say what to ask, and binary messages, the frames:

```
{"task": "detect", "object": "mug", "deadline_ms": 33}      first: what to ask; later "task" begins anew, but for the
                                                            deadline, and without it the rest stays
{"track": true}                                             items get ids over frames, "track_id"
{"adapter": "shelf"}                                        which loaded adapter answers
{"stats": true}                                             asks for the statistics
JPEG, PNG or WebP                                           a file's bytes
"RGB8", width, height, pixels                               raw: four letters, two 32-bit unsigned integers with the
                                                            least significant byte first, then 3 bytes a pixel, row by
                                                            row from the top
```

The server sends JSON objects. `frame` counts the client's binary messages from 0:

```
{"type": "task", "task": "detect", "object": "mug", "deadline_ms": 33,     what holds from the next frame on
 "track": false}
{"type": "result", "frame": 7, "task": "detect", "result": {"objects": [...]}, "latency_ms": 21.3,
 "met_deadline": true, "finish_reason": "stop", "truncated": false, "metrics": {...}, "counts": {"submitted": 8,
 "answered": 5, "failed": 0, "missed": 1, "dropped": 3, "unsent": 0}}
{"type": "error", "frame": 7, "error": {"message", "type", "code"}}        frame is null for a text message
{"type": "stats", "stats": {...}}                                          times in seconds
```
"""

import asyncio
import dataclasses
import json
import struct
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from photonlite.realtime.frames import FrameJob, FrameOutcome, FrameResult, Question
from photonlite.realtime.loop import Driver
from photonlite.realtime.state import LoopState
from photonlite.results.tracking import require_trackers
from photonlite.server.bodies.base import Json
from photonlite.server.bodies.reading import read_json_object
from photonlite.server.bodies.skills import outcome_of
from photonlite.server.calls import Call, Skill, bounded
from photonlite.server.errors import HttpError, to_http
from photonlite.server.ingress import Ingress
from photonlite.server.limits.callers import caller_of, chosen_protocol
from photonlite.server.limits.limiter import Hold, Permit
from photonlite.server.transport.logs import log_unforeseen

# Close codes: the server stops; against its rules, as when no frame came for a long time, or the key was revoked.
GOING_AWAY: Final = 1001
IDLE: Final = 1008
REVOKED: Final = 1008

MAX_TEXT: Final = 65_536  # characters of a text message
_WINDOW: Final = 300
_MOST_UNSENT: Final = 64
_POLL_S: Final = 0.2  # seconds between checks whether the server drains, or no frames come
_RAW: Final = b"RGB8"
_HEADER: Final = struct.Struct("<4sII")
_NO_TASK: Final = 'send a text message first that names a task: {"task": "detect", "object": "mug"}'


def routes(ingress: Ingress) -> list[BaseRoute]:
    async def handle(websocket: WebSocket) -> None:
        async with await ingress.admit(websocket) as permit:
            await websocket.accept(subprotocol=chosen_protocol(websocket.scope.get("subprotocols") or ()))
            await RealtimeConnection(ingress, permit, websocket).serve()

    async def refuse(request: Request) -> Response:
        async with await ingress.admit(request):
            message = "this path takes WebSockets, and the request is none: a proxy may not have passed its Upgrade on"
            raise HttpError(426, message, code="upgrade_required", headers={"Upgrade": "websocket"})

    return [WebSocketRoute("/v1/realtime", handle), Route("/v1/realtime", refuse, methods=["GET"])]


class Outbox:
    """Messages to be sent: the newest result, and a limited number of others; `unsent` counts those dropped."""

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
        self._keys = ingress.config.api_keys  # one of which is the socket's
        self._state: LoopState | None = None
        self._driver: Driver | None = None

    async def serve(self) -> None:
        """Answer until the client leaves, sends no more frames or the server drains; then cancel what is in flight."""
        tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._receive())]
        try:
            while not (self._ingress.draining or self._is_idle or self._is_revoked):
                done, _ = await asyncio.wait(tasks, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    break
        finally:
            for task in tasks:
                task.cancel()
            if self._state is not None and self._driver is not None:
                self._state.close(drain=False)
                self._driver.cancel()
                await self._driver.drain()
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()
        with suppress(WebSocketDisconnect, RuntimeError):  # the client closed first
            if self._ingress.draining:
                await self._socket.close(GOING_AWAY, "the server is shutting down")
            elif self._is_idle:
                await self._socket.close(IDLE, f"no frame came for {self._ingress.config.frame_timeout_s:g} s")
            elif self._is_revoked:
                await self._socket.close(REVOKED, "the API key is no longer known: connect with another one")

    @property
    def _is_idle(self) -> bool:
        return self._ingress.clock() - self._last_frame > self._ingress.config.frame_timeout_s

    @property
    def _is_revoked(self) -> bool:
        """Whether the keys were reloaded, and the one of this socket is not among them."""
        config = self._ingress.config
        if self._keys is not config.api_keys and caller_of(self._socket, config).id == self._permit.caller.id:
            self._keys = config.api_keys
        return self._keys is not config.api_keys

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
                    await self._take_text(message["text"])
            except Exception as error:  # fails this message alone
                self._tell(error, frame)

    async def _send(self) -> None:
        with suppress(WebSocketDisconnect):
            while True:
                message = await self._outbox.take()
                await self._socket.send_text(json.dumps(message, allow_nan=False))

    async def _take_text(self, text: str) -> None:
        if len(text) > MAX_TEXT:
            reason = f"the message has {len(text)} characters, over the limit of {MAX_TEXT}"
            raise HttpError(413, reason, code="too_long")
        self._ingress.check_rate(self._permit.caller)
        message = read_json_object(text.encode())
        if message == {"stats": True}:
            stats = {} if self._state is None else self._state.stats().to_dict()
            self._outbox.put({"type": "stats", "stats": {**stats, "unsent": self._outbox.unsent}})
            return
        question = self._asked(message)
        if question.track:
            await asyncio.to_thread(require_trackers)  # the first import takes a second
        if self._state is None:
            self._state = LoopState(question, time.monotonic, window=_WINDOW)
            self._driver = Driver(self._state, self._answer, self._deliver)
        else:
            self._state.change(message)
        deadline_ms = None if question.deadline_s is None else _milliseconds(question.deadline_s)
        also = {"deadline_ms": deadline_ms, "track": question.track}
        self._outbox.put({"type": "task", "task": question.task, **question.arguments, **also})

    def _asked(self, message: Mapping[str, Any]) -> Question:
        """Return the question after a message; it is checked against the server's limits before any frame is."""
        if self._state is not None:
            question = self._state.question.changed(message)
        elif "task" in message:
            question = Question("", {}).changed(message)
        else:
            raise HttpError(422, 'the first message names a task: {"task": "detect", "object": "mug"}', code="no_task")
        call = _call(question, b"")
        bounded(call, self._ingress.config, self._ingress.model)
        self._ingress.adapter_of(None, call.adapter)
        return question

    def _take_frame(self, data: bytes, number: int) -> None:
        if self._state is None or self._driver is None:
            raise HttpError(422, _NO_TASK, code="no_task")
        self._ingress.check_rate(self._permit.caller)
        image = read_frame(self._ingress.image(data))
        if len(image) > self._charged:  # the pending frame counts as large as the largest so far
            self._permit.charge(len(image) - self._charged)
            self._charged = len(image)
        self._state.submit(image, number)
        self._driver.wake()

    async def _answer(self, job: FrameJob) -> Mapping[str, Any]:
        image = job.frame.image
        call = dataclasses.replace(_call(job.question, image), deadline_s=job.deadline_s, realtime=True)
        with Hold(self._permit, len(image)):
            return await self._ingress.answer(call, self._permit, self._socket)

    def _deliver(self, outcome: FrameOutcome) -> None:
        if not isinstance(outcome, FrameResult):
            self._tell(outcome.error, outcome.stamp)
        elif self._state is not None:
            stats = self._state.stats()
            counts = {name: getattr(stats, name) for name in ("submitted", "answered", "failed", "missed")}
            counts |= {"dropped": sum(stats.dropped.values()), "unsent": self._outbox.unsent}
            self._outbox.put(_result_message(outcome) | {"counts": counts})

    def _tell(self, error: BaseException, frame: int | None) -> None:
        failure = to_http(error)
        log_unforeseen("a frame failed", error, failure, self._socket.scope)
        self._outbox.put({"type": "error", "frame": frame, **failure.body})


def _call(question: Question, image: bytes) -> Call:
    arguments = dict(question.arguments)
    adapter = arguments.pop("adapter", None)
    return Call(cast(Skill, question.task), image, arguments, adapter=adapter)


def read_frame(data: bytes) -> bytes:
    """Return a frame as the bytes of an image file; raises 400 if the header of raw pixels does not fit them."""
    if not data.startswith(_RAW):
        return data
    if len(data) < _HEADER.size:
        reason = f"the frame ends inside its header: {_HEADER.size} bytes come before the pixels"
        raise HttpError(400, reason, code="invalid_frame")
    _, width, height = _HEADER.unpack_from(data)
    if not width or not height or len(data) - _HEADER.size != 3 * width * height:
        sizes = f"{width}x{height} pixels take {3 * width * height} bytes, and {len(data) - _HEADER.size} came"
        raise HttpError(400, f"the frame's header does not fit its pixels: {sizes}", code="invalid_frame")
    # A PPM file is the same pixels behind another header.
    return b"P6 %d %d 255\n" % (width, height) + memoryview(data)[_HEADER.size :]


def _result_message(result: FrameResult) -> Json:
    return {
        "type": "result",
        "frame": result.stamp,
        "task": result.task,
        "result": dict(result.result),
        "latency_ms": _milliseconds(result.latency_s),
        "met_deadline": result.met_deadline,
        **outcome_of(result.result),
    }


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 3)
