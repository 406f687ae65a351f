import resource
import socket

import pytest

from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from photonlite.server.run import DrainingServer, run
from photonlite.server.transport.listening import ListenError, allow_files, listen
from tests.server.fake import FakeModel


def test_port_0_takes_a_free_one_and_answers_nobody_yet() -> None:
    with listen(ServerConfig(port=0)) as listener:
        address = listener.getsockname()

        assert address[1] > 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)


def test_a_port_in_use_is_told_with_its_number() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(ListenError, match=f"port {port} is in use.*--port"):
            listen(ServerConfig(port=port))


@pytest.mark.parametrize(
    ("host", "complaint"), [("192.0.2.1", "not an address of this"), ("no-such-host.invalid", "is not known here")]
)
def test_a_wrong_host_is_told(host: str, complaint: str) -> None:
    with pytest.raises(ListenError, match=complaint):
        listen(ServerConfig(host=host, port=0, expose=True))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_ipv6_is_an_address_like_others() -> None:
    with listen(ServerConfig(host="::1", port=0)) as listener:
        assert listener.family is socket.AF_INET6


def test_the_limit_of_files_is_raised_where_it_must_and_may(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []
    allowed: list[int] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: made.append(limits))
    for soft, hard in ((256, 4096), (256, 512), (4096, 4096), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, limits=(soft, hard): limits)
        allowed.append(allow_files(1000))

    assert made == [(1256, 4096), (512, 512)]
    assert allowed == [1000, 256, 1000, 1000]


def test_a_server_takes_no_more_connections_than_files_may_be_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served: list[ServerConfig] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (300, 300))
    monkeypatch.setattr(DrainingServer, "run", lambda self, sockets: served.append(self.config.limits))
    for connections in (1000, 44):
        config = ServerConfig(port=0, max_connections=connections)
        with listen(config) as listener:
            run(create_app(FakeModel(), config), config, listener)

    assert [limits.max_connections for limits in served] == [44, 44]
    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "ulimit -Hn" in warning.getMessage()


def test_answers_do_not_wait_for_acknowledgements() -> None:
    # asyncio looks at the protocol of the listener before it sets TCP_NODELAY on what is accepted.
    with listen(ServerConfig(port=0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP
