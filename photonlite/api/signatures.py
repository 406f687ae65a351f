"""Async twins of methods, and for type checkers the overloads of `caption` and `query`.

`Answer[A, V]` has `A` under "answer" and `V` as its value: an `Answer[Shelf]` has a `Shelf` for both, and a stream of
one is an `Answer[Iterator[str], Shelf]`.
"""

import inspect
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from functools import update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from photonlite.api.tasks import ImageInput, Options
from photonlite.request import RequestSettings
from photonlite.results import Answer, Caption
from photonlite.skills.base import SpatialRefs

if TYPE_CHECKING:
    from typing_extensions import TypeForm  # not in the oldest versions that pydantic takes

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
Whole = TypeVar("Whole", covariant=True)
Streamed = TypeVar("Streamed", covariant=True)
Either = TypeVar("Either", covariant=True)
Awaitable: TypeAlias = Coroutine[Any, Any, R]
Settings: TypeAlias = RequestSettings | None
Image: TypeAlias = ImageInput | None
Question: TypeAlias = str | None


class PlainOptions(Options, total=False):
    """Arguments of `query` that do not change the type of its answer."""

    reasoning: bool
    spatial_refs: SpatialRefs | None
    choices: Iterable[str] | None
    regex: str | re.Pattern[str] | None
    retries: int


class CaptionMethod(Protocol[Whole, Streamed, Either]):
    """Type of `VisionModel.caption`, which describes it, and of `acaption`, by what they return."""

    @overload
    def __call__(
        self,
        image: ImageInput,
        length: str = "normal",
        stream: Literal[False] = False,
        settings: Settings = None,
        **options: Unpack[Options],
    ) -> Whole: ...
    @overload
    def __call__(
        self,
        image: ImageInput,
        length: str = "normal",
        stream: Literal[True] = ...,
        settings: Settings = None,
        **options: Unpack[Options],
    ) -> Streamed: ...
    @overload
    def __call__(
        self,
        image: ImageInput,
        length: str = "normal",
        stream: bool = False,
        settings: Settings = None,
        **options: Unpack[Options],
    ) -> Either: ...


SyncCaption: TypeAlias = CaptionMethod[Caption, Caption[Iterator[str]], Caption[Any]]
AsyncCaption: TypeAlias = CaptionMethod[
    Awaitable[Caption], Awaitable[Caption[AsyncIterator[str]]], Awaitable[Caption[Any]]
]


class QueryMethod(Protocol):
    """Type of `VisionModel.query`, which describes it."""

    @overload
    def __call__(
        self,
        image: Image = None,
        question: Question = None,
        stream: Literal[False] = False,
        settings: Settings = None,
        *,
        schema: None = None,
        **options: Unpack[PlainOptions],
    ) -> Answer: ...
    @overload
    def __call__(
        self,
        image: Image = None,
        question: Question = None,
        stream: Literal[True] = ...,
        settings: Settings = None,
        *,
        schema: None = None,
        **options: Unpack[PlainOptions],
    ) -> Answer[Iterator[str], str]: ...
    @overload
    def __call__(
        self,
        image: Image = None,
        question: Question = None,
        stream: Literal[False] = False,
        settings: Settings = None,
        *,
        schema: "TypeForm[T]",
        **options: Unpack[PlainOptions],
    ) -> Answer[T]: ...
    @overload
    def __call__(
        self,
        image: Image = None,
        question: Question = None,
        stream: Literal[True] = ...,
        settings: Settings = None,
        *,
        schema: "TypeForm[T]",
        **options: Unpack[PlainOptions],
    ) -> Answer[Iterator[str], T]: ...
    @overload
    def __call__(
        self,
        image: Image = None,
        question: Question = None,
        stream: bool = False,
        settings: Settings = None,
        *,
        schema: object = None,
        **options: Unpack[PlainOptions],
    ) -> Answer[Any, Any]: ...


class AsyncQueryMethod(Protocol):
    """Type of `VisionModel.aquery`."""

    @overload
    def __call__(
        self,
        image: Image = None,
        question: Question = None,
        stream: Literal[False] = False,
        settings: Settings = None,
        *,
        schema: None = None,
        **options: Unpack[PlainOptions],
    ) -> Awaitable[Answer]: ...
    @overload
    def __call__(
        self,
        image: Image = None,
        question: Question = None,
        stream: Literal[True] = ...,
        settings: Settings = None,
        *,
        schema: None = None,
        **options: Unpack[PlainOptions],
    ) -> Awaitable[Answer[AsyncIterator[str], str]]: ...
    @overload
    def __call__(
        self,
        image: Image = None,
        question: Question = None,
        stream: Literal[False] = False,
        settings: Settings = None,
        *,
        schema: "TypeForm[T]",
        **options: Unpack[PlainOptions],
    ) -> Awaitable[Answer[T]]: ...
    @overload
    def __call__(
        self,
        image: Image = None,
        question: Question = None,
        stream: Literal[True] = ...,
        settings: Settings = None,
        *,
        schema: "TypeForm[T]",
        **options: Unpack[PlainOptions],
    ) -> Awaitable[Answer[AsyncIterator[str], T]]: ...
    @overload
    def __call__(
        self,
        image: Image = None,
        question: Question = None,
        stream: bool = False,
        settings: Settings = None,
        *,
        schema: object = None,
        **options: Unpack[PlainOptions],
    ) -> Awaitable[Answer[Any, Any]]: ...


def typed_caption(method: Callable[..., Caption[Any]]) -> SyncCaption:
    """Return the method as it is, for type checkers with its overloads."""
    return cast(SyncCaption, method)


def typed_query(method: Callable[..., Answer[Any, Any]]) -> QueryMethod:
    """Return the method as it is, for type checkers with its overloads."""
    return cast(QueryMethod, method)


@overload
def async_twin(method: SyncCaption) -> AsyncCaption: ...
@overload
def async_twin(method: QueryMethod) -> AsyncQueryMethod: ...
@overload
def async_twin(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], Awaitable[R]]: ...
def async_twin(method: Any) -> Any:
    """Make the async twin of a method: the same call of a copy of the model whose methods return coroutines."""

    async def twin(model: Any, /, *args: Any, **kwargs: Any) -> Any:
        answer = method(model._awaiting, *args, **kwargs)
        return await answer if inspect.iscoroutine(answer) else answer  # an encoded image comes as it is

    update_wrapper(twin, method)
    twin.__name__, twin.__qualname__ = f"a{method.__name__}", f"VisionModel.a{method.__name__}"
    twin.__doc__ = f"Async twin of `{method.__name__}`: the same arguments, results and errors."
    return twin
