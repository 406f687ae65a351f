import asyncio
import json
import struct
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from photonlite.errors import ImageDecodeError
from photonlite.images.decode import load_image
from photonlite.server.config import ServerConfig
from photonlite.server.ingress import Ingress
from photonlite.server.routes.realtime import IDLE, REVOKED, Outbox, routes
from photonlite.server.transport.middleware import ErrorResponses
from tests.server.fake import FakeModel
from tests.server.live import GUARD, ROOT, Live, live, live_model, wait_until
from tests.server.parts import encoded
from tests.server.transport.test_connections import UPGRADE

DETECT = {"task": "detect", "object": "mug"}


def raw(pixels: Any) -> bytes:
    height, width, _ = pixels.shape
    return struct.pack("<4sII", b"RGB8", width, height) + pixels.tobytes()


class Client:
    """Sends frames and JSON, and reads JSON."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def say(self, **message: Any) -> None:
        self.connection.send(json.dumps(message))

    def show(self, data: bytes) -> None:
        self.connection.send(data)

    def hear(self) -> Any:
        return json.loads(self.connection.recv(timeout=GUARD))

    def ask(self, **message: Any) -> Any:
        self.say(**message)
        return self.hear()

    def code(self) -> tuple[int | None, str]:
        """Frame and code of the next error."""
        message = self.hear()
        assert message["type"] == "error"
        assert set(message["error"]) == {"message", "type", "code"}
        return message["frame"], message["error"]["code"]


@contextmanager
def serving(fake: FakeModel | None = None, **settings: Any) -> Iterator[Live]:
    clock = settings.pop("clock", time.monotonic)
    fake, config = fake or FakeModel(), ServerConfig(port=0, drain_s=0.0, **settings)
    ingress = Ingress(config, fake, clock)
    app = Starlette(routes=routes(ingress), middleware=[Middleware(ErrorResponses, config=config)])
    app.state.ingress = ingress
    with live(fake, app, **settings) as server:
        yield server


@contextmanager
def client(server: Live, **options: Any) -> Iterator[Client]:
    with connect(f"ws://{server.host}:{server.port}/v1/realtime", open_timeout=GUARD, **options) as connection:
        yield Client(connection)


@pytest.fixture
def server() -> Iterator[Live]:
    with serving() as server:
        yield server


def test_an_adapter_answers_frames_and_an_unknown_one_is_refused_before_any() -> None:
    fake = FakeModel()
    fake.load_adapter("shelf")
    with serving(fake) as server, client(server) as one:
        one.say(**DETECT, adapter="shelv")
        assert one.code() == (None, "adapter_not_found")
        assert one.ask(**DETECT, adapter="shelf")["adapter"] == "shelf"
        one.show(encoded())
        assert one.hear()["type"] == "result"

    (call,) = fake.calls
    assert call.adapter == "shelf"
    assert "adapter" not in call.arguments


def test_frames_in_results_out(server: Live) -> None:
    with client(server) as robot:
        assert robot.ask(**DETECT, deadline_ms=600000) == {
            "type": "task",
            **DETECT,
            "deadline_ms": 600000,
            "track": False,
        }
        for number, kind in enumerate(("PNG", "JPEG", "WEBP")):
            robot.show(encoded(kind=kind))
            message = robot.hear()
            assert (message["type"], message["frame"], message["task"]) == ("result", number, "detect")
            assert message["result"]["objects"][0]["label"] == "mug"
            assert message["met_deadline"]
            assert message["latency_ms"] >= 0
            assert message["metrics"]["output_tokens"] == 3
        assert message["counts"] == {
            "submitted": 3, "answered": 3, "failed": 0, "missed": 0, "dropped": 0, "unsent": 0
        }  # fmt: skip

    call = server.fake.calls[0]  # type: ignore[attr-defined]
    assert call.realtime
    assert 0 < call.deadline_s <= 600


def test_several_names_and_a_threshold_are_asked_of_every_frame(server: Live) -> None:
    asked = {"task": "detect", "object": ["mug", "key"], "min_score": 0.25}
    with client(server) as robot:
        assert robot.ask(**asked) == {"type": "task", **asked, "deadline_ms": None, "track": False}
        robot.show(encoded())
        assert robot.hear()["type"] == "result"
        assert robot.ask(object=[])["error"]["code"] == "invalid_prompt"

    arguments = server.fake.calls[0].arguments  # type: ignore[attr-defined]
    assert (arguments["object"], arguments["min_score"]) == (["mug", "key"], 0.25)


def test_raw_pixels_arrive_as_they_are(server: Live) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    with client(server) as robot:
        robot.ask(**DETECT)
        robot.show(raw(pixels))
        robot.hear()

    image = server.fake.calls[0].image  # type: ignore[attr-defined]
    assert np.array_equal(np.asarray(load_image(image)), pixels)


def test_the_newest_frame_wins(server: Live) -> None:
    fake = server.fake
    assert isinstance(fake, FakeModel)
    server.call(fake.hang)
    with client(server) as robot:
        robot.ask(**DETECT)
        robot.show(encoded())
        server.wait(fake.begun.wait())
        for _ in range(3):
            robot.show(encoded())
        assert robot.ask(stats=True)["stats"]["waiting"] == 1
        server.call(fake.release)
        while (message := robot.hear())["frame"] != 3:
            pass

    assert (message["counts"]["answered"], message["counts"]["dropped"]) == (2, 2)


def test_objects_get_ids_over_frames_when_asked_for(server: Live) -> None:
    with client(server) as robot:
        assert robot.ask(**DETECT, track=True)["track"] is True
        ids = []
        for _ in range(3):
            robot.show(encoded())
            ids.append(robot.hear()["result"]["objects"][0]["track_id"])
    assert ids == [None, 1, 1]


def test_a_server_without_the_tracker_says_so(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackers", None)
    with client(server) as robot:
        robot.say(**DETECT, track=True)
        assert robot.code() == (None, "not_installed")


def test_task_and_deadline_can_be_changed_at_any_time(server: Live) -> None:
    with client(server) as robot:
        robot.ask(**DETECT, settings={"max_objects": 2})
        assert robot.ask(deadline_ms=50)["deadline_ms"] == 50
        assert robot.ask(object="key")["settings"] == {"max_objects": 2}
        assert robot.ask(task="query", question="why?") == {
            "type": "task", "task": "query", "question": "why?", "deadline_ms": 50, "track": False
        }  # fmt: skip
        robot.ask(deadline_ms=None)
        robot.show(encoded())

        assert robot.hear()["result"]["answer"] == "two of them"


def test_errors_are_messages_and_the_connection_stays(server: Live) -> None:
    with client(server) as robot:
        robot.show(encoded())
        assert robot.code() == (0, "no_task")
        robot.say(object="mug")
        assert robot.code() == (None, "no_task")
        robot.connection.send("no JSON")
        assert robot.code() == (None, "invalid_json")
        robot.connection.send("[1]")
        assert robot.code() == (None, "invalid_json")
        robot.connection.send('{"task": "' + "x" * 70_000 + '"}')
        assert robot.code() == (None, "too_long")
        robot.say(task="detekt")
        assert robot.code() == (None, "invalid_input")
        robot.say(task="detect", object=" ")
        assert robot.code() == (None, "invalid_prompt")
        robot.ask(**DETECT)
        robot.say(deadline_ms=-1)
        assert robot.code() == (None, "invalid_settings")
        robot.show(b"")
        assert robot.code() == (1, "invalid_image")
        robot.show(raw(np.zeros((2, 2, 3), np.uint8))[:-1])
        assert robot.code() == (2, "invalid_frame")
        robot.show(b"RGB8")
        assert robot.code() == (3, "invalid_frame")
        robot.show(encoded())
        assert robot.hear()["frame"] == 4


def test_a_failed_frame_is_reported_with_its_number(server: Live) -> None:
    fake = server.fake
    assert isinstance(fake, FakeModel)
    with client(server) as robot:
        robot.ask(**DETECT)
        fake.error = ImageDecodeError("no image at all")
        robot.show(b"no image at all")
        assert robot.code() == (0, "invalid_image")
        fake.error = None
        robot.show(encoded())
        assert robot.hear()["frame"] == 1


def test_the_limits_of_the_server_hold() -> None:
    with serving(max_prompt_characters=5, max_objects=3) as server, client(server) as robot:
        robot.say(task="detect", object="banana")
        assert robot.code() == (None, "prompt_too_long")
        robot.say(task="detect", object="mug", settings={"max_objects": 4})
        assert robot.code() == (None, "over_limit")


def test_frames_count_as_requests_of_the_minute() -> None:
    with serving(requests_per_minute=3, clock=lambda: 0.0) as server, client(server) as robot:
        robot.ask(**DETECT)
        robot.show(encoded())
        assert robot.hear()["type"] == "result"
        robot.show(encoded())
        assert robot.code() == (1, "rate_limit_exceeded")


def test_texts_count_as_requests_of_the_minute() -> None:
    with serving(requests_per_minute=3, clock=lambda: 0.0) as server, client(server) as robot:
        robot.ask(**DETECT)
        assert robot.ask(stats=True)["type"] == "stats"
        robot.say(stats=True)
        assert robot.code() == (None, "rate_limit_exceeded")


@pytest.mark.parametrize("kept", [True, False])
def test_a_socket_is_closed_when_its_key_is_revoked(kept: bool) -> None:
    keys = "the-key-of-one", "the-key-of-another"
    headers = {"Authorization": f"Bearer {keys[0]}"}
    with serving(api_keys=keys) as server, client(server, additional_headers=headers) as robot:
        robot.ask(**DETECT)
        left = ServerConfig(api_keys=("a-new-key", keys[0] if kept else keys[1]))
        server.call(lambda: server.ingress.config.take_keys(left))
        if kept:
            robot.show(encoded())
            assert robot.hear()["type"] == "result"
        else:
            with pytest.raises(ConnectionClosed) as closed:
                robot.connection.recv(timeout=GUARD)
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, "API key" in closed.value.rcvd.reason) == (REVOKED, True)


def test_unfinished_messages_of_a_key_close_no_socket_of_another_key() -> None:
    keys = "the-key-of-one", "the-key-of-another"
    handshake = UPGRADE.replace(b"/socket", b"/v1/realtime").replace(
        b"\r\n\r\n", b"\r\nAuthorization: Bearer %b\r\n\r\n" % keys[0].encode()
    )

    def holds(server: Live, least: int) -> bool:
        return server.call(lambda: server.ingress.limiter.bytes.used) >= least

    unfinished = b"\x82\xff" + (200_000).to_bytes(8, "big") + bytes(4) + bytes(40_000)
    with serving(api_keys=keys, max_open_bytes=400_000) as server, ExitStack() as sockets:
        for number in range(1, 5):
            greedy = sockets.enter_context(server.connect())
            greedy.sendall(handshake)
            assert b" 101 " in greedy.recv(65536)
            greedy.sendall(unfinished)
            wait_until(partial(holds, server, 2 * 40_000 * number))
        with client(server, additional_headers={"Authorization": f"Bearer {keys[1]}"}) as robot:
            robot.ask(**DETECT)
            robot.show(encoded())
            assert robot.hear()["type"] == "result"


def test_a_socket_without_frames_is_closed() -> None:
    now = 0.0
    with serving(frame_timeout_s=5, clock=lambda: now) as server, client(server) as robot:
        robot.ask(**DETECT)
        now = 4.0
        robot.show(encoded())
        assert robot.hear()["frame"] == 0
        now = 8.0
        assert robot.ask(stats=True)["type"] == "stats"
        now = 9.5
        with pytest.raises(ConnectionClosed, match="no frame came for 5 s") as closed:
            robot.hear()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == IDLE


def test_sockets_of_one_caller_leave_room_for_others_and_for_requests() -> None:
    keys = {"api_keys": ("greedy", "other"), "max_sockets": 8, "max_open": 1}
    with serving(**keys) as server, ExitStack() as opened:
        for _ in range(7):
            opened.enter_context(client(server, subprotocols=["photonlite-key.greedy"]))
        with pytest.raises(InvalidStatus) as full, client(server, subprotocols=["photonlite-key.greedy"]):
            pass
        assert full.value.response.status_code == 429
        assert int(full.value.response.headers["Retry-After"]) >= 1
        with client(server, subprotocols=["photonlite-key.other"]) as robot:
            robot.ask(**DETECT)
            robot.show(encoded())
            assert robot.hear()["type"] == "result"


def test_frames_count_against_the_memory_of_open_requests() -> None:
    with serving(max_open_bytes=30_000) as server, client(server) as robot:
        robot.ask(**DETECT)
        robot.show(raw(np.zeros((64, 64, 3), np.uint8)))
        assert robot.code() == (0, "request_too_large")
        robot.show(encoded())
        assert robot.hear()["frame"] == 1


def test_pieces_of_a_frame_count_before_it_is_complete() -> None:
    released = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield b"x" * 20_000
        assert released.wait(GUARD)
        yield b"x" * 20_000

    with serving(max_open_bytes=60_000) as server, ThreadPoolExecutor(1) as executor:
        with client(server) as robot:
            sending = executor.submit(robot.connection.send, pieces())
            try:
                wait_until(lambda: server.call(lambda: server.ingress.limiter.bytes.used) >= 40_000)
            finally:
                released.set()
            with pytest.raises(ConnectionClosed) as closed:
                robot.connection.recv(timeout=GUARD)
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, "max_open_bytes" in closed.value.rcvd.reason) == (1013, True)
            sending.exception(GUARD)
        wait_until(lambda: server.call(lambda: server.ingress.limiter.bytes.used) == 0)


def test_a_frame_that_waits_counts_as_well(server: Live) -> None:
    fake, waiting = server.fake, raw(np.zeros((40, 40, 3), np.uint8))
    assert isinstance(fake, FakeModel)
    server.call(fake.hang)
    with client(server) as robot:
        robot.ask(**DETECT)
        robot.show(encoded())
        server.wait(fake.begun.wait())
        before = server.call(lambda: server.ingress.limiter.bytes.used)
        robot.show(waiting)
        robot.ask(stats=True)
        after = server.call(lambda: server.ingress.limiter.bytes.used)

    assert after - before > len(waiting) - 200


def test_an_unknown_key_is_refused_and_a_page_gives_its_key_as_a_protocol() -> None:
    with serving(api_keys=("secret",)) as server:
        with pytest.raises(InvalidStatus) as refused, client(server):
            pass
        assert refused.value.response.status_code == 401
        with client(server, subprotocols=["photonlite-key.secret"]) as page:
            assert page.connection.subprotocol == "photonlite-key.secret"
        with client(server, subprotocols=["photonlite", "photonlite-key.secret"]) as page:
            assert page.connection.subprotocol == "photonlite", "a key is not sent back where something else will do"
            page.ask(**DETECT)
            page.show(encoded())
            assert page.hear()["type"] == "result"


def test_a_subprotocol_that_the_server_does_not_speak_is_not_answered(server: Live) -> None:
    with client(server, subprotocols=["mqtt"]) as robot:
        assert robot.connection.subprotocol is None


def test_the_shipped_checkpoint_follows_a_question_that_changes() -> None:
    desk = (ROOT / "assets" / "desk.png").read_bytes()
    with live_model() as server, client(server) as robot:
        robot.ask(task="detect", object="banana")
        robot.show(desk)
        boxes = robot.hear()
        robot.ask(task="point", object="banana")
        robot.show(desk)
        points = robot.hear()

    assert (boxes["frame"], boxes["task"], points["frame"], points["task"]) == (0, "detect", 1, "point")
    assert len(boxes["result"]["objects"]) == len(points["result"]["points"]) == 2
    assert points["counts"]["answered"] == 2
    for box in boxes["result"]["objects"]:
        point = next(point for point in points["result"]["points"] if box["x_min"] < point["x"] < box["x_max"])
        assert box["y_min"] < point["y"] < box["y_max"]


def test_a_client_that_leaves_cancels_its_frame_and_gives_its_place_back(server: Live) -> None:
    fake = server.fake
    assert isinstance(fake, FakeModel)
    server.call(fake.hang)
    with client(server) as robot:
        robot.ask(**DETECT)
        robot.show(encoded())
        server.wait(fake.begun.wait())
    server.wait(server.ingress.limiter.settled())

    assert fake.cancelled == 1
    assert server.ingress.limiter.bytes.used == 0


def test_a_draining_server_closes_its_sockets_with_1001(server: Live) -> None:
    with client(server) as robot:
        robot.ask(**DETECT)
        server.call(lambda: setattr(server.ingress, "draining", True))
        with pytest.raises(ConnectionClosed) as closed:
            robot.hear()

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001


def test_of_unsent_results_the_newest_is_kept() -> None:
    async def main() -> None:
        box = Outbox()
        for number in range(3):
            box.put({"type": "result", "frame": number})
        box.put({"type": "task"})
        assert [await box.take(), await box.take()] == [{"type": "task"}, {"type": "result", "frame": 2}]
        assert box.unsent == 2

    asyncio.run(main())


def test_a_client_that_does_not_read_its_errors_costs_no_memory() -> None:
    async def main() -> None:
        box = Outbox()
        for _ in range(1000):
            box.put({"type": "error"})
        assert box.unsent == 1000 - 64

    asyncio.run(main())
