"""The ingress between clients and replicas: routes, affinity, limits, and replicas that are lost."""

import asyncio
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.types import Message

from photonlite.errors import SettingsError
from photonlite.ray.ingress import create_ingress
from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from tests.ray.replicas import LocalEngines, light_app
from tests.server.asgi import Exchange, post
from tests.server.fake import FakeModel
from tests.server.virtual import run_virtual
from tests.serving import make_image, run

NAMES = ("a", "b", "c")


def picture(seed: int = 0) -> bytes:
    buffer = io.BytesIO()
    make_image(seed).save(buffer, "PNG")
    return buffer.getvalue()


PICTURE = picture()
PATH = "/v1/detect?object=mug"
PNG = {"content-type": "image/png"}
KEYS = ("the-key-of-caller-one", "the-key-of-caller-two")


class Service:
    """An ingress before three replicas of a fake model."""

    def __init__(self, make: Callable[[FakeModel, ServerConfig], Starlette] = light_app, **settings: Any) -> None:
        self.config = ServerConfig(**settings)
        self.fakes = {name: FakeModel() for name in NAMES}
        self.engines = LocalEngines(**{name: make(fake, self.config) for name, fake in self.fakes.items()})
        self.app: Starlette = create_ingress(self.engines, self.config, len(NAMES))

    async def get(self, path: str, **more: Any) -> Exchange:
        return await Exchange(self.app, path, b"", more.pop("headers", {}), method="GET", **more).finish()

    async def detect(self, image: bytes = PICTURE, **more: Any) -> Exchange:
        return await post(self.app, PATH, image, PNG | more.pop("headers", {}), **more)

    async def counts(self) -> dict[str, float]:
        text = (await self.get("/metrics")).body.decode()
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        names = {f"photonlite_ingress_{name}": name for name in ("lost_total", "resent_total", "open")}
        return {names[one.name]: one.value for one in samples if one.name in names}


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.001)


def question(stream: bool) -> str:
    return f"/v1/query?question=why&stream={str(stream).lower()}"


def test_answers_and_errors_are_those_of_the_replicas_application() -> None:
    async def main() -> None:
        alone = create_app(FakeModel(), ServerConfig())
        service = Service(lambda fake, config: alone)  # FakeModel answers every request alike
        chat = {"messages": [{"role": "user", "content": "hello"}]}
        asked = [
            (PATH, PICTURE, PNG),
            (question(False), PICTURE, PNG),
            ("/v1/chat/completions", chat, {}),
            (PATH, b"", PNG),
            ("/v1/detect", b"{", {"content-type": "application/json"}),
            ("/v1/nowhere", b"", {}),
        ]
        for path, body, headers in asked:
            through, direct = [await post(app, path, body, headers) for app in (service.app, alone)]
            assert (through.status, _comparable(through)) == (direct.status, _comparable(direct)), path
        for path in ("/health", "/ready", "/v1/models", "/docs", "/openapi.json", "/", "/nowhere"):
            through, direct = await service.get(path), await Exchange(alone, path, b"", {}, method="GET").finish()
            assert (through.status, through.headers["content-type"]) == (direct.status, direct.headers["content-type"])

    run(main())


def _comparable(exchange: Exchange) -> Any:
    changing = ("request_id", "id", "created")
    return {name: value for name, value in exchange.json.items() if name not in changing}


def test_adapters_are_listed_but_not_changed_behind_several_replicas() -> None:
    async def main() -> None:
        service = Service()
        refused = await post(service.app, "/v1/adapters", {"adapter": "shelf"}, {})
        assert (refused.status, refused.json["error"]["code"]) == (403, "adapters_fixed")
        unload = Exchange(service.app, "/v1/adapters/shelf", b"", {}, method="DELETE")
        assert (await unload.finish()).status == 403
        assert service.engines.asked == []
        await service.get("/v1/adapters")
        assert len(service.engines.asked) == 1

    run(main())


def test_replica_and_client_see_the_same_request_id() -> None:
    async def main() -> None:
        answer = await Service().detect()
        assert answer.headers["x-request-id"] == answer.json["request_id"]

    run(main())


