"""Messages over a socket, whole or cut off."""

import socket
import threading

import pytest

from photonlite.processes.messages import receive_message, send_message


def test_messages_arrive_whole_and_in_order() -> None:
    messages = [b"", b"x", bytes(range(256)) * 20_000, b"end"]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        writer = threading.Thread(target=lambda: [send_message(theirs, message) for message in messages])
        writer.start()
        assert [receive_message(ours) for _ in messages] == messages
        writer.join()


@pytest.mark.parametrize("kept", [0, 3, 8, 10])
def test_a_socket_that_is_closed_within_a_message_is_noticed(kept: int) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        send_message(theirs, b"four")
        data = ours.recv(100)
        theirs.sendall(data[:kept])
        theirs.close()

        size, read = (8, kept) if kept < 8 else (4, kept - 8)
        with pytest.raises(EOFError, match=f"after {read} of {size} bytes"):
            receive_message(ours)


def test_a_message_over_the_limit_is_refused_before_it_is_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall((2**60).to_bytes(8, "big"))
        with pytest.raises(EOFError, match="over the limit of 100"):
            receive_message(ours, 100)


def test_sending_to_a_closed_socket_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(BrokenPipeError):
        send_message(ours, b"x")
