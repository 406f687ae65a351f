import asyncio
import contextlib
import dataclasses
import io
from typing import Any

import pytest
from PIL import Image
from starlette.requests import Request

from photonlite.config import ImageLimits
from photonlite.errors import (
    ImageDecodeError,
    ImageFetchError,
    ImageTooLargeError,
    ImageUrlError,
    SchemaError,
    TruncatedError,
)
from photonlite.images.memory import needed_bytes
from photonlite.server.calls import Call
from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError, to_http
from photonlite.server.images import RequestImages
from photonlite.server.ingress import Ingress
from photonlite.server.limits.callers import Caller, WrongKeyDelay
from photonlite.server.limits.limiter import Hold
from photonlite.server.transport.middleware import ErrorResponses
from tests.server.asgi import post
from tests.server.fake import FakeModel
from tests.server.parts import DATA_URI, PNG, encoded, server
from tests.serving import run

ASK = {"image_url": DATA_URI}
JSON = {"content-type": "application/json"}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def request(**headers: str) -> Request:
    """Return a request of a client that stays connected."""

    async def receive() -> Any:
        await asyncio.get_running_loop().create_future()

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": raw, "client": ("10.0.0.1", 1)}
    return Request(scope, receive)


def ingress(fake: FakeModel | None = None, clock: Clock | None = None, **config: Any) -> Ingress:
    return Ingress(ServerConfig(**config), fake or FakeModel(), clock or Clock())


async def refusal(awaited: Any) -> HttpError:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - every error has its status
        await awaited
    return to_http(caught.value)


def test_any_key_is_accepted_in_either_header() -> None:
    app = server(api_keys=("first", "second"))
    for name, value in (
        ("x-moondream-auth", "second"),
        ("authorization", "Bearer first"),
        ("authorization", "bearer first"),
    ):
        assert run(post(app, "/v1/caption", ASK, {name: value})).status == 200
    for headers, code in (
        ({}, "missing_api_key"),
        ({"x-moondream-auth": "third"}, "invalid_api_key"),
        ({"x-moondream-auth": "sécond"}, "invalid_api_key"),
        ({"authorization": "Basic first"}, "missing_api_key"),
        ({"authorization": "Bearer "}, "missing_api_key"),
    ):
        answer = run(post(app, "/v1/caption", ASK, headers))
        assert (answer.status, answer.code) == (401, code)
        assert answer.headers["www-authenticate"] == "Bearer"


def test_tenants_have_cache_salts_of_their_own() -> None:
    fake = FakeModel()
    app = server(fake, api_keys=("first", "second"))
    for key in ("first", "second", "first"):
        run(post(app, "/v1/caption", ASK, {"x-moondream-auth": key}))
    first, second, again = (call.cache_salt for call in fake.calls)
    assert first == again != second
    assert first is not None
    assert "first" not in first
    run(post(server(fake), "/v1/caption", ASK))
    assert fake.calls[-1].cache_salt is None


def test_pages_of_other_sites_are_refused_unless_named() -> None:
    named = {"cors_origins": ("https://friend.example",)}
    cases: list[tuple[dict[str, Any], str, int]] = [
        ({}, "http://localhost", 200),
        ({}, "https://evil.example", 403),
        ({}, "null", 403),
        ({}, "http://[", 403),
        (named, "https://friend.example", 200),
        (named, "https://evil.example", 403),
        ({"cors_origins": ("*",)}, "https://any.example", 200),
    ]
    for config, origin, status in cases:
        assert run(post(server(**config), "/v1/caption", ASK, {"origin": origin})).status == status, (config, origin)


def test_requests_beyond_max_open_get_429_with_retry_after() -> None:
    async def main() -> None:
        door = ingress(max_open=1)
        async with await door.admit(request()):
            assert door.limiter.open == 1
            error = await refusal(door.admit(request()))
            assert (error.status, error.code) == (429, "queue_full")
            assert int(error.headers["Retry-After"]) >= 1
        assert door.limiter.open == 0
        async with await door.admit(request()):
            pass

    run(main())


def test_slow_uploads_do_not_count_as_open_requests() -> None:
    async def main() -> None:
        door = ingress(max_open=8, api_keys=("greedy", "other"))
        uploads = [await door.admit(request(x_moondream_auth="greedy")) for _ in range(7)]
        assert (await refusal(door.admit(request(x_moondream_auth="greedy")))).code == "queue_full"
        other = await door.admit(request(x_moondream_auth="other"))
        uploads[0].enter()
        other.enter()
        (await door.admit(request(x_moondream_auth="greedy"))).close()
        for permit in (*uploads, other):
            permit.close()
        assert door.limiter.open == 0
        assert door.limiter.uploads.used == door.limiter.requests.used == 0

    run(main())


