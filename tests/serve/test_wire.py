import asyncio

from bench.serve.wire import BROKEN, Client, _Connection
from tests.serve.servers import BUSY, OK, request, serving


def ask(answer, *bodies):
    """Ask one after the other; gives the replies and the connections that were opened."""

    async def use(port):
        client = Client("127.0.0.1", port)
        replies = [await client.ask(request(body)) for body in bodies]
        client.close()
        return replies, client.opened

    return serving(answer, use)


def test_a_reply_has_its_status_and_body_and_the_connection_is_kept():
    async def answer(body, writer):
        writer.write(BUSY if body == b"refuse" else OK)

    replies, opened = ask(answer, b"", b"refuse", b"")
    assert [(reply.status, reply.body) for reply in replies] == [(200, b"hi"), (429, b""), (200, b"hi")]
    assert all(reply.began <= reply.first <= reply.ended for reply in replies)
    assert opened == 1


def test_a_reply_in_pieces_is_put_together():
    async def answer(body, writer):
        for start in range(0, len(OK), 3):
            writer.write(OK[start : start + 3])
            await writer.drain()
            await asyncio.sleep(0)

    replies, _ = ask(answer, b"")
    assert (replies[0].status, replies[0].body) == (200, b"hi")


def test_the_first_byte_of_a_stream_is_that_of_its_body(monkeypatch):
    times = iter(range(1, 10))
    monkeypatch.setattr("bench.serve.wire.time.perf_counter", lambda: next(times))

    async def main():
        connection = _Connection()
        connection.connection_made(asyncio.WriteTransport())
        waiting = connection.ask(request())
        connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.data_received(b"9\r\ndata: 1\n\n\r\n")
        connection.data_received(b"9\r\ndata: 0\n\n\r\n")
        assert not waiting.done()
        connection.data_received(b"0\r\n\r\n")
        return await waiting

    monkeypatch.setattr(asyncio.WriteTransport, "write", lambda *_: None)
    reply = asyncio.run(main())
    assert (reply.status, reply.began, reply.first, reply.ended) == (200, 1, 2, 3)
    assert reply.body.count(b"data: ") == 2


def test_requests_at_a_time_have_connections_of_their_own():
    arrived = []
    everybody = asyncio.Event()

    async def answer(body, writer):
        arrived.append(body)
        if len(arrived) == 3:
            everybody.set()
        await everybody.wait()
        writer.write(OK)

    async def use(port):
        client = Client("127.0.0.1", port)
        replies = await asyncio.gather(*(client.ask(request(b"%d" % number)) for number in range(3)))
        client.close()
        return [reply.status for reply in replies], client.opened

    assert serving(answer, use) == ([200, 200, 200], 3)
    assert sorted(arrived) == [b"0", b"1", b"2"]


def test_a_connection_that_ends_is_a_broken_reply_and_the_next_request_opens_another():
    async def answer(body, writer):
        if body == b"die":
            writer.write(OK[:20])
            writer.close()
        else:
            writer.write(OK)

    replies, opened = ask(answer, b"", b"die", b"")
    assert [reply.status for reply in replies] == [200, BROKEN, 200]
    assert opened == 2


def test_a_server_that_is_not_there_is_a_broken_reply():
    async def use(port):
        return port

    async def answer(body, writer):
        raise AssertionError("nobody asks")

    port = serving(answer, use)

    async def main():
        return await Client("127.0.0.1", port).ask(request())

    assert asyncio.run(main()).status == BROKEN
