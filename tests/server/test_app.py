import pytest
from starlette.routing import Route
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from photonlite.errors import PhotonliteError
from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from photonlite.server.limits.callers import Caller
from tests.server.asgi import post
from tests.server.fake import FakeModel
from tests.server.live import live
from tests.server.parts import DATA_URI, server
from tests.serving import run

KEYED = create_app(FakeModel(), ServerConfig(api_keys=("secret",), max_open=1))
ROUTES = [route for route in KEYED.routes if isinstance(route, Route)]
API = [route for route in ROUTES if route.path.startswith("/v1/")]


def a_method(route: Route) -> str:
    return next(method for method in ("POST", "DELETE", "GET") if method in (route.methods or ()))


def a_path(route: Route) -> str:
    return route.path.replace("{model:path}", "fake")


@pytest.mark.parametrize("route", [route for route in ROUTES if route in API or route.path == "/metrics"], ids=a_path)
def test_no_route_of_the_interface_is_open_without_a_key(route: Route) -> None:
    answer = run(post(KEYED, a_path(route), b"", {}, method=a_method(route)))
    assert (answer.status, answer.code) == (401, "missing_api_key")


@pytest.mark.parametrize("route", API, ids=a_path)
def test_every_limit_of_admission_holds_on_every_route(route: Route) -> None:
    async def main() -> None:
        app = server(max_open=1, requests_per_minute=1)
        door = app.state.ingress
        door.limiter.admit(Caller("127.0.0.1"), "first", 0.0, socket=False)
        full = await post(app, a_path(route), b"", {}, method=a_method(route))
        assert (full.status, full.code) == (429, "queue_full")
        fast = await post(app, a_path(route), b"", {}, method=a_method(route))
        assert (fast.status, fast.code) == (429, "rate_limit_exceeded")
        door.draining = True
        late = await post(app, a_path(route), b"", {}, method=a_method(route))
        assert (late.status, late.code) == (503, "draining")
        assert door.limiter.open == 1

    run(main())


@pytest.mark.parametrize("route", [route for route in API if a_method(route) == "POST"], ids=a_path)
def test_bodies_are_limited_on_every_route(route: Route) -> None:
    answer = run(post(server(max_body_bytes=10), route.path, [b"x" * 11], {"content-type": "application/json"}))
    assert (answer.status, answer.code) == (413, "body_too_large")


def test_unknown_paths_and_methods_have_the_same_error_shape() -> None:
    app = server()
    nowhere = run(post(app, "/v1/nothing", b""))
    assert (nowhere.status, nowhere.code) == (404, "unknown_path")
    wrong = run(post(app, "/v1/caption", b"", {}, method="GET"))
    assert (wrong.status, wrong.code) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"
    plain = run(post(app, "/v1/realtime", b"", {}, method="GET"))
    assert (plain.status, plain.code, plain.headers["upgrade"]) == (426, "upgrade_required", "websocket")


def test_pages_of_named_origins_may_read_answers_and_errors() -> None:
    app = server(cors_origins=("https://friend.example",))
    origin = {"origin": "https://friend.example"}
    for body in ({"image_url": DATA_URI}, {}):
        answer = run(post(app, "/v1/caption", body, origin))
        assert answer.headers["access-control-allow-origin"] == "https://friend.example"
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-moondream-auth"}
    preflight = {**origin, **asked}
    assert run(post(app, "/v1/caption", b"", preflight, method="OPTIONS")).status == 200
    assert "access-control-allow-origin" not in run(post(server(), "/v1/caption", {"image_url": DATA_URI})).headers


def test_a_model_failure_is_json_and_releases_its_permit() -> None:
    for error in (PhotonliteError("x"), KeyError("x"), RuntimeError("CUDA")):
        app = server(FakeModel(error))
        answer = run(post(app, "/v1/caption", {"image_url": DATA_URI}))
        assert (answer.status, answer.code) == (500, "internal_error")
        assert (app.state.ingress.limiter.open, app.state.ingress.limiter.bytes.used) == (0, 0)


def test_a_websocket_at_another_path_is_refused_like_a_request() -> None:
    with live() as server, pytest.raises(InvalidStatus) as refused:
        connect(f"ws://{server.host}:{server.port}/v1/nothing")
    assert refused.value.response.status_code == 404
    assert b"unknown_path" in (refused.value.response.body or b"")


def test_a_websocket_is_admitted_like_every_request() -> None:
    with live(api_keys=("secret",), max_sockets=1) as server:
        url = f"ws://{server.host}:{server.port}/v1/realtime"
        with pytest.raises(InvalidStatus) as refused:
            connect(url)
        assert refused.value.response.status_code == 401
        assert b"missing_api_key" in (refused.value.response.body or b"")
        headers = {"X-Moondream-Auth": "secret"}
        with connect(url, additional_headers=headers):
            with pytest.raises(InvalidStatus) as full:
                connect(url, additional_headers=headers)
            assert full.value.response.status_code == 429
            assert full.value.response.headers["Retry-After"]
