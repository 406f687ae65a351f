"""The public Python client of Moondream's cloud, versions 0.x: the bytes that it sends, and how it reads answers."""

import base64
import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.server.fake import FakeModel
from tests.server.live import GUARD, Live, live, live_model

KEY = "a-key"
DESK = Path(__file__).resolve().parents[2] / "assets" / "desk.png"


@pytest.fixture(scope="module")
def shipped() -> Iterator[Live]:
    with live_model(api_keys=(KEY,)) as server:
        yield server


def image_url() -> str:
    buffer = io.BytesIO()
    Image.open(DESK).convert("RGB").save(buffer, format="JPEG", quality=95)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def sent(port: int, skill: str, payload: dict[str, Any], agent: str = "Python-urllib/3.11", key: str = KEY) -> bytes:
    """A request as urllib writes it: its spelling and order of headers, and the default separators of json."""
    body = json.dumps(payload).encode("utf-8")
    lines = [
        f"POST /v1/{skill} HTTP/1.1",
        "Accept-Encoding: identity",
        f"Content-Length: {len(body)}",
        f"Host: 127.0.0.1:{port}",
        f"User-Agent: {agent}",
        f"X-moondream-auth: {key}",
        "Content-type: application/json",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def exchange(port: int, data: bytes) -> tuple[int, dict[str, str], bytes]:
    with socket.create_connection(("127.0.0.1", port), timeout=GUARD) as connection:
        connection.sendall(data)
        with connection.makefile("rb") as reader:
            received = reader.read()
    head, _, rest = received.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(status.split()[1]), headers, unchunked(rest) if "transfer-encoding" in headers else rest


def unchunked(data: bytes) -> bytes:
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        if size == b"0":
            assert data == b"\r\n"
            return body
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]


def ask(server: Live, skill: str, payload: dict[str, Any], **more: str) -> Any:
    status, headers, body = exchange(server.port, sent(server.port, skill, payload, **more))
    assert (status, headers["content-type"]) == (200, "application/json"), body
    return json.loads(body.decode("utf-8"))


def streamed(body: bytes) -> tuple[list[str], bool]:
    """Pieces of text, and whether the end was announced: what the client makes of the lines."""
    pieces = []
    for line in io.BytesIO(body):
        text = line.decode("utf-8")
        if text.startswith("data: "):
            data = json.loads(text[6:])
            if "chunk" in data:
                pieces.append(data["chunk"])
            if data.get("completed"):
                return pieces, True
    return pieces, False


def test_detect(shipped: Live) -> None:
    found = ask(shipped, "detect", {"image_url": image_url(), "object": "banana"})["objects"]
    assert len(found) == 2
    for box in found:
        assert 0 <= box["x_min"] < box["x_max"] <= 1
        assert 0 <= box["y_min"] < box["y_max"] <= 1


def test_point(shipped: Live) -> None:
    payload = {"image_url": image_url(), "object": "banana", "model": "nano"}
    points = ask(shipped, "point", payload, agent="moondream-python/0.2.0")["points"]
    assert len(points) == 2
    assert all(0 <= point[axis] <= 1 for point in points for axis in "xy")


def test_caption_and_query(shipped: Live) -> None:
    caption = ask(shipped, "caption", {"image_url": image_url(), "length": "short", "stream": False})
    assert caption["caption"]
    assert (caption["finish_reason"], caption["metrics"]["output_tokens"] > 0) == ("stop", True)
    payload = {"image_url": image_url(), "question": "How many bananas are there?", "stream": False}
    answer = ask(shipped, "query", payload)
    assert answer["answer"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("skill", "more", "key"),
    [("caption", {"length": "normal"}, "caption"), ("query", {"question": "How many bananas are there?"}, "answer")],
)
def test_streams_give_the_text_of_whole_answers(shipped: Live, skill: str, more: dict[str, Any], key: str) -> None:
    payload = {"image_url": image_url(), **more}
    whole = ask(shipped, skill, {**payload, "stream": False})[key]

    status, headers, body = exchange(shipped.port, sent(shipped.port, skill, {**payload, "stream": True}))

    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    pieces, completed = streamed(body)
    assert completed
    assert "".join(pieces) == whole
    first = json.dumps({"chunk": pieces[0], "completed": False}, ensure_ascii=False)
    assert body.startswith(f"data: {first}\n\n".encode())


def test_a_wrong_key_is_an_http_error(shipped: Live) -> None:
    payload = {"image_url": image_url(), "object": "banana"}
    status, _, body = exchange(shipped.port, sent(shipped.port, "detect", payload, key="another"))
    assert status == 401
    assert json.loads(body)["error"]["code"] == "invalid_api_key"


def test_segment_whole_and_streamed() -> None:
    with live() as server:
        payload = {"image_url": image_url(), "object": "banana", "stream": False}
        result = ask(server, "segment", payload)
        assert result["path"]
        assert set(result["bbox"]) == {"x_min", "y_min", "x_max", "y_max"}
        _, _, body = exchange(server.port, sent(server.port, "segment", {**payload, "stream": True}))
        messages = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: ")]
        assert [message["type"] for message in messages] == ["bbox", "path_delta", "final"]
        assert (messages[-1]["path"], messages[-1]["bbox"]) == (result["path"], result["bbox"])


def test_a_client_that_hangs_up_within_a_stream_cancels_it() -> None:
    fake = FakeModel()
    fake.hang()
    with live(fake) as server:
        data = sent(server.port, "caption", {"image_url": image_url(), "length": "normal", "stream": True})
        with socket.create_connection(("127.0.0.1", server.port), timeout=GUARD) as connection:
            connection.sendall(data)
            with connection.makefile("rb") as reader:
                while b"chunk" not in (line := reader.readline()):
                    assert line
        assert fake.given_up.wait(GUARD)