def test_a_draining_server_admits_nothing_and_settles_when_the_last_one_is_answered() -> None:
    async def main() -> None:
        door = ingress()
        permit = await door.admit(request())
        door.draining = True
        error = await refusal(door.admit(request()))
        assert (error.status, error.code) == (503, "draining")
        waiting = asyncio.ensure_future(door.limiter.settled())
        await asyncio.sleep(0)
        assert not waiting.done()
        permit.close()
        permit.close()  # a second time changes nothing
        await waiting
        assert door.limiter.open == 0

    run(main())


def test_a_dead_engine_is_unavailable() -> None:
    fake = FakeModel()
    fake.alive = False
    answer = run(post(server(fake), "/v1/caption", ASK))
    assert (answer.status, answer.code) == (503, "engine_died")


def test_the_rate_is_limited_for_each_caller_and_says_when_to_come_back() -> None:
    async def main() -> None:
        clock = Clock()
        door = ingress(clock=clock, requests_per_minute=2, api_keys=("a", "b"))
        for _ in range(2):
            (await door.admit(request(x_moondream_auth="a"))).close()
        error = await refusal(door.admit(request(x_moondream_auth="a")))
        assert (error.status, error.code, error.headers) == (429, "rate_limit_exceeded", {"Retry-After": "30"})
        (await door.admit(request(x_moondream_auth="b"))).close()
        clock.now += 30
        (await door.admit(request(x_moondream_auth="a"))).close()

    run(main())


def test_the_memory_of_open_requests_is_limited() -> None:
    async def main() -> None:
        door = ingress(max_open_bytes=1000)
        async with await door.admit(request()) as one, await door.admit(request()) as other:
            one.charge(900)
            with pytest.raises(HttpError) as full:
                other.charge(200)
            assert (full.value.status, full.value.code) == (429, "memory_full")
            with pytest.raises(HttpError) as never:
                other.charge(2000)
            assert never.value.status == 413
            with Hold(one, 100):
                assert door.limiter.bytes.used == 1000
            assert door.limiter.bytes.used == 900
        assert door.limiter.bytes.used == 0

    run(main())


def test_an_image_counts_with_its_decoded_size() -> None:
    async def main() -> None:
        fake = FakeModel()
        fake.hang()
        data = encoded((1000, 1000))
        needed = needed_bytes(data)
        assert needed > 7 * 1000 * 1000
        door = ingress(fake, max_open_bytes=needed + 10)
        call = Call("caption", data, {})
        async with await door.admit(request()) as permit, await door.admit(request()) as second:
            first = asyncio.ensure_future(door.answer(call, permit, request()))
            await fake.begun.wait()
            assert door.limiter.bytes.used == needed
            assert (await refusal(door.answer(call, second, request()))).code == "memory_full"
            assert (await refusal(door.stream(call, second, request()))).code == "memory_full"
            fake.release()
            await first
            assert door.limiter.bytes.used == 0
            large = Call("caption", encoded((1001, 1000)), {})
            assert (await refusal(door.answer(large, second, request()))).status == 413

    run(main())


def test_the_deadline_of_the_server_bounds_that_of_the_client() -> None:
    async def main() -> None:
        fake, clock = FakeModel(), Clock()
        door = ingress(fake, clock, deadline_s=10)
        async with await door.admit(request()) as permit:
            for wanted in (None, 60.0, 3.0):
                await door.answer(Call("caption", PNG, {}, deadline_s=wanted), permit, request())
            clock.now += 4  # counted from when the request was admitted
            await door.answer(Call("caption", PNG, {}), permit, request())
        assert [call.deadline_s for call in fake.calls] == [10, 10, 3, 6]

    run(main())


def test_a_call_beyond_its_deadline_is_cancelled() -> None:
    async def main() -> None:
        fake, clock = FakeModel(), Clock()
        fake.hang()
        door = ingress(fake, clock, deadline_s=10)
        async with await door.admit(request()) as permit:
            answer = asyncio.ensure_future(door.answer(Call("caption", PNG, {}), permit, request()))
            await fake.begun.wait()
            answer.cancel()
            await asyncio.wait([answer])
            assert fake.cancelled == 1
            clock.now += 10
            assert (await refusal(door.answer(Call("caption", PNG, {}), permit, request()))).status == 504

    run(main())


