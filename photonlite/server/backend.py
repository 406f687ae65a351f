"""What answers: the face by which the server knows a model, and the one model behind it."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

from photonlite.api import VisionModel
from photonlite.images.source import DecodedImage
from photonlite.options import OPTIONS

Skill = Literal["caption", "query", "detect", "point", "segment"]
SKILLS: tuple[Skill, ...] = ("caption", "query", "detect", "point", "segment")


@dataclass(frozen=True)
class Call:
    """One thing to ask.

    Attributes:
        skill: What is asked.
        image: The bytes of an image file, or the image; None for a query without one.
        arguments: Keyword arguments of the method of `VisionModel`: object, question, length, settings, reasoning,
            spatial_refs.
        stream: Whether text is wanted as it comes.
        deadline_s: Seconds from the call after which the answer is worthless; None for the server's own deadline.
        cache_salt: Whose question it is: tenants share nothing that was computed for them.
        caller: Who asks, for shares of what callers divide: the tenant, or an address where there are no keys.
        realtime: Whether it goes before bulk work.
        strict: Whether an answer that a limit cut short is an error.
    """

    skill: Skill
    image: bytes | DecodedImage | None = field(repr=False)
    arguments: Mapping[str, Any]
    stream: bool = False
    deadline_s: float | None = None
    cache_salt: str | None = None
    caller: str | None = None
    realtime: bool = False
    strict: bool = False


class BackendStream(Protocol):
    """Pieces of text as they come. Closing it cancels the request."""

    @property
    def result(self) -> Mapping[str, Any]:
        """The answer with its `metrics` and `finish_reason`, which are None until the pieces have ended."""
        ...

    def __aiter__(self) -> AsyncIterator[str]:
        """Itself."""
        ...

    async def __anext__(self) -> str:
        """Wait for a piece."""
        ...

    async def aclose(self) -> None:
        """Give the rest up; a stream that has ended stays as it is."""
        ...


class Backend(Protocol):
    """What answers calls."""

    @property
    def name(self) -> str:
        """Of the model."""
        ...

    @property
    def skills(self) -> tuple[str, ...]:
        """What it can be asked."""
        ...

    @property
    def max_batch(self) -> int:
        """How many calls it works on together."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it answers at all."""
        ...

    @property
    def last_tick_s(self) -> float:
        """Seconds since the engine's last sign of life."""
        ...

    async def run(self, call: Call) -> Mapping[str, Any]:
        """Answer a call: a result of photonlite. Cancelling the task cancels the request.

        Raises:
            PhotonliteError: Why there is no answer.
        """
        ...

    async def stream(self, call: Call) -> BackendStream:
        """Begin to answer a caption or a query.

        Raises:
            PhotonliteError: Why there is no answer; the stream raises what goes wrong later.
        """
        ...

    def metrics(self) -> dict[str, Any]:
        """What the engine has done: counters, gauges and histograms; see `VisionModel.metrics`."""
        ...


class ModelBackend:
    """A model of this process.

    Args:
        model: Answers; whoever made it closes it.
    """

    def __init__(self, model: VisionModel) -> None:
        self._model = model

    @property
    def name(self) -> str:
        """How the model was named when it was loaded."""
        return self._model.name

    @property
    def skills(self) -> tuple[str, ...]:
        """What the checkpoint was trained for."""
        return self._model.skills

    @property
    def max_batch(self) -> int:
        """How many requests are decoded together."""
        return self._model.max_batch

    @property
    def alive(self) -> bool:
        """Whether questions are taken and answered."""
        return self._model.alive

    @property
    def last_tick_s(self) -> float:
        """Seconds since the engine's last sign of life."""
        return self._model.last_tick_s

    async def run(self, call: Call) -> Mapping[str, Any]:
        """Answer a call; see `Backend`."""
        return await self._ask(call)

    async def stream(self, call: Call) -> "ModelStream":
        """Begin to answer a caption or a query; see `Backend`."""
        return ModelStream(await self._ask(call, stream=True))

    def metrics(self) -> dict[str, Any]:
        """What the engine has done."""
        return self._model.metrics()

    async def _ask(self, call: Call, **more: Any) -> Mapping[str, Any]:
        options = {name: getattr(call, name) for name in OPTIONS}
        method = getattr(self._model, f"a{call.skill}")
        result = await method(call.image, **call.arguments, **options, **more)
        return cast(Mapping[str, Any], result)


class ModelStream:
    """Pieces of a caption or an answer.

    Args:
        result: Whose text is an asynchronous iterator.
    """

    def __init__(self, result: Mapping[str, Any]) -> None:
        self._result = result
        self._pieces = next(value for key, value in result.items() if key in ("caption", "answer"))

    @property
    def result(self) -> Mapping[str, Any]:
        """The answer; see `BackendStream`."""
        return self._result

    def __aiter__(self) -> "ModelStream":
        return self

    async def __anext__(self) -> str:
        return cast(str, await anext(self._pieces))

    async def aclose(self) -> None:
        """Give the rest up."""
        await self._pieces.aclose()
