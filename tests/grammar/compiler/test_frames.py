import os
import threading

import pytest

from photonlite.grammar.compiler.frames import decode, encode, read_frame, write_frame


def through_a_pipe(*frames: bytes) -> list[bytes]:
    reading, writing = os.pipe()
    writer = threading.Thread(target=lambda: ([write_frame(writing, frame) for frame in frames], os.close(writing)))
    writer.start()
    found = []
    try:
        while True:
            found.append(read_frame(reading))
    except EOFError:
        return found
    finally:
        writer.join()
        os.close(reading)


def test_frames_come_as_they_went() -> None:
    frames = [b"", b"x", bytes(range(256)) * 20_000, b"end"]

    assert through_a_pipe(*frames) == frames


def test_messages_survive() -> None:
    message = {"a": [1, None, b"\x00"], "b": ("x", 2.5)}

    assert decode(encode(message)) == message


@pytest.mark.parametrize("kept", [0, 3, 8, 10])
def test_a_pipe_that_is_closed_early_is_noticed(kept: int) -> None:
    reading, writing = os.pipe()
    write_frame(writing, b"four")
    data = os.read(reading, 100)
    os.write(writing, data[:kept])
    os.close(writing)

    with pytest.raises(EOFError, match=f"after {kept if kept < 8 else kept - 8} of {8 if kept < 8 else 4} bytes"):
        read_frame(reading)
    os.close(reading)


def test_nobody_reading_is_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)

    with pytest.raises(BrokenPipeError):
        write_frame(writing, b"x")
    os.close(writing)
