"""A server that does what a test wants with each request, on a thread of the test's own event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
BUSY = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n"


def serving(answer: Answer, use: Callable[[int], Coroutine[Any, Any, T]]) -> T:
    """Serve at a free port while a coroutine uses it.

    Args:
        answer: Told the body of each request, and where to write.
        use: Given the port.
    """

    async def main() -> T:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
                    await answer(await reader.readexactly(length), writer)
                    await writer.drain()
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
            return await asyncio.wait_for(use(server.sockets[0].getsockname()[1]), 30)

    return asyncio.run(main())


def request(body: bytes = b"") -> bytes:
    return b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
