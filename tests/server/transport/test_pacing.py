"""How much is parsed in a round of the event loop, for whom and when; the clock is virtual."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.server import ServerState

from photonlite.server.config import ServerConfig
from photonlite.server.transport import pacing
from photonlite.server.transport.connections import HttpConnection, LimitedConfig
from photonlite.server.transport.pacing import BURST_S, RATE, ROUND, STEP_BYTES, PacedConnection, Pacer
from tests.server.virtual import run_virtual

CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"1\r\na\r\n"
STEP = 128


class Transport(asyncio.Transport):
    """Keeps what is written, and whether it reads."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 1), "sockname": ("192.0.2.2", 2)})
        self.written = b""
        self.reads = True
        self.closed = self.aborted = False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed


class Client(PacedConnection):
    """A connection with so many units to parse; `served` notes the steps of all clients in order."""

    def __init__(self, pacer: Pacer, name: str, payer: str, units: int, served: list[str]) -> None:
        self.config = SimpleNamespace(pacer=pacer)
        self.transport: Any = Transport()
        self.name, self.payer, self.left, self.served = name, payer, units, served
        pacer.join(self)

    may_read = may_parse = True

    def take(self, data: bytes) -> None:
        self.served.append(self.name)
        used = min(STEP, self.left)
        self.left -= used
        self.spend(used)

    def go_on(self) -> None:
        if self.left:
            self.config.pacer.join(self)


async def one_round() -> None:
    """Let everything that is ready run once."""
    await asyncio.sleep(0)


def test_a_round_of_the_loop_parses_a_bounded_amount_however_many_connections_wait() -> None:
    async def main() -> None:
        pacer, served = Pacer(), list[str]()
        for number in range(100):
            Client(pacer, "", f"address {number}", 10 * STEP, served)
        await one_round()
        for rounds in range(1, 5):
            await one_round()
            assert len(served) == rounds * ROUND // STEP

    run_virtual(main())


def test_connections_of_one_payer_share_its_allowance() -> None:
    async def main() -> None:
        pacer, served = Pacer(), list[str]()
        clients = [Client(pacer, "", "address", 10 * RATE, served) for _ in range(16)]

        def parsed() -> int:
            return 16 * 10 * RATE - sum(client.left for client in clients)

        for _ in range(2 * RATE // ROUND):
            await one_round()
        at_once = parsed()
        other = Client(pacer, "other", "another address", 1, served)
        for _ in range(2):
            await one_round()
        assert not other.left, "what others owe delays nobody"
        await asyncio.sleep(10)

        assert at_once <= BURST_S * RATE + STEP
        assert 10 * RATE < parsed() <= (10 + BURST_S) * RATE + STEP

    run_virtual(main())


def test_the_connection_that_has_used_least_is_next() -> None:
    async def main() -> None:
        pacer, served = Pacer(), list[str]()
        for name in "ab":
            Client(pacer, name, "address", 100 * RATE, served)
        await asyncio.sleep(2)
        served.clear()
        Client(pacer, "probe", "address", 1, served)
        await asyncio.sleep(1)

        assert "probe" in served[:2]
        assert abs(served.count("a") - served.count("b")) <= 1

    run_virtual(main())


def test_a_step_costs_the_pacer_as_much_however_many_connections_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = 0
    push = pacing.heapq.heappush

    def counted(heap: Any, entry: Any) -> None:
        nonlocal pushed
        pushed += 1
        push(heap, entry)

    async def main() -> None:
        pacer, served = Pacer(), list[str]()
        for _ in range(500):
            Client(pacer, "", "address", 100 * STEP, served)
        monkeypatch.setattr(pacing.heapq, "heappush", counted)
        await asyncio.sleep(2)

        assert len(served) > RATE // STEP
        assert pushed <= 4 * len(served)

    run_virtual(main())


def test_work_that_does_not_wait_uses_the_allowance_and_makes_no_debts() -> None:
    async def main() -> None:
        pacer, served = Pacer(), list[str]()
        pacer.charge("address", 100 * RATE, paced=False)
        pacer.charge("debtor", 10 * RATE)
        Client(pacer, "probe", "address", 1, served)
        Client(pacer, "other", "debtor", 1, served)
        await asyncio.sleep(0.01)
        assert served == ["probe"]
        await asyncio.sleep(10)
        assert served == ["probe", "other"]

    run_virtual(main())


def test_a_connection_whose_parser_fails_is_dropped_and_the_others_go_on() -> None:
    class Broken(Client):
        def take(self, data: bytes) -> None:
            raise AssertionError("a parser's fault")

    async def main() -> None:
        failures = list[Any]()
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context["exception"]))
        pacer, served = Pacer(), list[str]()
        broken = Broken(pacer, "broken", "one", 1, served)
        Client(pacer, "good", "two", 1, served)
        for _ in range(3):
            await one_round()

        assert broken.transport.aborted
        assert served == ["good"]
        assert [str(one) for one in failures] == ["a parser's fault"]

    run_virtual(main())


def test_payers_that_owe_nothing_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "_PAYERS", 4)

    async def main() -> None:
        pacer = Pacer()
        pacer.charge("debtor", 2 * RATE)
        for number in range(64):
            pacer.charge(f"address {number}", 1)
            await asyncio.sleep(1 / RATE)

        assert len(pacer._payers) <= 4 + 1
        assert "debtor" in pacer._payers

    run_virtual(main())


def connected(app: Callable[..., Awaitable[None]]) -> tuple[HttpConnection, Transport]:
    config = LimitedConfig(app, ServerConfig(), refused=lambda status, code, id: None)
    connection, transport = HttpConnection(config, ServerState(), {}), Transport()
    connection.connection_made(transport)
    return connection, transport


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.Event().wait()


