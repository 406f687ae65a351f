"""Greedy clients against a server: what each kind costs a probe and the client of another key.

Each kind is one client in a process of its own. A probe asks for `/health` every 50 ms, and another key asks about a
small image as soon as it has its answer: alone, then beside the greedy client, in one run. The aims are 0.3 s for
the 99th percentile of `/health`, and twice the latency of the other key.
"""

import base64
import collections
import contextlib
import http.client
import io
import json
import multiprocessing
import re
import select
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from PIL import Image

HOST: Final = "127.0.0.1"
GREEDY, OTHER, ADMIN = "greedy-" + "0" * 16, "other-" + "0" * 16, "admin-" + "0" * 16
KEY_FILE: Final = f"{GREEDY}\n{OTHER}\n{ADMIN} admin\n"
_PROBE_S: Final = 0.05
_PAUSE_S: Final = 0.05  # between two connections of a greedy client
_DETECT: Final = "/v1/detect?object=banana"
_TILES: Final = "/v1/detect?tile=8x8&" + "&".join(f"object=n{number}" for number in range(64))

Codes = collections.Counter[str]
Answer = tuple[int, float]


def ask(port: int, method: str, path: str, key: str = "", body: bytes | None = None, kind: str = "image/png") -> Answer:
    """Send a request; return the status, 0 for none, and the seconds that it took."""
    begun, status = time.perf_counter(), 0
    headers = {"Content-Type": kind} | ({"Authorization": f"Bearer {key}"} if key else {})
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        response.read()
        status = response.status
    return status, time.perf_counter() - begun


def pour(port: int, opening: bytes, payload: bytes, until: float) -> Codes:
    """Send a payload again and again on one connection, as fast as it is taken; return the statuses of answers."""
    codes = Codes()
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=5) as client:
            client.sendall(opening)
            if b"Upgrade" in opening:
                codes.update(_statuses(client.recv(65536)))
            client.setblocking(False)
            rest = memoryview(payload)
            while time.monotonic() < until:
                readable, writable, _ = select.select([client], [client], [], 0.1)
                if readable:
                    if not (data := client.recv(65536)):
                        break
                    codes.update(_statuses(data))
                if writable:
                    rest = rest[client.send(rest) :] or memoryview(payload)
        time.sleep(_PAUSE_S)
    return codes


def repeat(port: int, method: str, path: str, key: str, body: bytes, kind: str, until: float) -> Codes:
    """Send a request as soon as the one before has its answer."""
    codes = Codes()
    while time.monotonic() < until:
        codes[str(ask(port, method, path, key, body, kind)[0])] += 1
    return codes


def _statuses(data: bytes) -> Iterable[str]:
    return (found.decode() for found in re.findall(rb"HTTP/1\.1 (\d{3})", data))


def _head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", f"Host: {HOST}", *lines, "", "")).encode()


_BEARER: Final = f"Authorization: Bearer {GREEDY}"
_CHUNKED: Final = _head("POST", "/v1/detect", "Content-Type: image/png", "Transfer-Encoding: chunked")
_UPGRADE: Final = _head(
    "GET", "/v1/realtime", _BEARER, "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
    f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}",
)  # fmt: skip


def _frame(kind: int, data: bytes = b"") -> bytes:
    return bytes([kind, 0x80 | len(data), 0, 0, 0, 0]) + data


_POURED: Final[dict[str, tuple[bytes, bytes]]] = {
    "chunks": (_CHUNKED, b"1\r\na\r\n" * 40_000),
    "chunks of a key": (_CHUNKED.replace(b"Host", _BEARER.encode() + b"\r\nHost"), b"1\r\na\r\n" * 40_000),
    "chunk extensions": (_CHUNKED, (b"1;" + b"x" * 200 + b"\r\na\r\n") * 1000),
    "headers": (b"", _head("GET", "/nothing", *["a:b"] * 6000)),
    "trailers": (b"", _CHUNKED + b"0\r\n" + b"a:b\r\n" * 3000 + b"\r\n"),
    "pipelining": (b"", _head("GET", "/nothing") * 5000),
    "pipelining of a key": (b"", _head("GET", "/v1/models", _BEARER) * 5000),
    "WebSocket pings": (_UPGRADE, _frame(0x89, b"x") * 30_000),
    "WebSocket fragments": (_UPGRADE, _frame(0x02) + _frame(0x00) * 500_000),
    "WebSocket stats": (_UPGRADE, _frame(0x81, b'{"stats":true}') * 10_000),
}


