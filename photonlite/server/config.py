"""Settings of the server: how much it takes in, how long it waits, and whom it answers."""

import hashlib
import hmac
import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from photonlite.errors import SettingsError
from photonlite.numeric import make_plain
from photonlite.settings import MIB

_SECONDS: Final = ("deadline_s", "header_timeout_s", "body_timeout_s", "send_timeout_s", "frame_timeout_s")
_WHOLE: Final = (
    "max_body_bytes",
    "max_images",
    "max_prompt_characters",
    "max_tokens",
    "max_objects",
    "max_open",
    "max_sockets",
    "max_open_bytes",
    "max_connections",
)
_VISIBLE: Final = re.compile(r"[!-~]+")
_HOST: Final = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]*[a-z0-9])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9])?)*", re.I)
_NAME: Final = re.compile(rf"{_HOST.pattern}|[0-9a-f:.]+", re.I)
_ORIGIN: Final = re.compile(r"\*|https?://[^/\s]+", re.I)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How the server runs.

    Attributes:
        host: Address to listen at: a name or an IP address.
        port: Port to listen at; 0 takes a free one.
        api_keys: Whoever gives none of them is refused. Without keys everybody is answered.
        key_weights: What part a key gets of what callers share: twice as much with 2; 1 for keys that are not named.
        max_body_bytes: Of a request's body, and of a frame of a WebSocket.
        max_images: Images of a request.
        max_prompt_characters: Of a question, an object's name, or all messages of a conversation together.
        max_tokens: The most that a request may ask for.
        max_objects: The most that a request may ask for.
        max_open: Requests that are accepted and not yet answered, and as many again whose bodies are on their way.
        max_sockets: WebSockets that are open at a time.
        max_open_bytes: What their bodies and images take together, at the peak of decoding too.
        image_workers: Processes that open and decode images; each is killed when an image costs too much, and up to
            four more run while there are such images. None for one for each core, from 6 to 8. 0 decodes in the
            server's own process, where nothing can stop a hostile image.
        max_connections: Open at a time, whether they ask for anything or not; more are refused with 503.
        requests_per_minute: Of each key, or of each client's address where there are no keys, with frames of WebSockets
            as requests; None for no limit.
        deadline_s: Seconds from acceptance after which a request is given up: the default, and the most that a request
            may ask for.
        drain_s: Seconds that accepted requests have to finish once the server is told to stop.
        header_timeout_s: Seconds that a connection may take for the headers of its first or next request.
        body_timeout_s: Seconds that a client may take for the body.
        send_timeout_s: Seconds that a client may take to read what it was sent.
        frame_timeout_s: Seconds for which a WebSocket may stay open without a frame.
        url_hosts: Hosts that images may be fetched from, over https; none unless named.
        cors_origins: Origins, such as "https://example.com", whose pages may call the server; "*" for all.
        allow_hosts: Names, without port, that the Host of requests may have beside loopback's and the server's address.
            Without keys on loopback, requests for any other host are refused: a page sent them, whose name leads here.
            With keys, or beyond loopback, Host is looked at only where names are given.
        model_aliases: More names by which requests may mean the model that is served. Moondream's own client says
            "moondream3-preview" in conversations unless it is told a name.
        expose: Whether it may listen beyond loopback without keys.

    Raises:
        SettingsError: A value is out of its range, or the server would answer everybody on a network that nobody
            said it should answer.
    """

    host: str = "127.0.0.1"
    port: int = 2020
    api_keys: tuple[str, ...] = field(default=(), metadata={"flag": None})
    key_weights: Mapping[str, float] = field(default_factory=dict, hash=False, metadata={"flag": None})
    max_body_bytes: int = 32 * MIB
    max_images: int = 1
    max_prompt_characters: int = 4000
    max_tokens: int = 1024
    max_objects: int = 150
    max_open: int = 256
    max_sockets: int = 256
    max_open_bytes: int = 1024 * MIB
    image_workers: int | None = None
    max_connections: int = 1024
    requests_per_minute: int | None = None
    deadline_s: float = 60.0
    drain_s: float = 20.0
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    send_timeout_s: float = 30.0
    frame_timeout_s: float = 60.0
    url_hosts: tuple[str, ...] = field(default=(), metadata={"flag": "--allow-url-host"})
    cors_origins: tuple[str, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    model_aliases: tuple[str, ...] = field(
        default=("moondream3-preview", "moondream/moondream3-preview"), metadata={"flag": "--model-alias"}
    )
    expose: bool = False

    def __post_init__(self) -> None:
        make_plain(self)
        self._check_numbers()
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
        except ValueError:  # a name may lead anywhere
            return False

    def accepts(self, key: str | None) -> bool:
        """Tell whether a caller with this key is answered; takes equally long whichever key it is like.

        Args:
            key: What the caller gave; None for nothing.
        """
        if not self.api_keys:
            return True
        if key is None:
            return False
        given = key.encode("utf-8", "replace")
        return any([hmac.compare_digest(given, known.encode()) for known in self.api_keys])  # all are compared

    def take_keys(self, other: "ServerConfig") -> None:
        """Use the keys of other settings from now on; nothing else about settings changes while they are used."""
        object.__setattr__(self, "api_keys", other.api_keys)
        object.__setattr__(self, "key_weights", other.key_weights)

    def __repr__(self) -> str:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        values["api_keys"] = tuple(map(fingerprint, self.api_keys))  # what is printed may end in a log
        values["key_weights"] = {fingerprint(key): weight for key, weight in self.key_weights.items()}
        return f"ServerConfig({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    def _check_numbers(self) -> None:
        for name in _WHOLE:
            _require(name, getattr(self, name), _is_whole(getattr(self, name), 1), "a whole number of at least 1")
        for name in _SECONDS:
            value = getattr(self, name)
            _require(name, value, _is_number(value) and 0 < value < math.inf, "a number of seconds above 0, and finite")
        fine = _is_number(self.drain_s) and 0 <= self.drain_s < math.inf
        _require("drain_s", self.drain_s, fine, "a number of seconds of at least 0, and finite")
        _require("port", self.port, _is_whole(self.port, 0) and self.port <= 65535, "a whole number from 0 to 65535")
        workers = self.image_workers
        _require("image_workers", workers, workers is None or _is_whole(workers, 0), "None or a whole number from 0 on")
        rate = self.requests_per_minute
        _require("requests_per_minute", rate, rate is None or _is_whole(rate, 1), "None or a whole number from 1 on")

    def _check_texts(self) -> None:
        _require("host", self.host, bool(self.host) and not re.search(r"\s|/", self.host), "a name or an IP address")
        if not _all_match(_VISIBLE, self.api_keys):  # never quoted: it is a secret
            raise SettingsError("server setting 'api_keys' holds a key that is empty or has characters beyond ASCII's "
                                "visible ones: an HTTP header cannot carry it")
        if not (
            self.key_weights.keys() <= set(self.api_keys)
            and all(_is_number(weight) and 0 < weight < math.inf for weight in self.key_weights.values())
        ):
            raise SettingsError("server setting 'key_weights' must give keys of 'api_keys' numbers above 0")
        names = "names of hosts, without https:// and port"
        _require("allow_hosts", self.allow_hosts, _all_match(_NAME, self.allow_hosts), names)
        _require("url_hosts", self.url_hosts, _all_match(_HOST, self.url_hosts), names)
        _require("model_aliases", self.model_aliases, _all_match(_VISIBLE, self.model_aliases), "names without spaces")
        origins = "origins such as 'https://example.com', or '*'"
        _require("cors_origins", self.cors_origins, _all_match(_ORIGIN, self.cors_origins), origins)


def fingerprint(key: str) -> str:
    """Give what stands for a key in logs: the same for the same key, and no way back to it."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:8]


def _require(name: str, value: object, fine: bool, limit: str) -> None:
    if not fine:
        raise SettingsError(f"server setting {name!r} is {value!r}: it must be {limit}")


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _all_match(pattern: re.Pattern[str], values: object) -> bool:
    return isinstance(values, tuple) and all(isinstance(value, str) and pattern.fullmatch(value) for value in values)
