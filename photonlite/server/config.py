"""Settings of the server: address, access, limits and timeouts."""

import hashlib
import hmac
import ipaddress
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from photonlite.errors import InputError, SettingsError
from photonlite.settings import MIB, check_settings, setting, written_by_others

_VISIBLE: Final = re.compile(r"[!-~]+")
_HOST: Final = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]*[a-z0-9])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9])?)*", re.I)
_NAME: Final = re.compile(rf"{_HOST.pattern}|[0-9a-f:.]+", re.I)
_ORIGIN: Final = re.compile(r"\*|https?://[^/\s]+", re.I)
_WEIGHT: Final = re.compile(r"weight=(\d+(?:\.\d+)?)")
_SHORTEST_KEY: Final = 16


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Configuration of the server.

    Attributes:
        host: Address to listen at: a name or an IP address.
        port: Port to listen at; 0 takes a free one.
        api_keys: Requests without one of these keys are refused; without keys every request is answered.
        key_weights: Share of a key relative to others: 2 gets twice as much as 1, the default.
        metrics_keys: Keys that may read `/metrics`, which cover all callers. A server's only key always may.
        admin_keys: Those of the keys that may load and unload adapters; without any, nobody may.
        adapter_root: Folder inside which adapters must lie that are loaded through `/v1/adapters`, symbolic links
            resolved; relative paths begin there, and Hub ids are refused. None lets keys with `admin` load any.
        max_body_bytes: Size of a request's body, and of a frame of a WebSocket.
        max_images: Places of images in a conversation, where the model reads several; other requests have one image.
        max_prompt_characters: Length of a question, of an object's name, or of all messages of a conversation.
        max_tokens: Largest max_tokens that a request may set.
        max_objects: Largest max_objects that a request may set.
        max_parts: Names times image and tiles of a request; each counts as a request for max_open and the rate.
        max_open: Requests being answered; as many again may be uploading.
        max_sockets: Open WebSockets.
        max_open_bytes: Memory for their bodies and images together, at the peak of decoding too.
        image_workers: Processes that decode images; one is killed when an image costs too much, and up to four more
            run while such images come in. None takes one a core, from 6 to 8. 0 decodes in the server's own process,
            where a hostile image cannot be stopped.
        max_connections: Open connections, idle ones included; more are refused with 503.
        requests_per_minute: Limit for each key, or for each client's address without keys; messages of WebSockets
            count as requests. None for no limit.
        deadline_s: Seconds until a request is given up: the default, and the most that a request may set.
        drain_s: Seconds that accepted requests have to finish after SIGTERM.
        hang_s: Seconds that a step on the device may take before the process ends itself; ten times as many for work on
            the host, such as compiling kernels. None for 60 on a card, 600 on the CPU.
        max_restarts: How often in a row the supervisor starts a process again that ended without 60 seconds of serving.
        header_timeout_s: Seconds in which a connection must send the headers of its first or next request.
        body_timeout_s: Seconds in which a client must send the body.
        send_timeout_s: Seconds in which a client must read what it was sent.
        frame_timeout_s: Seconds that a WebSocket may stay open without a frame.
        url_hosts: Hosts that images may be fetched from over https; none by default.
        cors_origins: Origins, such as "https://example.com", whose pages may call the server; "*" for all.
        allow_hosts: Names, without port, accepted as Host of requests beside loopback's and the server's address.
            Without keys, requests with any other name as Host are refused, which prevents DNS rebinding; beyond
            loopback, IP addresses are accepted. With keys, Host is checked only if names are given.
        model_aliases: More names for the served model in requests. Moondream's own client sends "moondream3-preview"
            in conversations by default.
        expose: Whether it may listen beyond loopback without keys; see `allow_hosts` for the names it answers to.

    Raises:
        SettingsError: A value is out of its range, or the server would answer everybody on a network without
            `expose`.
    """

    host: str = "127.0.0.1"
    port: int = setting(2020, least=0, most=65535)
    api_keys: tuple[str, ...] = field(default=(), metadata={"flag": None})
    key_weights: Mapping[str, float] = field(default_factory=dict, hash=False, metadata={"flag": None})
    metrics_keys: tuple[str, ...] = field(default=(), metadata={"flag": None})
    admin_keys: tuple[str, ...] = field(default=(), metadata={"flag": None})
    adapter_root: str | None = None
    max_body_bytes: int = setting(32 * MIB, least=1)
    max_images: int = setting(8, least=1)
    max_prompt_characters: int = setting(4000, least=1)
    max_tokens: int = setting(1024, least=1)
    max_objects: int = setting(150, least=1)
    max_parts: int = setting(64, least=1)
    max_open: int = setting(256, least=1)
    max_sockets: int = setting(256, least=1)
    max_open_bytes: int = setting(1024 * MIB, least=1)
    image_workers: int | None = setting(None, least=0)
    max_connections: int = setting(1024, least=1)
    requests_per_minute: int | None = setting(None, least=1)
    deadline_s: float = setting(60.0, above=0)
    drain_s: float = setting(20.0, least=0)
    hang_s: float | None = setting(None, above=0)
    max_restarts: int = setting(5, least=0)
    header_timeout_s: float = setting(10.0, above=0)
    body_timeout_s: float = setting(30.0, above=0)
    send_timeout_s: float = setting(30.0, above=0)
    frame_timeout_s: float = setting(60.0, above=0)
    url_hosts: tuple[str, ...] = setting((), flag="--allow-url-host")
    cors_origins: tuple[str, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    model_aliases: tuple[str, ...] = setting(
        ("moondream3-preview", "moondream/moondream3-preview"), flag="--model-alias"
    )
    expose: bool = False

    def __post_init__(self) -> None:
        check_settings(self, "server setting")
        self._check_texts()
        if not (self.is_local or self.api_keys or self.expose):
            raise SettingsError(
                f"host {self.host!r} can be reached from other machines, and there are no API keys: "
                "give keys (--api-key-file), or expose=True (--expose) to answer everybody who can reach it"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # a name may resolve to any address
            return False

    def accepts(self, key: str | None) -> bool:
        """Whether a caller with this key, None for no key, is answered; takes constant time for any key."""
        if not self.api_keys:
            return True
        if key is None:
            return False
        given = key.encode("utf-8", "replace")
        return any([hmac.compare_digest(given, known.encode()) for known in self.api_keys])  # compares all

    def take_keys(self, other: "ServerConfig") -> None:
        """Replace the keys by those of other settings: the only change that settings in use allow."""
        for name in ("api_keys", "key_weights", "metrics_keys", "admin_keys"):
            object.__setattr__(self, name, getattr(other, name))

    def __repr__(self) -> str:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        for name in ("api_keys", "metrics_keys", "admin_keys"):  # a repr may end up in a log
            values[name] = tuple(map(fingerprint, values[name]))
        values["key_weights"] = {fingerprint(key): weight for key, weight in self.key_weights.items()}
        return f"ServerConfig({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    def _check_texts(self) -> None:
        if not self.host or re.search(r"\s|/", self.host):
            raise SettingsError(f"server setting 'host' is {self.host!r}: it must be a name or an IP address")
        if not _all_match(_VISIBLE, self.api_keys):  # the message does not quote them: they are secrets
            raise SettingsError(
                "server setting 'api_keys' holds a key that is empty or has characters beyond ASCII's visible ones: "
                "an HTTP header cannot carry it"
            )
        weights = self.key_weights.values()
        if not self.key_weights.keys() <= set(self.api_keys) or not all(0 < weight < math.inf for weight in weights):
            raise SettingsError("server setting 'key_weights' must give keys of 'api_keys' numbers above 0")
        for name in ("metrics_keys", "admin_keys"):
            if not set(getattr(self, name)) <= set(self.api_keys):
                raise SettingsError(f"server setting {name!r} must be some of 'api_keys'")
        names = "names of hosts, without https:// and port"
        for name, pattern, wanted in (
            ("allow_hosts", _NAME, names),
            ("url_hosts", _HOST, names),
            ("model_aliases", _VISIBLE, "names without spaces"),
            ("cors_origins", _ORIGIN, "origins such as 'https://example.com', or '*'"),
        ):
            value = getattr(self, name)
            if not _all_match(pattern, value):
                raise SettingsError(f"server setting {name!r} is {value!r}: it must be {wanted}")


def fingerprint(key: str) -> str:
    """Return a short hash of a key, which stands for it in logs."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:8]