def test_chunks_are_parsed_in_slices_and_nothing_is_read_meanwhile() -> None:
    async def main() -> None:
        connection, _ = connected(nothing)
        connection.data_received(CHUNKED + 1000 * CHUNK)
        assert connection.cycle is None, "nothing is parsed while it is received"
        sizes = [0]
        while not sizes[1:] or connection.waits:
            await one_round()
            sizes.append(0 if connection.cycle is None else len(connection.cycle.body))

        assert sizes[-1] == 1000
        assert max(after - before for before, after in pairwise(sizes)) <= STEP_BYTES // len(CHUNK)

    run_virtual(main())


@pytest.mark.parametrize("size", [64 * 1024, 200_000])
def test_a_large_chunk_is_read_and_parsed_in_a_few_steps(size: int) -> None:
    async def main() -> None:
        connection, _ = connected(nothing)
        left, steps, first = CHUNKED + b"%x\r\n" % size + bytes(size) + b"\r\n", 0, connection.used
        while left:
            take = len(connection.get_buffer(len(left)))
            connection.data_received(left[:take])
            left = left[take:]
            while connection.waits:
                await one_round()
                steps += 1

        assert connection.cycle is not None
        assert len(connection.cycle.body) == size
        assert steps <= 5
        assert connection.used - first < 150

    run_virtual(main())


def test_after_an_answer_the_address_pays_until_the_next_key_is_known() -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def main() -> None:
        keys = ServerConfig(api_keys=("the-key-of-somebody",))
        connection, transport = (
            HttpConnection(LimitedConfig(answer, keys, refused=print), ServerState(), {}),
            Transport(),
        )
        connection.connection_made(transport)
        key = b"Authorization: Bearer the-key-of-somebody\r\n"
        connection.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + key + b"\r\n")
        for _ in range(4):
            await one_round()

        assert b" 204 " in transport.written
        assert connection.payer == "192.0.2.1"

    run_virtual(main())


def test_pipelined_requests_are_not_read_into_memory_while_one_is_answered() -> None:
    waiting = asyncio.Event()

    async def answer_late(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        disconnect = asyncio.ensure_future(receive())  # watches for the client's end, as routes do
        await waiting.wait()
        disconnect.cancel()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def main() -> None:
        connection, transport = connected(answer_late)
        read = 0
        for turn in range(200):
            waiting.set() if turn % 10 == 9 else waiting.clear()
            if transport.reads:
                connection.data_received(400 * b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                read += 1
            await one_round()

        assert transport.written.count(b" 204 ") > 10
        assert read <= 3

    run_virtual(main())


def test_a_read_takes_a_bounded_number_of_bytes() -> None:
    async def main() -> None:
        connection, _ = connected(nothing)
        buffer = connection.get_buffer(256 * 1024)
        assert len(buffer) == 16 * 1024
        buffer[: len(CHUNKED)] = CHUNKED
        connection.buffer_updated(len(CHUNKED))
        for _ in range(2):
            await one_round()
        assert connection.cycle is not None

    run_virtual(main())


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (CHUNKED + 100_000 * CHUNK, "chunks"),
        (CHUNKED + 10_000 * (b"1;" + b"x" * 200 + b"\r\na\r\n"), "chunk extensions"),
        (10_000 * b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "pipelined requests"),
        (5_000 * b"OPTIONS / HTTP/1.1\r\nHost: localhost\r\n\r\n", "methods that are answered cheaply"),
        (1_000 * (b"GET / HTTP/1.1\r\n" + b"Host: localhost\r\n" + 120 * b"a: b\r\n" + b"\r\n"), "headers"),
        (1_000 * (CHUNKED + b"0\r\n" + 1_000 * b"a: b\r\n" + b"\r\n"), "trailers"),
        (100 * (b"GET /" + 20_000 * b"%" + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"), "long targets"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_kind_of_message_uses_up_the_allowance_of_its_address(data: bytes, kind: str) -> None:
    """Without allowance a connection neither reads nor parses until time passes."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def main() -> None:
        connection, transport = connected(answer)
        sent = 0
        for _ in range(20_000):
            if transport.reads and sent < len(data):
                connection.data_received(data[sent : sent + 16 * 1024])
                sent += 16 * 1024
            await one_round()

        assert asyncio.get_running_loop().time() == 0
        assert sent < len(data), kind
        assert not transport.reads

    run_virtual(main())


def test_one_byte_at_a_time_uses_up_the_allowance_as_well() -> None:
    async def main() -> None:
        connection, transport = connected(nothing)
        read = 0
        connection.data_received(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        for _ in range(RATE // 2):
            await one_round()
            if transport.reads:
                connection.data_received(b"a")
                read += 1

        assert read < RATE // 3

    run_virtual(main())


def test_what_a_key_sends_is_charged_to_the_key_and_not_to_its_address() -> None:
    async def main() -> None:
        config = LimitedConfig(
            nothing, ServerConfig(api_keys=("the-key-of-somebody",)), refused=lambda status, code, id: None
        )
        payers = []
        for line in (b"", b"Authorization: Bearer the-key-of-somebody\r\n", b"Authorization: Bearer another\r\n"):
            connection = HttpConnection(config, ServerState(), {})
            connection.connection_made(Transport())
            connection.data_received(CHUNKED.replace(b"\r\n\r\n", b"\r\n" + line + b"\r\n"))
            for _ in range(2):
                await one_round()
            payers.append(connection.payer)

        assert payers[0] == payers[2] == "192.0.2.1"
        assert len(payers[1]) == 64

    run_virtual(main())