def test_an_image_always_goes_to_one_replica_and_images_to_all() -> None:
    async def main() -> None:
        service = Service()
        homes = []
        for image in map(picture, range(12)):
            service.engines.asked.clear()
            assert (await service.detect(image)).status == 200
            assert (await post(service.app, "/v1/caption", image, PNG)).status == 200
            assert len(set(service.engines.asked)) == 1
            homes += service.engines.asked[:1]
        assert set(homes) == set(NAMES)

    run(main())


def test_a_replica_that_has_too_much_to_do_passes_on() -> None:
    async def main() -> None:
        service = Service()
        for fake in service.fakes.values():
            fake.hang()
        open_requests = [Exchange(service.app, PATH, PICTURE, PNG) for _ in range(8)]
        await until(lambda: len(service.engines.asked) == 8)
        first, second = dict.fromkeys(service.engines.asked)
        assert service.engines.asked == [first] * 4 + [second] * 4
        assert service.engines.placement.open == dict.fromkeys(NAMES, 0) | {first: 4, second: 4}
        for fake in service.fakes.values():
            fake.release()
        for asked in open_requests:
            assert (await asked.finish()).status == 200

    run(main())


def test_a_lost_replica_loses_no_answer_that_has_not_begun() -> None:
    async def main() -> None:
        service = Service()
        await service.detect()
        home = service.engines.asked.pop()
        service.engines.lose_after[home] = 0

        answer = await service.detect()

        assert (answer.status, answer.json["objects"]) == (200, (await service.detect()).json["objects"])
        assert service.engines.asked[0] == home
        assert home not in service.engines.asked[1:]
        assert await service.counts() == {"lost_total": 1, "resent_total": 1, "open": 0}

    run(main())


def test_a_request_is_sent_again_only_once() -> None:
    async def main() -> None:
        service = Service()
        service.engines.lose_after = dict.fromkeys(NAMES, 0)

        answer = await service.detect()

        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "replica_lost", "1")
        assert len(set(service.engines.asked)) == 2
        assert await service.counts() == {"lost_total": 2, "resent_total": 1, "open": 0}

    run(main())


def test_a_stream_that_has_begun_ends_with_the_error() -> None:
    async def main() -> None:
        service = Service()
        service.engines.lose_after = dict.fromkeys(NAMES, 2)  # its head and one piece have come

        answer = await post(service.app, question(True), PICTURE, PNG)

        events = [json.loads(line.removeprefix("data: ")) for line in answer.body.decode().split("\n\n") if line]
        assert answer.status == 200
        assert events[0] == {"chunk": "two ", "completed": False}
        assert [event["error"]["code"] for event in events[1:]] == ["replica_lost"]
        assert not answer.messages[-1].get("more_body")
        assert len(service.engines.asked) == 1

    run(main())


def test_an_answer_that_broke_off_is_not_taken_for_a_complete_one() -> None:
    async def main() -> None:
        service = Service()
        service.engines.lose_after = dict.fromkeys(NAMES, 1)

        with pytest.raises(RuntimeError, match="broke off"):
            await service.detect()

    run(main())


def test_without_replicas_503_says_when_to_come_again() -> None:
    async def main() -> None:
        service = Service()
        for name in NAMES:
            service.engines.lose(name)

        answer = await service.detect()

        assert (answer.status, answer.headers["retry-after"]) == (503, "1")

    run(main())


def test_a_replica_that_never_answers_is_waited_for_until_the_deadline() -> None:
    async def main() -> None:
        service = Service(deadline_s=3.0)

        async def silent(scope: Any, receive: Any, send: Any) -> None:
            await asyncio.Event().wait()

        engines = LocalEngines(a=silent)
        begun = asyncio.get_running_loop().time()
        answer = await post(create_ingress(engines, service.config, 1), PATH, PICTURE, PNG)
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "no_replica", "1")
        assert 3 < asyncio.get_running_loop().time() - begun < 10
        socket = Socket(create_ingress(engines, service.config, 1))
        refused = await socket.hear()
        assert (refused["type"], refused["status"]) == ("websocket.http.response.start", 503)
        await socket.task

    run_virtual(main())


