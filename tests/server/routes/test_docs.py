"""The OpenAPI document is valid, tells of every route that there is, and stands on a page."""

import dataclasses
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.routing import Route, WebSocketRoute

from photonlite.request import SamplingSettings
from photonlite.results import Metrics
from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from photonlite.server.routes.docs import document, page
from tests.server.asgi import Exchange, post
from tests.server.fake import FakeModel
from tests.serving import run

COMMON = ("image_url", "settings", "model", "stream", "strict", "adapter", "variant")
FIELDS = {
    "caption": ("length",),
    "query": ("question", "reasoning", "spatial_refs", "schema", "choices", "regex"),
    "detect": ("object", "min_score", "overlap", "tile"),
    "point": ("object", "min_score", "overlap", "tile", "spatial_refs"),
    "segment": ("object", "min_score", "overlap", "tile", "spatial_refs"),
}
CONFIG = ServerConfig(api_keys=("k",), max_tokens=77, max_objects=5, max_prompt_characters=300)


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return document(CONFIG)


def get(path: str) -> Exchange:
    exchange: Exchange = run(post(create_app(FakeModel(), CONFIG), path, b"", method="GET"))
    return exchange


def test_the_document_is_valid_openapi(described: dict[str, Any]) -> None:
    assert [str(error) for error in OpenAPIV31SpecValidator(described).iter_errors()] == []


def test_every_schema_is_used(described: dict[str, Any]) -> None:
    used = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(described)))

    assert set(described["components"]["schemas"]) == used


def test_the_document_has_every_route(described: dict[str, Any]) -> None:
    app = create_app(FakeModel(), CONFIG)
    there = set(_routes(app.routes))
    told = {(path, method) for path, methods in described["paths"].items() for method in methods}

    assert told == there


def _routes(routes: list[Any]) -> Iterator[tuple[str, str]]:
    for route in routes:
        if isinstance(route, WebSocketRoute):
            yield route.path, "get"
        elif isinstance(route, Route) and not route.path.startswith("/static/"):  # files of a page
            path = re.sub(r":\w+}", "}", route.path)
            yield from ((path, method.lower()) for method in route.methods or () if method != "HEAD")


def test_bodies_have_the_fields_that_are_read(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]

    for skill, fields in FIELDS.items():
        assert set(schemas[f"{skill.capitalize()}Request"]["properties"]) == {*COMMON, *fields}
        assert set(schemas[f"{skill.capitalize()}Form"]["properties"]) == {*COMMON, *fields, "image"} - {"image_url"}
    assert set(schemas["Settings"]["properties"]) == {field.name for field in dataclasses.fields(SamplingSettings)}
    assert set(schemas["Metrics"]["properties"]) == set(Metrics().to_dict())


def test_the_document_has_the_limits_of_the_server(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]

    assert schemas["Settings"]["properties"]["max_tokens"]["anyOf"][0]["maximum"] == 77
    assert schemas["Settings"]["properties"]["max_objects"]["anyOf"][0]["maximum"] == 5
    for name in ("max_tokens", "max_completion_tokens"):
        assert schemas["ChatCompletionRequest"]["properties"][name]["anyOf"][0]["maximum"] == 77
    for name in ("QueryRequest", "QueryForm"):
        assert schemas[name]["properties"]["question"]["maxLength"] == 300


def test_parameters_with_one_accepted_value_are_described_with_it(described: dict[str, Any]) -> None:
    properties = described["components"]["schemas"]["ChatCompletionRequest"]["properties"]

    for name, value in (("n", 1), ("logprobs", False), ("top_logprobs", 0), ("tools", [])):
        values = properties[name]["anyOf"][0]["enum"]
        assert (values, type(values[0])) == ([value], type(value))


def test_security_is_described_if_the_server_has_keys(described: dict[str, Any]) -> None:
    assert [set(entry) for entry in described["security"]] == [{"bearer"}, {"moondream"}]
    assert document(ServerConfig())["security"] == []


def test_both_are_served_without_a_key(described: dict[str, Any]) -> None:
    assert get("/openapi.json").json == described
    docs = get("/docs")
    assert docs.headers["content-type"].startswith("text/html")
    assert "script-src" not in docs.headers["content-security-policy"]
    assert docs.headers["content-security-policy"].startswith("default-src 'none'")


class Links(HTMLParser):
    """Collects what a page refers to, and what can be referred to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)
        for name, value in attrs:
            if name in ("href", "src"):
                self.targets.append(value or "")
            if name == "id":
                self.anchors.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_links_to_itself(described: dict[str, Any]) -> None:
    text = page(described)
    links = Links(text)

    assert links.open == []
    assert len(links.anchors) == len(set(links.anchors))
    assert {target for target in links.targets if not target.startswith("#")} == {
        "/openapi.json",
        "/static/docs.css",
    }
    assert {target[1:] for target in links.targets if target.startswith("#")} <= set(links.anchors)
    assert "url(" not in text
    for path in described["paths"]:
        assert f"<code>{path}</code>" in text
    for name in described["components"]["schemas"]:
        assert f"schema-{name}" in links.anchors


def test_descriptions_are_escaped(described: dict[str, Any]) -> None:
    described = {**described, "info": {**described["info"], "summary": "<script>alert(1)</script>"}}

    assert "<script>" not in page(described)
