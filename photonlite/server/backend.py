"""The interface by which the server knows a model, and the model of this process behind it."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

from photonlite.api import VisionModel
from photonlite.api.options import OPTIONS
from photonlite.images.source import DecodedImage

Skill = Literal["caption", "query", "detect", "point", "segment"]
SKILLS: tuple[Skill, ...] = ("caption", "query", "detect", "point", "segment")


@dataclass(frozen=True)
class Call:
    """One question to the model. Tenants with different cache salts share nothing that was computed for them."""

    skill: Skill
    image: bytes | DecodedImage | None = field(repr=False)
    arguments: Mapping[str, Any]
    """Keyword arguments of the skill's method of `VisionModel`."""
    stream: bool = False
    deadline_s: float | None = None
    """Seconds from the call; None for the server's own deadline."""
    cache_salt: str | None = None
    caller: str | None = None
    """The tenant, or the client's address where there are no keys: callers get shares of what is scarce."""
    realtime: bool = False
    strict: bool = False


class BackendStream(Protocol):
    """Pieces of text as they come. Closing it cancels the request, unless it has ended."""

    @property
    def result(self) -> Mapping[str, Any]:
        """The answer; its `metrics` and `finish_reason` are None until the stream has ended."""
        ...

    def __aiter__(self) -> AsyncIterator[str]: ...

    async def __anext__(self) -> str: ...

    async def aclose(self) -> None: ...


class Backend(Protocol):
    """What answers calls. `run` and `stream` raise `PhotonliteError`; cancelling their task cancels the request."""

    @property
    def name(self) -> str: ...

    @property
    def skills(self) -> tuple[str, ...]: ...

    @property
    def max_batch(self) -> int:
        """Requests that are decoded together."""
        ...

    @property
    def alive(self) -> bool: ...

    @property
    def last_tick_s(self) -> float:
        """Seconds since the engine's last sign of life."""
        ...

    async def run(self, call: Call) -> Mapping[str, Any]: ...

    async def stream(self, call: Call) -> BackendStream:
        """Begin to answer a caption or a query."""
        ...

    def metrics(self) -> dict[str, Any]:
        """Counters, gauges and histograms of the engine; see `VisionModel.metrics`."""
        ...


class ModelBackend:
    """A model of this process, which is closed by its creator."""

    def __init__(self, model: VisionModel) -> None:
        self._model = model

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def skills(self) -> tuple[str, ...]:
        return self._model.skills

    @property
    def max_batch(self) -> int:
        return self._model.max_batch

    @property
    def alive(self) -> bool:
        return self._model.alive

    @property
    def last_tick_s(self) -> float:
        return self._model.last_tick_s

    def metrics(self) -> dict[str, Any]:
        return self._model.metrics()

    async def run(self, call: Call) -> Mapping[str, Any]:
        return await self._ask(call)

    async def stream(self, call: Call) -> "ModelStream":
        return ModelStream(await self._ask(call, stream=True))

    async def _ask(self, call: Call, **more: Any) -> Mapping[str, Any]:
        options = {name: getattr(call, name) for name in OPTIONS}
        method = getattr(self._model, f"a{call.skill}")
        result = await method(call.image, **call.arguments, **options, **more)
        return cast(Mapping[str, Any], result)


class ModelStream:
    """A caption or an answer of a model that is streamed."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        self.result = result
        self._text = next(value for key, value in result.items() if key in ("caption", "answer"))

    def __aiter__(self) -> "ModelStream":
        return self

    async def __anext__(self) -> str:
        return cast(str, await anext(self._text))

    async def aclose(self) -> None:
        await self._text.aclose()
