"""The messages of the real-time WebSocket.

The client sends text messages, JSON objects that say what to ask, and binary messages, the frames:

```
{"task": "detect", "object": "mug", "deadline_ms": 33}      first: what to ask; later "task" begins anew, but for the
                                                            deadline, and without it the rest stays
{"stats": true}                                             asks for the statistics
JPEG, PNG or WebP                                           a file's bytes
"RGB8", width, height, pixels                               raw: four letters, two 32-bit unsigned integers with the
                                                            least significant byte first, then 3 bytes a pixel, row by
                                                            row from the top
```

The server sends JSON objects. `frame` counts the client's binary messages from 0:

```
{"type": "task", "task": "detect", "object": "mug", "deadline_ms": 33}     what holds from the next frame on
{"type": "result", "frame": 7, "task": "detect", "result": {"objects": [...]}, "latency_ms": 21.3,
 "met_deadline": true, "finish_reason": "stop", "truncated": false, "metrics": {...}, "counts": {"submitted": 8,
 "answered": 5, "failed": 0, "missed": 1, "dropped": 3}}
{"type": "error", "frame": 7, "error": {"message", "type", "code"}}        frame is null for a text message
{"type": "stats", "stats": {...}}                                          times in seconds
```
"""

import struct
from collections.abc import Mapping
from typing import Any, Final

from photonlite.realtime.frames import FrameResult, Question
from photonlite.realtime.stats import LoopStats
from photonlite.server.bodies.reading import read_json_object
from photonlite.server.bodies.skills import outcome_of
from photonlite.server.errors import HttpError

MAX_TEXT: Final = 65_536
"""Characters of a text message."""

_RAW: Final = b"RGB8"
_HEADER: Final = struct.Struct("<4sII")


def read_text(text: str) -> dict[str, Any]:
    """Read a text message.

    Raises:
        HttpError: 413 over the limit, 400 for what is no JSON object.
    """
    if len(text) > MAX_TEXT:
        raise HttpError(413, f"the message has {len(text)} characters, over the limit of {MAX_TEXT}", code="too_long")
    return read_json_object(text.encode())


def read_frame(data: bytes) -> bytes:
    """Return a frame as the bytes of an image file.

    Raises:
        HttpError: 400, the header of raw pixels does not fit them.
    """
    if not data.startswith(_RAW):
        return data
    if len(data) < _HEADER.size:
        raise _misshapen(f"the frame ends inside its header: {_HEADER.size} bytes come before the pixels")
    _, width, height = _HEADER.unpack_from(data)
    if not width or not height or len(data) - _HEADER.size != 3 * width * height:
        sizes = f"{width}x{height} pixels take {3 * width * height} bytes, and {len(data) - _HEADER.size} came"
        raise _misshapen(f"the frame's header does not fit its pixels: {sizes}")
    # A PPM file is the same pixels behind another header.
    return b"P6 %d %d 255\n" % (width, height) + memoryview(data)[_HEADER.size :]


def task_message(question: Question) -> dict[str, Any]:
    """Return the message that confirms what is asked from the next frame on."""
    deadline_ms = None if question.deadline_s is None else _milliseconds(question.deadline_s)
    return {"type": "task", "task": question.task, **question.arguments, "deadline_ms": deadline_ms}


def result_message(result: FrameResult, counted: Mapping[str, int]) -> dict[str, Any]:
    """Return the message with the answer to a frame; `counted` is from `counts`."""
    return {
        "type": "result",
        "frame": result.stamp,
        "task": result.task,
        "result": dict(result.result),
        "latency_ms": _milliseconds(result.latency_s),
        "met_deadline": result.met_deadline,
        **outcome_of(result.result),
        "counts": counted,
    }


def counts(stats: LoopStats) -> dict[str, int]:
    """Return the part of the statistics that every result carries."""
    return {
        "submitted": stats.submitted,
        "answered": stats.answered,
        "failed": stats.failed,
        "missed": stats.missed,
        "dropped": sum(stats.dropped.values()),
    }


def error_message(error: HttpError, frame: int | None) -> dict[str, Any]:
    """Return the message about an error of a frame, or of a text message."""
    return {"type": "error", "frame": frame, **error.body}


def _misshapen(message: str) -> HttpError:
    return HttpError(400, message, code="invalid_frame")


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 3)
