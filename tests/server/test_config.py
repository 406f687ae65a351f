import math
from typing import Any

import pytest

from photonlite.errors import SettingsError
from photonlite.server.config import ServerConfig, fingerprint


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert ServerConfig(host=host).is_local


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "robot.local", "localhost.example.com"])
def test_beyond_loopback_keys_or_expose_are_required(host: str) -> None:
    with pytest.raises(SettingsError, match=r"--api-key-file.*--expose"):
        ServerConfig(host=host)

    assert not ServerConfig(host=host, api_keys=("secret",)).is_local
    assert not ServerConfig(host=host, expose=True).is_local


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", ""),
        ("host", "http://here"),
        ("port", -1),
        ("port", 65536),
        ("port", True),
        ("port", "2020"),
        ("max_body_bytes", 0),
        ("max_open", 1.5),
        ("max_connections", 0),
        ("requests_per_minute", 0),
        ("deadline_s", 0),
        ("header_timeout_s", math.inf),
        ("send_timeout_s", math.nan),
        ("body_timeout_s", "30"),
        ("drain_s", -1),
        ("url_hosts", ("https://example.com",)),
        ("url_hosts", ("example.com:443",)),
        ("url_hosts", ("",)),
        ("url_hosts", "example.com"),
        ("allow_hosts", ("http://robot",)),
        ("allow_hosts", ("robot:2020",)),
        ("allow_hosts", "robot"),
        ("cors_origins", ("example.com",)),
        ("cors_origins", ("https://example.com/page",)),
    ],
)
def test_invalid_settings_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"'{name}'"):
        ServerConfig(**{name: value})


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "line\n"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_quoted(key: str) -> None:
    with pytest.raises(SettingsError) as caught:
        ServerConfig(api_keys=("fine-key", key))

    assert "fine-key" not in str(caught.value)
    assert not key or key not in str(caught.value)


def test_any_of_the_keys_is_accepted_and_nothing_else() -> None:
    config = ServerConfig(api_keys=("first-key", "second-key"))

    assert config.accepts("first-key")
    assert config.accepts("second-key")
    assert not any(map(config.accepts, [None, "", "first-ke", "first-key ", "schlüssel", "\ud800"]))


def test_without_keys_everybody_is_accepted() -> None:
    assert ServerConfig().accepts(None)
    assert ServerConfig().accepts("whatever")


def test_keys_are_not_printed() -> None:
    text = repr(ServerConfig(api_keys=("very-secret",)))

    assert "very-secret" not in text
    assert fingerprint("very-secret") in text


def test_a_fingerprint_tells_keys_apart() -> None:
    assert fingerprint("a") == fingerprint("a")
    assert fingerprint("a") != fingerprint("b")