def test_a_websockets_calls_count_their_deadline_from_the_call_and_are_cancelled_by_their_task() -> None:
    async def main() -> None:
        fake, clock = FakeModel(), Clock()
        door = ingress(fake, clock, deadline_s=10)
        async with await door.admit(request()) as permit:
            clock.now += 1000
            await door.answer(Call("caption", PNG, {}, realtime=True), permit, None)
            assert (fake.calls[0].deadline_s, fake.calls[0].realtime) == (10, True)
            fake.hang()
            fake.begun.clear()
            task = asyncio.ensure_future(door.answer(Call("caption", PNG, {}), permit, None))
            await fake.begun.wait()
            task.cancel()
            await asyncio.wait([task])
            assert fake.cancelled == 1

    run(main())


def test_images_are_taken_raw_or_as_data_uri_up_to_the_limit() -> None:
    door = ingress(max_body_bytes=len(PNG))
    assert door.image(PNG) == door.image(DATA_URI) == PNG
    with pytest.raises(HttpError) as error:
        door.image(PNG + b"0")
    assert (error.value.status, error.value.code) == (413, "image_too_large")


def test_a_url_is_fetched_only_where_its_host_is_named() -> None:
    async def main() -> None:
        door = ingress(url_hosts=("images.example",))
        async with await door.admit(request()) as permit:
            for url in ("https://other.example/a.png", "http://images.example/a.png"):
                error = await refusal(door.load_image(url, permit))
                assert (error.status, error.code) == (422, "remote_image_refused")

    run(main())


@pytest.mark.parametrize(
    ("raised", "status", "code", "flag"),
    [
        (ImageUrlError("private"), 422, "remote_image_refused", None),
        (ImageFetchError("gone"), 422, "image_fetch_failed", None),
        (ImageTooLargeError("large"), 413, "image_too_large", "--max-body-mb"),
    ],
)
def test_what_went_wrong_at_an_image_host_is_told(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, status: int, code: str, flag: str | None
) -> None:
    async def fetch(url: str, **options: Any) -> bytes:
        assert (options["hosts"], options["max_bytes"]) == (("images.example",), 77)
        assert options.get("redirects", 0) == 0
        raise raised

    async def main() -> None:
        monkeypatch.setattr("photonlite.server.ingress.fetch", fetch)
        door = ingress(url_hosts=("images.example",), max_body_bytes=77)
        async with await door.admit(request()) as permit:
            error = await refusal(door.load_image("https://images.example/a.png", permit))
            assert (error.status, error.code) == (status, code)
            assert flag is None or flag in error.message

    run(main())


URLS = [f"https://images.example/{number}.png" for number in range(3)]


def test_images_of_a_conversation_are_fetched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Semaphore(0)
    everyone = asyncio.Event()

    async def fetch(url: str, **options: Any) -> bytes:
        begun.release()
        await everyone.wait()
        return url.encode()

    async def main() -> None:
        monkeypatch.setattr("photonlite.server.ingress.fetch", fetch)
        door = ingress(url_hosts=("images.example",))
        async with await door.admit(request()) as permit:
            loading = asyncio.ensure_future(door.load_images(URLS, [0, 1, 0, 2], permit, request()))
            for _ in URLS:
                await begun.acquire()
            everyone.set()
            assert await loading == [url.encode() for url in URLS]

    run(main())