def test_a_client_that_leaves_cancels_its_request_at_the_replica() -> None:
    async def main() -> None:
        service = Service()
        for fake in service.fakes.values():
            fake.hang()
        asked = Exchange(service.app, PATH, PICTURE, PNG)
        await until(lambda: any(fake.calls for fake in service.fakes.values()))

        asked.task.cancel()  # what Serve does when a client disconnects

        with pytest.raises(asyncio.CancelledError):
            await asked.task
        fake = service.fakes[service.engines.asked[0]]
        await asyncio.to_thread(fake.given_up.wait, 5)
        assert fake.cancelled == 1
        assert service.engines.placement.open == dict.fromkeys(NAMES, 0)
        assert (await service.counts())["open"] == 0

    run(main())


def test_keys_are_checked_before_a_body_is_read_and_tenants_have_their_own_replicas() -> None:
    async def main() -> None:
        service = Service(api_keys=KEYS)
        asked = Exchange(service.app, PATH, PICTURE, PNG | {"authorization": "Bearer wrong"})
        refused = await asked.finish()
        assert (refused.status, refused.code) == (401, "invalid_api_key")
        assert service.engines.asked == []
        assert (await service.get("/metrics")).status == 401
        refused = await service.get("/metrics", headers={"authorization": f"Bearer {KEYS[0]}"})
        assert (refused.status, refused.code) == (403, "metrics_refused")
        assert (await service.get("/health")).status == 200
        homes = {key: set[str]() for key in KEYS}
        for seed in range(8):
            for key in KEYS:
                assert (await service.detect(picture(seed), headers={"authorization": f"Bearer {key}"})).status == 200
                homes[key].add(f"{seed} {service.engines.asked[-1]}")
        assert homes[KEYS[0]] != homes[KEYS[1]]

    run(main())


def test_other_machines_are_answered_with_keys_or_when_exposed_only() -> None:
    async def main() -> None:
        far = {"client": "192.0.2.7"}
        for path in ("/health", "/metrics"):
            refused = await Service().get(path, **far)
            assert (refused.status, refused.code) == (403, "not_exposed")
        assert (await Service().detect(**far)).status == 403
        assert (await Service(expose=True).detect(**far)).status == 200
        keyed = Service(api_keys=KEYS)
        assert (await keyed.detect(headers={"authorization": f"Bearer {KEYS[0]}"}, **far)).status == 200

    run(main())


def test_what_is_over_the_limits_of_all_replicas_is_refused_at_once() -> None:
    async def main() -> None:
        service = Service(max_open=1)
        for fake in service.fakes.values():
            fake.hang()
        places = iter(NAMES)
        service.engines.placement.order = lambda key: [next(places)]  # type: ignore[method-assign]
        open_requests = [
            Exchange(service.app, PATH, picture(seed), PNG, client=f"127.0.0.{seed + 1}") for seed in range(3)
        ]
        await until(lambda: len(service.engines.asked) == 3)
        refused = await service.detect(picture(3), client="127.0.0.4")
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        for fake in service.fakes.values():
            fake.release()
        for asked in open_requests:
            assert (await asked.finish()).status == 200

    run(main())


def test_pages_of_other_origins_can_read_errors_of_the_ingress() -> None:
    async def main() -> None:
        service = Service(cors_origins=("https://page.example",))
        service.engines.lose_after = dict.fromkeys(NAMES, 0)
        answer = await service.detect(headers={"origin": "https://page.example"})
        assert answer.status == 503
        assert answer.headers["access-control-allow-origin"] == "https://page.example"

    run(main())


def test_metrics_are_those_of_all_replicas_and_of_the_ingress() -> None:
    async def main() -> None:
        service = Service()
        await service.detect()
        text = (await service.get("/metrics")).body.decode()
        families = {family.name: family.samples for family in text_string_to_metric_families(text)}
        assert {sample.labels["replica"] for sample in families["up"]} == set(NAMES)
        assert families["photonlite_ingress_open"][0].value == 0

    run(main())