def _thin_image(port: int, until: float) -> Codes:
    file = io.BytesIO()
    Image.new("L", (32_000_000, 1)).save(file, "PNG")
    return repeat(port, "POST", _DETECT, GREEDY, file.getvalue(), "image/png", until)


def _many_parts(port: int, until: float) -> Codes:
    file = io.BytesIO()
    Image.effect_noise((5000, 5000), 80).convert("RGB").save(file, "JPEG", quality=30, progressive=True)
    return repeat(port, "POST", _TILES, GREEDY, file.getvalue(), "image/jpeg", until)


def _adapter(port: int, until: float) -> Codes:
    """Load an adapter whose rank pattern takes exponential time for its tensor's name."""
    name, tensors = "base_model.model." + "a." * 1500 + "a", {}
    for number, half in enumerate("AB"):
        offsets = [4 * number, 4 * number + 4]
        tensors[f"{name}.lora_{half}.weight"] = {"dtype": "F32", "shape": [1, 1], "data_offsets": offsets}
    header = json.dumps(tensors).encode()
    settings = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "rank_pattern": {".*.*.*x": 1}}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
        Path(folder, "adapter_config.json").write_text(json.dumps(settings))
        body = json.dumps({"adapter": folder, "name": "slow"}).encode()
        return repeat(port, "POST", "/v1/adapters", ADMIN, body, "application/json", until)


_ASKED: Final[dict[str, Callable[[int, float], Codes]]] = {
    "thin image": _thin_image,
    "names x tiles": _many_parts,
    "adapter": _adapter,
}
KINDS: Final = (*_POURED, *_ASKED)


def _act(kind: str, port: int, seconds: float, codes: "multiprocessing.Queue[Codes]") -> None:
    until = time.monotonic() + seconds
    codes.put(pour(port, *_POURED[kind], until) if kind in _POURED else _ASKED[kind](port, until))


def _observe(port: int, image: bytes, seconds: float) -> tuple[list[Answer], list[Answer]]:
    """Return the answers to probes and to another key."""
    until = time.monotonic() + seconds
    probes: list[Answer] = []
    others: list[Answer] = []

    def probe() -> None:
        while time.monotonic() < until:
            probes.append(ask(port, "GET", "/health"))
            time.sleep(_PROBE_S)

    thread = threading.Thread(target=probe)
    thread.start()
    while time.monotonic() < until:
        others.append(ask(port, "POST", _DETECT, OTHER, image))
    thread.join()
    return probes, others


def _tail(answers: list[Answer]) -> tuple[float, float]:
    """Return median and 99th percentile in milliseconds."""
    times = sorted(1e3 * seconds for _, seconds in answers)
    return statistics.median(times), times[int(0.99 * len(times))]


def row(port: int, kind: str, seconds: float) -> tuple[str, bool]:
    """Measure a kind of greedy client; return a row of a table, and whether the aims were reached."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64), (200, 30, 30)).save(file, "PNG")
    alone = _observe(port, file.getvalue(), seconds)
    got: multiprocessing.Queue[Codes] = multiprocessing.Queue()
    greedy = multiprocessing.Process(target=_act, args=(kind, port, seconds + 1, got), daemon=True)
    greedy.start()
    try:
        beside = _observe(port, file.getvalue(), seconds)
        greedy.join(60)
        codes = got.get(timeout=1) if greedy.exitcode == 0 else Codes({"none": 1})
    finally:
        greedy.kill()
    (before, _), (after, _) = _tail(alone[1]), _tail(beside[1])
    cells = [f"{p50:.0f} / {p99:.0f}" for side in (0, 1) for p50, p99 in (_tail(alone[side]), _tail(beside[side]))]
    seen = Codes(str(status) for answers in beside for status, _ in answers)
    texts = [" ".join(f"{code}:{count}" for code, count in sorted(one.items())) for one in (seen, codes)]
    reached = _tail(beside[0])[1] < 300 and after <= 2 * before and set(seen) <= {"200", "503"}
    return f"| {' | '.join((kind, *cells, f'{after / before:.2f}', *texts))} |", reached


TABLE: Final = """\
| greedy client | /health p50 / p99 alone | beside | other key p50 / p99 alone | beside | ratio | others got | it got |
|---|---|---|---|---|---|---|---|"""