@pytest.mark.parametrize("end", ["deadline", "client"])
def test_fetching_ends_at_the_deadline_and_when_the_client_leaves(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    cancelled: list[str] = []
    clock, left = Clock(), asyncio.Event()

    async def fetch(url: str, **options: Any) -> bytes:
        if end == "client":
            left.set()
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append(url)
            raise

    async def receive() -> Any:
        await left.wait()
        return {"type": "http.disconnect"}

    async def main() -> None:
        monkeypatch.setattr("photonlite.server.ingress.fetch", fetch)
        door = ingress(clock=clock, url_hosts=("images.example",), deadline_s=60.0)
        async with await door.admit(request()) as permit:
            if end == "deadline":
                clock.now += 59.99
            asked = Request(request().scope, receive)
            error = await refusal(door.load_images(URLS, [0, 1, 2], permit, asked))
            assert error.status == (504 if end == "deadline" else 499)
            assert sorted(cancelled) == URLS

    run(main())


def test_an_image_that_cannot_be_loaded_is_named_by_its_place() -> None:
    async def main() -> None:
        door = ingress()
        async with await door.admit(request()) as permit:
            error = await refusal(door.load_images([DATA_URI, "data:x"], [0, 0, 1], permit, request()))
            assert error.status == 400
            assert error.message.startswith("image 3 of 3: image_url: ")

    run(main())


def test_every_place_of_an_image_counts_where_a_model_reads_several() -> None:
    fake = FakeModel()
    fake.reads_several = True
    several, one = ingress(fake, max_images=3), ingress(max_images=3)
    several.check_images(1, places=3)
    one.check_images(1, places=100)  # the same image again: the conversation becomes one question
    with pytest.raises(HttpError, match=r"100 images, over the limit of 3 .*--max-images"):
        several.check_images(1, places=100)
    with pytest.raises(HttpError, match=r"2 images, over the limit of 1: ask about each by itself$"):
        one.check_images(2, places=2)


def test_a_failed_handler_closes_a_kept_permit() -> None:
    async def fail(door: Ingress) -> None:
        async with await door.admit(request()) as permit:
            permit.keep()
            raise KeyError

    async def main() -> None:
        door = ingress()
        with pytest.raises(KeyError):
            await fail(door)
        assert door.limiter.open == 0

    run(main())


def test_every_limit_leaves_nothing_open_behind() -> None:
    async def main() -> None:
        app = server(max_body_bytes=300, max_prompt_characters=3)
        big = io.BytesIO()
        Image.effect_noise((64, 64), 90).save(big, "PNG")
        for body, headers in (
            (big.getvalue(), {"content-type": "image/png"}),
            (b"{", JSON),
            (b'{"length": 5}', JSON),
        ):
            assert (await post(app, "/v1/caption", body, headers)).status >= 400
        assert (app.state.ingress.limiter.open, app.state.ingress.limiter.bytes.used) == (0, 0)

    run(main())


def test_repeated_wrong_keys_are_slowed_on_every_route() -> None:
    app = server(api_keys=("first",))
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    for middleware in app.user_middleware:
        if middleware.cls is ErrorResponses:
            middleware.kwargs["wrong_keys"] = WrongKeyDelay(sleep=sleep)
    for path in ("/v1/caption", "/v1/detect", "/v1/chat/completions", "/v1/query", "/v1/point"):
        assert run(post(app, path, ASK, {"x-moondream-auth": "wrong"})).status == 401
    assert run(post(app, "/v1/caption", ASK, {"x-moondream-auth": "first"})).status == 200

    assert waited == [0.25, 0.5]


BODIES = [
    ("/v1/query", '{"question": "a", "question": "b"}'),
    ("/v1/detect", '{"object": "a", "settings": {"seed": 1, "seed": 2}}'),
    ("/v1/chat/completions", '{"messages": [{"role": "user", "role": "system", "content": "x"}]}'),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_duplicate_names_in_json_are_refused(path: str, body: str) -> None:
    answer = run(post(server(), path, body.encode(), {"content-type": "application/json"}))

    assert (answer.status, answer.code) == (400, "duplicate_name")


SEVERAL = Call("detect", encoded((800, 600)), {"object": ["mug", "key"], "tile": [1, 2]})


async def asked(entry: Ingress, call: Call) -> Any:
    async with await entry.admit(request()) as permit:
        permit.enter()
        return await entry.answer(call, permit, None)


def test_names_times_tiles_are_limited() -> None:
    async def main() -> None:
        fake = FakeModel()
        error = await refusal(asked(ingress(fake, max_parts=5), SEVERAL))
        assert (error.status, error.code, fake.calls) == (422, "over_limit", [])
        assert "names and tiles make 6 requests, over the limit of 5" in str(error)
        await asked(ingress(fake, max_parts=6), SEVERAL)
        assert len(fake.calls) == 1

    run(main())


class Undecoded(RequestImages):
    async def open(self, data: bytes, hold: Hold) -> bytes:
        raise AssertionError("the image of a request that is refused was decoded")


@pytest.mark.parametrize("tile", [[8, 8], "auto"])
def test_too_many_parts_are_refused_before_an_image_is_decoded_or_a_turn_taken(tile: Any) -> None:
    async def main() -> None:
        entry = Ingress(ServerConfig(), FakeModel(), Clock(), Undecoded())
        call = Call("detect", PNG, {"object": [f"n{index}" for index in range(64)], "tile": tile})
        assert (await refusal(asked(entry, call))).code == "over_limit"
        assert not entry._turns._absent  # it has never joined

    run(main())


def test_what_the_model_refuses_is_refused_before_an_image_is_decoded_or_a_turn_taken() -> None:
    async def main() -> None:
        fake = FakeModel()
        fake.refusal = SchemaError("no such keyword")
        entry = Ingress(ServerConfig(), fake, Clock(), Undecoded())
        assert (await refusal(asked(entry, Call("query", PNG, {"question": "?", "schema": {}})))).status == 400
        assert not entry._turns._absent

    run(main())


def test_what_was_refused_in_its_turn_is_no_measurement() -> None:
    async def main() -> None:
        clock, fake = Clock(), FakeModel()

        class Slow(RequestImages):
            async def open(self, data: bytes, hold: Hold) -> bytes:
                clock.now += 10
                return data

        entry = Ingress(ServerConfig(max_parts=4), fake, clock, Slow())
        many = Call("detect", encoded((800, 600)), {"object": "mug", "tile": "auto"})
        fake.error = ImageDecodeError("broken")
        costs = entry._turns._costs
        for call, code in ((many, "over_limit"), (Call("caption", PNG, {}), "invalid_image")):
            assert (await refusal(asked(entry, call))).code == code
        assert costs._known[None].count == 0
        fake.error = TruncatedError("over max_tokens")  # all the work was done
        await refusal(asked(entry, Call("caption", PNG, {}, strict=True)))
        assert costs._known[None].count == 1

    run(main())


def test_parts_without_a_place_are_not_counted_against_the_rate() -> None:
    async def main() -> None:
        fake = FakeModel()
        fake.hang()
        entry = ingress(fake, max_open=8, requests_per_minute=14)
        one = asyncio.ensure_future(asked(entry, SEVERAL))
        await fake.begun.wait()
        assert (await refusal(asked(entry, SEVERAL))).code == "queue_full"
        fake.release()
        await one
        await asked(entry, SEVERAL)  # 6, 1 and 6

    run(main())


def test_what_was_admitted_is_answered_though_others_fill_the_server() -> None:
    async def main() -> None:
        entry, image, permits = ingress(max_open=32), encoded((8, 8)), []
        for caller in (Caller("a"), Caller("b")):
            with contextlib.suppress(HttpError):
                while True:
                    permits.append(entry.limiter.admit(caller, "x", entry.clock(), socket=False))
        for permit in permits:
            permit.enter()
        for permit in permits:
            await entry.answer(Call("detect", image, {"object": "mug"}), permit, None)

    run(main())


def test_more_parts_than_places_are_refused_for_good() -> None:
    async def main() -> None:
        error = await refusal(asked(ingress(max_open=4), SEVERAL))
        assert (error.status, "over the limit of 4" in str(error)) == (422, True)

    run(main())


def test_tiles_of_an_image_of_unknown_size_count_as_nine() -> None:
    async def main() -> None:
        fake = FakeModel()
        fake.image_limits = ImageLimits(max_pixels=100)
        call = dataclasses.replace(SEVERAL, arguments={"object": ["mug", "key"], "tile": "auto"})
        assert "make 20 requests" in str(await refusal(asked(ingress(fake, max_parts=19), call)))

    run(main())


@pytest.mark.parametrize(("tile", "parts"), [("auto", 10), (400, 14), (None, 2)])
def test_tiles_are_counted_by_the_size_of_the_image(tile: Any, parts: int) -> None:
    call = dataclasses.replace(SEVERAL, arguments={"object": ["mug", "key"], "tile": tile})

    async def main() -> None:
        error = await refusal(asked(ingress(max_parts=parts - 1), call))
        assert f"make {parts} requests" in str(error)
        await asked(ingress(max_parts=parts), call)

    run(main())


def test_each_name_and_tile_counts_against_the_rate() -> None:
    async def main() -> None:
        entry = ingress(clock=(clock := Clock()), requests_per_minute=10)
        await asked(entry, SEVERAL)
        error = await refusal(asked(entry, SEVERAL))
        assert (error.status, error.code) == (429, "rate_limit_exceeded")
        clock.now += 60.0
        await asked(entry, SEVERAL)
        clock.now += 60.0
        too_many = await refusal(asked(ingress(requests_per_minute=5), SEVERAL))
        assert too_many.status == 422

    run(main())


def test_each_name_and_tile_takes_a_place_among_open_requests() -> None:
    async def main() -> None:
        fake = FakeModel()
        fake.hang()
        entry = ingress(fake, max_open=8)
        one = asyncio.ensure_future(asked(entry, SEVERAL))
        await fake.begun.wait()
        assert entry.limiter.requests.used == 6
        error = await refusal(asked(entry, SEVERAL))
        assert (error.status, error.code) == (429, "queue_full")
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        assert entry.limiter.requests.used == 0

    run(main())
