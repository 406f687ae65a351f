"""Requests that share a prefix have one key, and others have not."""

import base64
import json
from typing import Any

import pytest
from starlette.requests import Request

from photonlite.ray.keys import affinity_key
from photonlite.server.config import ServerConfig

IMAGE, OTHER = b"one image", b"another image"
ALIASES = ServerConfig().model_aliases


def uri(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def key(path: str, body: bytes, kind: str = "application/json", query: str = "", tenant: str | None = None) -> Any:
    headers = [(b"content-type", kind.encode())]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": query.encode(), "headers": headers}
    return affinity_key(Request(scope), body, tenant, ALIASES)


def asked(image: bytes | str = IMAGE, path: str = "/v1/detect", tenant: str | None = None, **fields: Any) -> Any:
    given = image if isinstance(image, str) else uri(image)
    return key(path, json.dumps({"image_url": given, "object": "mug"} | fields).encode(), tenant=tenant)


def chat(*messages: tuple[str, Any], **fields: Any) -> Any:
    turns = [{"role": role, "content": content} for role, content in messages]
    return key("/v1/chat/completions", json.dumps({"messages": turns, **fields}).encode())


def seen(*images: bytes, text: str = "what is this?") -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": uri(image)}} for image in images]
    return [*parts, {"type": "text", "text": text}]


def form(**fields: str | bytes | list[str]) -> bytes:
    parts = b""
    for name, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            file = '; filename="a.png"' if isinstance(value, bytes) else ""
            content = value if isinstance(value, bytes) else value.encode()
            parts += f'--x\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n"
    return parts + b"--x--\r\n"


def test_the_same_image_has_the_same_key_in_every_form_of_a_request() -> None:
    keys = {
        asked(),
        asked(object="key", settings={"max_objects": 3}),
        key("/v1/caption", json.dumps({"image_url": uri(IMAGE), "length": "short"}).encode()),
        key("/v1/detect", IMAGE, "image/png", "object=mug&object=key"),
        key("/v1/point", form(image=IMAGE, object=["mug", "key"]), "multipart/form-data; boundary=x"),
        chat(("user", seen(IMAGE))),
        chat(("user", seen(IMAGE)), ("assistant", "a mug"), ("user", seen(OTHER, text="and this?"))),
    }

    assert len(keys) == 1
    assert None not in keys


def test_image_model_and_tenant_tell_keys_apart() -> None:
    keys = [asked(), asked(OTHER), asked(model="another"), asked(tenant="one"), asked(tenant="two")]

    assert len(set(keys)) == len(keys)
    assert None not in keys


def test_parts_of_a_key_cannot_be_shifted_into_each_other() -> None:
    assert asked(model="ab", tenant="c") != asked(model="a", tenant="bc")


def test_an_alias_of_the_model_means_the_same_as_no_name() -> None:
    assert asked(model=ALIASES[0]) == asked()


def test_a_url_stands_for_its_image() -> None:
    assert asked("https://a.example/1.png") == asked("https://a.example/1.png")
    assert asked("https://a.example/1.png") != asked("https://a.example/2.png")


def test_a_conversation_without_an_image_is_known_by_its_first_turn() -> None:
    first = chat(("system", "be short"), ("user", "hello"))
    later = chat(("system", "be short"), ("user", "hello"), ("assistant", "hi"), ("user", "who are you?"))

    assert first is not None
    assert first == later
    assert first != chat(("user", "hello"))
    assert first != chat(("system", "be short"), ("user", "good morning"))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/query", b'{"question": "why?"}'),  # a prompt alone is cheap to compute anew
        ("/v1/detect", b"not JSON"),
        ("/v1/detect", b'{"image_url": "data:image/png;base64,???", "object": "mug"}'),
        ("/v1/detect", b'{"image_url": "nonsense", "object": "mug"}'),
        ("/v1/detect", b'{"image_url": "data:,", "nonsense": 1}'),
        ("/v1/chat/completions", b'{"messages": []}'),
        ("/v1/nowhere", b"{}"),
        ("/", b""),
    ],
)
def test_what_shares_nothing_or_cannot_be_read_has_no_key(path: str, body: bytes) -> None:
    assert key(path, body) is None
