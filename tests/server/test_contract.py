"""Whatever is sent to a route, by the document or against it, the answer is one that the document tells of."""

from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from photonlite.server.routes.docs import MEDIA_TYPES
from tests.server.fake import FakeModel
from tests.server.parts import DATA_URI, PNG

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
for media_type in MEDIA_TYPES:
    schemathesis.openapi.media_type(media_type, st.binary(max_size=200) | st.just(PNG))

schema = schemathesis.openapi.from_asgi(
    "/openapi.json", create_app(FakeModel(), ServerConfig(max_prompt_characters=100, max_tokens=50, max_objects=20))
)


@schema.hook  # type: ignore[untyped-decorator]
def map_body(context: Any, body: Any) -> Any:
    """Put good images and questions where the document says "text" in three of four bodies: some are answered."""
    if not isinstance(body, dict) or len(str(body)) % 4 == 0:
        return body
    if isinstance(body.get("image_url"), str):
        body["image_url"] = DATA_URI
    if isinstance(body.get("messages"), list):
        part = {"type": "image_url", "image_url": {"url": DATA_URI}}
        body["messages"].append({"role": "user", "content": [{"type": "text", "text": "How many?"}, part]})
        body["model"], body["stream"] = "fake", len(body) % 2 == 0
    return body


def ask(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=CHECKS)


def cases(count: int, **more: Any) -> Callable[[Any], Any]:
    return settings(max_examples=count, database=None, suppress_health_check=list(HealthCheck), **more)


@pytest.mark.long
@schema.parametrize()  # type: ignore[untyped-decorator]
@cases(30, derandomize=True)
def test_some_requests_to_every_route(case: schemathesis.Case) -> None:
    ask(case)


@pytest.mark.slow
@schema.parametrize()  # type: ignore[untyped-decorator]
@cases(100)
def test_many_requests_to_every_route(case: schemathesis.Case) -> None:
    ask(case)
