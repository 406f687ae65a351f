import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from photonlite.errors import DeadlineError
from photonlite.server.calls import Call, ask_model
from photonlite.server.errors import CLIENT_CLOSED, HttpError
from photonlite.server.transport.streams import ClientWatch, WatchedStream
from tests.server.fake import FakeModel
from tests.serving import run


class Client:
    """Leaves when told."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.request = Request({"type": "http", "headers": []}, self._receive)

    async def _receive(self) -> Any:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def forever(ended: list[str]) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        ended.append("work")


def never() -> float:
    return 0.0


def test_work_ends_with_its_client() -> None:
    async def main() -> None:
        client, ended = Client(), list[str]()
        watch = ClientWatch(client.request, 1000.0, never)
        work = asyncio.ensure_future(watch.run(forever(ended)))
        await asyncio.sleep(0)
        client.left.set()
        with pytest.raises(HttpError) as error:
            await work
        assert (error.value.status, ended) == (CLIENT_CLOSED, ["work"])
        with pytest.raises(HttpError):  # and none begins after it
            await watch.run(forever(ended))
        assert ended == ["work"]
        await watch.close()

    run(main())


def test_work_ends_at_its_deadline() -> None:
    async def main() -> None:
        ended = list[str]()
        watch = ClientWatch(None, 0.0, never)
        with pytest.raises(DeadlineError):
            await watch.run(forever(ended))
        await watch.close()

    run(main())


def test_work_ends_with_its_waiting_task() -> None:
    async def main() -> None:
        ended = list[str]()
        watch = ClientWatch(Client().request, 1000.0, never)
        work = asyncio.ensure_future(watch.run(forever(ended)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait([work])
        assert (work.cancelled(), ended) == (True, ["work"])
        await watch.close()

    run(main())


def test_errors_of_work_are_raised() -> None:
    async def fail() -> None:
        raise KeyError("why")

    async def main() -> None:
        watch = ClientWatch(None, 1000.0, never)
        with pytest.raises(KeyError, match="why"):
            await watch.run(fail())

    run(main())


def test_a_stream_that_fails_at_once_is_closed() -> None:
    async def main() -> None:
        fake = FakeModel()
        result = await ask_model(fake, Call("caption", None, {}, stream=True))
        client = Client()
        client.left.set()
        watch = ClientWatch(client.request, 1000.0, never)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(HttpError):
            await WatchedStream(result, watch).begin()
        assert fake.cancelled == 1

    run(main())


def test_a_stream_without_a_piece_is_empty_and_has_its_outcome() -> None:
    async def main() -> None:
        fake = FakeModel()
        fake.pieces = ()
        pieces = WatchedStream(
            await ask_model(fake, Call("caption", None, {}, stream=True)), ClientWatch(None, 1000.0, never)
        )
        await pieces.begin()
        assert [piece async for piece in pieces] == []
        assert pieces.result.finish_reason == "stop"  # type: ignore[attr-defined]

    run(main())