class Socket:
    """A WebSocket's client, without a network."""

    def __init__(self, app: Starlette, **headers: str) -> None:
        names = {"host": "localhost", **headers}
        scope = {
            "type": "websocket",
            "asgi": {"version": "3.0"},
            "path": "/v1/realtime",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in names.items()],
            "client": ("127.0.0.1", 5000),
            "server": ("localhost", 2020),
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }
        self._sent: asyncio.Queue[Message] = asyncio.Queue()
        self._heard: asyncio.Queue[Message] = asyncio.Queue()
        self._sent.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.ensure_future(app(scope, self._sent.get, self._heard.put))

    def send(self, **message: Any) -> None:
        self._sent.put_nowait({"type": "websocket.receive", **message})

    def leave(self) -> None:
        self._sent.put_nowait({"type": "websocket.disconnect", "code": 1000})

    async def hear(self) -> Message:
        return await self._heard.get()

    async def result(self) -> Any:
        """Return the next message that is a result, as JSON."""
        while (message := json.loads((await self.hear())["text"]))["type"] != "result":
            pass
        return message


async def opened(service: Service, **headers: str) -> Socket:
    socket = Socket(service.app, **headers)
    assert (await socket.hear())["type"] == "websocket.accept"
    socket.send(text='{"task": "detect", "object": "mug", "deadline_ms": 10000}')
    return socket


def test_a_websocket_stays_at_one_replica() -> None:
    async def main() -> None:
        service = Service()
        socket = await opened(service)
        for number in range(3):
            socket.send(bytes=PICTURE)
            assert (await socket.result())["frame"] == number
        assert len(service.engines.asked) == 1
        socket.leave()
        await socket.task
        assert service.engines.placement.open == dict.fromkeys(NAMES, 0)

    run(main())


def test_websockets_with_the_same_request_id_do_not_meet() -> None:
    async def main() -> None:
        service = Service()
        service.engines.placement.order = lambda key: [NAMES[0]]  # type: ignore[method-assign]
        one, other = [await opened(service, **{"x-request-id": "retry-1"}) for _ in range(2)]
        one.send(bytes=PICTURE)
        assert (await one.result())["frame"] == 0
        one.leave()
        await one.task
        other.send(bytes=PICTURE)
        assert (await other.result())["frame"] == 0
        other.leave()
        await other.task

    run(main())


def test_a_websocket_is_refused_with_the_replicas_or_the_ingresses_error() -> None:
    async def main() -> None:
        foreign = Socket(Service().app, origin="https://page.example")
        assert (await foreign.hear())["status"] == 403
        await foreign.task
        keyless = Socket(Service(api_keys=KEYS).app)
        assert (await keyless.hear())["status"] == 401
        await keyless.task
        service = Service()
        service.engines.lose_after = dict.fromkeys(NAMES, 0)
        lost = Socket(service.app)
        assert (await lost.hear())["status"] == 503
        await lost.task

    run(main())


@pytest.mark.parametrize("how", ["it stops and takes no more messages", "it is killed"])
def test_a_websocket_whose_replica_is_lost_is_closed_as_going_away(how: str) -> None:
    async def main() -> None:
        service = Service()
        socket = await opened(service)
        assert json.loads((await socket.hear())["text"])["type"] == "task"
        if how == "it is killed":
            service.engines.lose_after = dict.fromkeys(NAMES, 2)
        else:
            service.engines.lose(service.engines.asked[0])
        socket.send(bytes=PICTURE)
        closed = await socket.hear()
        assert (closed["type"], closed["code"]) == ("websocket.close", 1001)
        await socket.task
        assert (await service.counts())["open"] == 0

    run(main())


def test_a_bad_limit_is_found_when_the_ingress_is_built() -> None:
    with pytest.raises(SettingsError, match="max_open"):
        create_ingress(LocalEngines(), ServerConfig(), replicas=0)
