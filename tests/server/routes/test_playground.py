import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("starlette", reason="the server is an extra: photonlite[serve]")

from starlette.applications import Starlette
from starlette.testclient import TestClient

from photonlite.server.routes import playground

ASSETS = Path(__file__).resolve().parents[3] / "assets"
TEXTS = (".html", ".js", ".css", ".svg")


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(Starlette(routes=playground.routes()))


def texts() -> dict[str, str]:
    return {name: file.body.decode() for name, file in playground.assets().items() if name.endswith(TEXTS)}


def policy_of(client: TestClient) -> dict[str, str]:
    header = client.get("/").headers["Content-Security-Policy"]
    return dict(part.split(" ", 1) for part in header.split("; "))


def test_the_page_and_all_that_it_names_are_served(client: TestClient) -> None:
    page = client.get("/")
    named = set(re.findall(r'(?:src|href)="(static/[^"]+)"', page.text))
    modules = {f"static/{name}" for text in texts().values() for name in re.findall(r'from "\./([^"]+)"', text)}

    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert {"static/app.js", "static/style.css"} <= named
    assert "static/overlay.js" in modules
    for path in named | modules:
        assert client.get(f"/{path}").status_code == 200, path


def test_scripts_and_styles_have_types_that_a_browser_takes(client: TestClient) -> None:
    assert client.get("/static/app.js").headers["Content-Type"].startswith("text/javascript")
    assert client.get("/static/style.css").headers["Content-Type"].startswith("text/css")
    assert client.get("/static/app.js").headers["X-Content-Type-Options"] == "nosniff"


def test_the_policy_lets_nothing_in_from_outside_and_nothing_inline(client: TestClient) -> None:
    policy = policy_of(client)

    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon[a-z]+=", texts()["index.html"])


def test_no_file_names_another_server() -> None:
    url = re.compile(r"(?:https?:)?//[a-z0-9][\w.-]+\.[a-z]{2,}[^\s\"')]*")
    urls = {found for text in texts().values() for found in url.findall(text)}

    assert urls <= {"http://www.w3.org/2000/svg"}  # the name of a format, never fetched


def test_the_page_is_small(client: TestClient) -> None:
    first = [name for name in playground.assets() if name.endswith(TEXTS) or "-small" in name]
    sent = [int(client.get(f"/static/{name}").headers["Content-Length"]) for name in first]

    assert sum(sent) < 33_000


def test_a_browser_that_cannot_unpack_gets_the_file_as_it_is(client: TestClient) -> None:
    plain = client.get("/static/app.js", headers={"Accept-Encoding": "identity"})
    packed = client.get("/static/app.js", headers={"Accept-Encoding": "br, gzip"})

    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert plain.content == packed.content == (playground.STATIC / "app.js").read_bytes()
    assert int(packed.headers["Content-Length"]) < len(plain.content)


def test_a_browser_that_has_a_file_does_not_get_it_again(client: TestClient) -> None:
    tag = client.get("/static/app.js").headers["ETag"]

    again = client.get("/static/app.js", headers={"If-None-Match": f'"other", {tag}'})

    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/static/app.js", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("path", ["/static/", "/static/nope", "/static/%2e%2e/playground.py", "/playground"])
def test_nothing_but_the_page_is_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_files_are_only_read(client: TestClient) -> None:
    assert client.post("/").status_code == 405
    assert client.head("/").status_code == 200


@pytest.mark.parametrize("name", ["desk", "street", "market"])
def test_examples_show_what_the_project_s_own_images_show(name: str) -> None:
    example_path = playground.STATIC / f"examples/{name}.webp"
    with Image.open(ASSETS / f"{name}.png") as original, Image.open(example_path) as example:
        same = original.convert("RGB").resize(example.size)
        difference = np.abs(np.asarray(same, dtype=float) - np.asarray(example.convert("RGB"), dtype=float))

    assert difference.mean() < 6
