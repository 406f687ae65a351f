import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from photonlite.server.link import VARIABLE, Link, notify_systemd
from tests.guard import GUARD


class Supervisor:
    """The other end of a link, and an environment that has it. `ended` is set when this process gets SIGTERM."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(GUARD)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            files = {"listener": os.dup(listener.fileno()), "link": theirs.detach()}
        self.environ = {VARIABLE: json.dumps({**files, "restarts": {"hung": 2}, "device": "cpu"}), "OTHER": "stays"}

    def link(self) -> Link:
        link = Link.from_environment(self.environ)
        assert link is not None
        return link


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    made = Supervisor()
    before = signal.signal(signal.SIGTERM, lambda *_: made.ended.set())
    try:
        yield made
        made.socket.close()
        assert made.ended.wait(GUARD)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_without_a_supervisor_there_is_no_link() -> None:
    assert Link.from_environment({"OTHER": "stays"}) is None


def test_a_link_is_taken_once_and_tells_of_beats(supervisor: Supervisor) -> None:
    link = supervisor.link()

    assert supervisor.environ == {"OTHER": "stays"}
    assert (link.restarts, link.device) == ({"hung": 2}, "cpu")
    assert link.listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    link.ready("cuda:1")
    link.beat()
    told = b""
    while len(told) < 14 and (piece := supervisor.socket.recv(100)):
        told += piece
    assert told == b"ready cuda:1\n\n"
    link.listener.close()


def test_the_end_of_the_supervisor_stops_the_process(supervisor: Supervisor) -> None:
    link = supervisor.link()
    assert not supervisor.ended.is_set()
    supervisor.socket.close()

    assert supervisor.ended.wait(GUARD)
    link.beat()  # nobody listens: nothing happens
    link.listener.close()


def test_a_supervisor_that_reads_nothing_does_not_block_beats(supervisor: Supervisor) -> None:
    link = supervisor.link()
    for _ in range(10_000):
        link.beat()
    link.listener.close()


@pytest.mark.skipif(sys.platform != "linux", reason="systemd's sockets")
@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_the_state(abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"photonlite-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(GUARD)
        systemd.bind("\0" + name if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name if abstract else name)
        notify_systemd("READY=1")
        assert systemd.recv(100) == b"READY=1"
    notify_systemd("WATCHDOG=1")  # systemd is gone: nothing happens
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify_systemd("WATCHDOG=1")
