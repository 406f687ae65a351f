from typing import Any

import pytest
from starlette.requests import HTTPConnection

from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError
from photonlite.server.limits.callers import Caller, chosen_protocol, identify, network_of


def connection(kind: str = "http", client: str | None = "10.0.0.1", **headers: str) -> HTTPConnection:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope: dict[str, Any] = {"type": kind, "headers": raw, "client": client and (client, 1)}
    return HTTPConnection(scope)


def test_a_page_sends_the_key_of_its_websocket_as_a_subprotocol() -> None:
    config = ServerConfig(api_keys=("secret",))
    protocols = {"sec_websocket_protocol": "photonlite, photonlite-key.secret"}
    assert identify(connection("websocket", **protocols), config).tenant is not None
    for refused in (
        connection("http", **protocols),
        connection("websocket", sec_websocket_protocol="photonlite-key.other"),
        connection("websocket", sec_websocket_protocol="photonlite"),
    ):
        with pytest.raises(HttpError) as error:
            identify(refused, config)
        assert error.value.status == 401


def test_a_caller_is_its_key_with_a_weight() -> None:
    config = ServerConfig(api_keys=("one", "two"), key_weights={"two": 2.5})
    first, second = (identify(connection(x_moondream_auth=key), config) for key in ("one", "two"))
    assert (first.weight, second.weight) == (1, 2.5)
    assert first.id == first.tenant != second.id
    assert "one" not in first.id


def test_a_caller_without_a_key_is_its_address() -> None:
    assert identify(connection(), ServerConfig()) == Caller("10.0.0.1")
    assert identify(connection(client=None), ServerConfig()) == Caller("")
    assert identify(connection(client="testclient"), ServerConfig()) == Caller("testclient")


def test_addresses_of_one_ipv6_network_are_one_caller() -> None:
    first, second, other = (network_of((f"2001:db8:0:{net}::{end}", 1)) for net, end in ((1, 1), (1, 2), (2, 1)))
    assert first == second != other
    assert network_of(("::ffff:10.0.0.1", 1)) != network_of(("::ffff:10.0.0.2", 1))


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ([], None),
        (["mqtt", "chat"], None),
        (["mqtt", "photonlite-key.k", "photonlite"], "photonlite"),
        (["mqtt", "photonlite-key.k"], "photonlite-key.k"),
        (["photonlite-2"], None),
    ],
)
def test_only_known_subprotocols_are_chosen(offered: list[str], chosen: str | None) -> None:
    assert chosen_protocol(offered) == chosen
