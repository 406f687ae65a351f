"""What is no skill in the OpenAPI document: real time, health, metrics and the pages."""

from typing import Any

from photonlite.server.bodies import schema_parts as parts
from photonlite.server.bodies.schema_parts import TEXT, Json, described, record, ref


def paths() -> Json:
    """Give the paths."""
    return {
        "/v1/realtime": {"get": _realtime()},
        "/health": {
            "get": {
                **_open("health", "Tell whether the engine lives", parts.json_content(ref("Health"))),
                "responses": {
                    "200": parts.response("It does.", parts.json_content(ref("Health"))),
                    "503": parts.response("It has stopped.", parts.json_content(ref("Dead"))),
                    **parts.errors(421),
                },
            }
        },
        "/ready": {
            "get": {
                **_open("ready", "Tell whether the model answers", parts.json_content(ref("Ready"))),
                "responses": {
                    "200": parts.response("It can be sent work.", parts.json_content(ref("Ready"))),
                    "503": parts.response("It cannot.", parts.json_content(ref("Unready"))),
                    **parts.errors(421),
                },
            }
        },
        "/metrics": {
            "get": {
                "operationId": "metrics",
                "tags": ["Service"],
                "summary": "Counters and histograms for Prometheus",
                "responses": {
                    "200": parts.response("Prometheus' text format.", {"text/plain": {"schema": TEXT}}),
                    **parts.errors(401, 421),
                },
            }
        },
        "/openapi.json": {
            "get": _open("openapi", "Give this document", parts.json_content({"type": "object"})),
        },
        "/docs": {"get": _open("docs", "Show this document as a page", _page())},
        "/": {"get": _open("playground", "Show a page to try the model", _page())},
    }


def schemas() -> Json:
    """Give the schemas of their bodies."""
    return {
        "Error": parts.ERROR,
        "Health": record({"status": {"const": "alive"}}),
        "Dead": record({"status": {"const": "dead"}, "reason": TEXT}),
        "Ready": record({"status": {"const": "ready"}, "model": described(TEXT, "Its name.")}),
        "Unready": record({"status": {"const": "unavailable"}, "reason": TEXT}),
    }


def _open(name: str, summary: str, content: Json) -> Json:
    return {
        "operationId": name,
        "tags": ["Service"],
        "summary": summary,
        "security": [{}],
        "responses": {"200": parts.response("Here it is.", content), **parts.errors(421)},
    }


def _page() -> Json:
    return {"text/html": {"schema": TEXT}}


def _realtime() -> Json:
    header: dict[str, Any] = {"in": "header", "required": True}
    return {
        "operationId": "realtime",
        "tags": ["Real time"],
        "summary": "Open a WebSocket for frames",
        "description": (
            "Text messages are JSON. The first one says what to ask, such as "
            '`{"task": "detect", "object": "mug", "deadline_ms": 33}`; later ones change it from the next frame on. '
            '`{"stats": true}` asks for statistics. Binary messages are frames: JPEG, PNG, WebP, or raw pixels behind '
            "`RGB8`, width and height as 32-bit unsigned integers with the least significant byte first. The newest "
            "frame wins: older ones that wait are dropped and counted. The server sends JSON objects whose `type` is "
            "`task`, `result`, `error` or `stats`; `frame` counts the client's frames from 0. A page, which cannot set "
            "headers, offers two subprotocols: `photonlite`, which the server takes, and `photonlite-key.` with its "
            "API key."
        ),
        "parameters": [
            {"name": "Upgrade", "schema": {"type": "string", "enum": ["websocket"]}, **header},
            {"name": "Sec-WebSocket-Key", "schema": TEXT, **header},
        ],
        "responses": {
            "101": parts.response("The connection is a WebSocket from now on."),
            "404": parts.response("The request does not ask for a WebSocket.", parts.json_content(ref("Error"))),
            **parts.errors(*parts.ADMISSION),
        },
    }