def read_access(path: Path) -> dict[str, Any]:
    """Read a key file's lines, `KEY weight=2 metrics admin` in any order; returns the settings of `ServerConfig`.

    Raises `InputError`, also if other users could add a key to the file.
    """
    name = f"the key file {str(path)!r}"
    try:
        with path.open(encoding="utf-8-sig") as file:
            shared = written_by_others(os.fstat(file.fileno()))
            lines = [line.strip() for line in file.read().splitlines()]
    except (OSError, UnicodeDecodeError) as cause:
        reason = getattr(cause, "strerror", None) or "no text"
        raise InputError(f"{name} cannot be read ({reason}): give a text file") from cause
    if shared is not None:
        raise InputError(f"{name} {shared}: chmod 600 it")
    entries = [line for line in lines if line and not line.startswith("#")]
    if not entries:
        raise InputError(f"{name} holds no key: write one a line, from: openssl rand -hex 16")
    keys = [_read_key(entry, f"key {number} of {str(path)!r}") for number, entry in enumerate(entries, 1)]
    weights = {key: weight for key, weight, _ in keys}

    def with_right(right: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for key, _, rights in keys if right in rights))

    return {
        "api_keys": tuple(weights),
        "key_weights": {key: weight for key, weight in weights.items() if weight != 1},
        "metrics_keys": with_right("metrics"),
        "admin_keys": with_right("admin"),
    }


def _read_key(line: str, where: str) -> tuple[str, float, set[str]]:
    """Return a key, its weight and what it may do beside asking; errors do not quote the line, which is a secret."""
    key, *words = line.split()
    rights = {word for word in words if word in ("metrics", "admin")}
    weights = [float(found[1]) for word in words if (found := _WEIGHT.fullmatch(word))]
    weight = weights[0] if weights else 1.0
    if len(weights) > 1 or len(weights) + len(rights) < len(words) or not 0 < weight < math.inf:
        raise InputError(
            f"{where} is followed by words that cannot be read: write KEY, or KEY weight=2 (above 0), `metrics` if it "
            "may read /metrics, `admin` if it may load adapters, each once"
        )
    if (length := len(key)) < _SHORTEST_KEY:
        reason = f"has {length} characters, and {_SHORTEST_KEY} are the least"
        raise InputError(f"{where} {reason}: make one with: openssl rand -hex 16")
    return key, weight, rights


def _all_match(pattern: re.Pattern[str], values: object) -> bool:
    return isinstance(values, tuple) and all(isinstance(value, str) and pattern.fullmatch(value) for value in values)
