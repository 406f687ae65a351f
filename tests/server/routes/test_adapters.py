"""Adapters over HTTP: which requests name one, and who may load and unload them."""

from pathlib import Path
from typing import Any

import pytest

from photonlite.models.shards import ADAPTER_CONFIG_NAME, ADAPTER_NAME
from tests.server.asgi import Exchange, post
from tests.server.fake import FakeModel
from tests.server.parts import DATA_URI, server
from tests.serving import run

KEYS = {"api_keys": ("user", "admin"), "admin_keys": ("admin",)}


def shelf() -> FakeModel:
    fake = FakeModel()
    fake.load_adapter("shelf")
    return fake


def ask(fake: FakeModel, path: str = "/v1/detect", **fields: Any) -> Exchange:
    body = {"image_url": DATA_URI, "object": "mug", **fields} if path == "/v1/detect" else fields
    return run(post(server(fake), path, body))


@pytest.mark.parametrize(
    "fields",
    [
        {"adapter": "shelf"},
        {"variant": "shelf"},
        {"settings": {"variant": "shelf", "max_objects": 3}},
        {"model": "fake:shelf"},
        {"model": "moondream3-preview:shelf"},
        {"model": "fake", "adapter": "shelf", "variant": "shelf"},
    ],
)
def test_a_request_names_its_adapter(fields: dict[str, Any]) -> None:
    fake = shelf()
    assert ask(fake, **fields).status == 200
    (call,) = fake.calls
    assert call.adapter == "shelf"
    assert "variant" not in call.arguments["settings"]
    assert not {"adapter", "variant", "model"} & set(call.arguments)


def test_a_request_without_one_is_answered_by_the_model() -> None:
    fake = shelf()
    assert ask(fake).status == 200
    assert fake.calls[0].adapter is None


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"adapter": "table"}, 404, "adapter_not_found"),
        ({"model": "fake:table"}, 404, "adapter_not_found"),
        ({"model": "other:shelf"}, 404, "model_not_found"),
        ({"adapter": "shelf", "variant": "table"}, 422, "invalid_input"),
        ({"adapter": "shelf", "model": "fake:table"}, 422, None),
        ({"adapter": 3}, 422, "invalid_field"),
        ({"settings": {"variant": 3}}, 404, "adapter_not_found"),
    ],
)
def test_names_that_lead_nowhere_are_refused(fields: dict[str, Any], status: int, code: str | None) -> None:
    fake = shelf()
    answer = ask(fake, **fields)
    assert answer.status == status
    assert code in (answer.code, None)
    assert fake.calls == []


def test_a_conversation_names_it_with_the_model() -> None:
    fake = shelf()
    messages = [{"role": "user", "content": "How many?"}]
    answer = ask(fake, "/v1/chat/completions", model="fake:shelf", messages=messages)
    assert (answer.status, answer.json["model"], fake.calls[0].adapter) == (200, "fake:shelf", "shelf")


def test_models_are_listed_with_their_adapters() -> None:
    app = server(shelf())
    listed = run(post(app, "/v1/models", b"", method="GET")).json
    assert [one["id"] for one in listed["data"]] == ["fake", "fake:shelf"]
    assert run(post(app, "/v1/models/fake:shelf", b"", method="GET")).json["id"] == "fake:shelf"
    assert run(post(app, "/v1/models/fake:table", b"", method="GET")).code == "adapter_not_found"


def admin(fake: FakeModel, key: str | None, method: str, path: str = "/v1/adapters", body: Any = b"") -> Exchange:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return run(post(server(fake, **KEYS), path, body, headers, method=method))


def test_an_admin_loads_and_unloads_adapters() -> None:
    fake = FakeModel()
    loaded = admin(fake, "admin", "POST", body={"adapter": "some/shelf", "name": "shelf"})
    entry = {"name": "shelf", "object": "adapter", "rank": 4, "bytes": 100, "key": "key"}
    assert (loaded.status, loaded.json) == (200, entry)
    assert admin(fake, "user", "GET").json == {"object": "list", "data": [entry]}
    assert admin(fake, "admin", "DELETE", "/v1/adapters/shelf").status == 204
    assert admin(fake, "admin", "DELETE", "/v1/adapters/shelf").code == "adapter_not_found"
    assert fake.adapters() == []


@pytest.mark.parametrize(("key", "status", "code"), [(None, 401, "missing_api_key"), ("user", 403, "admin_refused")])
@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/adapters"), ("DELETE", "/v1/adapters/shelf")])
def test_nobody_else_does(key: str | None, status: int, code: str, method: str, path: str) -> None:
    fake = shelf()
    answer = admin(fake, key, method, path, {"adapter": "other"})
    assert (answer.status, answer.code) == (status, code)
    assert [one.name for one in fake.adapters()] == ["shelf"]


def test_a_server_without_keys_lets_nobody_load_any() -> None:
    answer = run(post(server(shelf()), "/v1/adapters", {"adapter": "other"}))
    assert (answer.status, answer.code) == (403, "admin_refused")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of adapters: one that lies in it, and links in it that lead out of it."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "shelf", outside, root / "half"):
        folder.mkdir(parents=True)
        for name in (ADAPTER_NAME, ADAPTER_CONFIG_NAME):
            (folder / name).touch()
    (root / "other.safetensors").touch()
    (root / "linked").symlink_to(outside)
    (root / "inside").symlink_to(root / "shelf")
    (root / "file.safetensors").symlink_to(outside / ADAPTER_NAME)
    (root / "half" / ADAPTER_NAME).unlink()
    (root / "half" / ADAPTER_NAME).symlink_to(outside / ADAPTER_NAME)
    return root


def load_within(root: Path, adapter: str) -> tuple[Exchange, FakeModel]:
    app = server(fake := FakeModel(), **KEYS, adapter_root=str(root))
    return run(post(app, "/v1/adapters", {"adapter": adapter, "name": "it"}, {"authorization": "Bearer admin"})), fake


@pytest.mark.parametrize("adapter", ["shelf", "./shelf/", "inside", "other.safetensors", "shelf/../shelf", "absolute"])
def test_adapters_inside_the_root_are_loaded(root: Path, adapter: str) -> None:
    given = str(root / "shelf") if adapter == "absolute" else adapter
    answer, fake = load_within(root, given)
    assert answer.status == 200
    assert Path(fake.named["it"].source).resolve().is_relative_to(root)


@pytest.mark.parametrize(
    "adapter",
    [
        *("../outside", "..", "/", "/etc", "linked", "file.safetensors", "half", "owner/../.."),
        *("shelf\0", "x" * 5000, "shelf/../../outside"),
    ],
)
def test_adapters_outside_the_root_are_refused_also_through_links(root: Path, adapter: str) -> None:
    answer, fake = load_within(root, adapter)
    assert (answer.status, answer.code, fake.named) == (403, "adapter_refused", {})
    assert "--adapter-root" in answer.json["error"]["message"]


@pytest.mark.parametrize("name", ["owner/name", "~/name"])
def test_hub_ids_and_homes_are_paths_inside_the_root(root: Path, name: str) -> None:
    _, fake = load_within(root, name)
    assert fake.named["it"].source == str(root / name)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"adapter": "broken"}, "unusable_adapter"),
        ({}, "missing_field"),
        ({"adapter": "a", "path": "b"}, "unknown_field"),
    ],
)
def test_what_cannot_be_loaded_is_refused(body: dict[str, Any], code: str) -> None:
    answer = admin(FakeModel(), "admin", "POST", body=body)
    assert (answer.status, answer.code) == (422, code)
