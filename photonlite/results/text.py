"""Captions and answers: a whole text, or a stream of pieces."""

import reprlib
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypedDict, Unpack, overload

from PIL import Image
from typing_extensions import TypeVar

from photonlite.errors import InputError
from photonlite.images.source import ImageSource
from photonlite.results.base import Metrics, SkillResult
from photonlite.results.drawing.labels import append_text_strip
from photonlite.results.drawing.style import open_image

A = TypeVar("A", default=str)
V = TypeVar("V", default=A)
OnEnd = Callable[[], tuple[Metrics | None, str | None]]
"""Called once when a stream ends; returns metrics and finish reason."""


class TokenReader(Protocol):
    def feed(self, token: Any, /) -> str: ...
    def flush(self) -> str: ...


class _TextStream:
    """The pieces of a text as they come; keeps them, so that the whole text can be read as well.

    Its iterators are no generators: another thread may close them while one waits, and dropping one drops its source.
    A stream refers to its result weakly: a cycle would delay the cancellation when both are dropped.
    """

    def __init__(self, source: Any, result: SkillResult, reader: TokenReader | None, on_end: OnEnd | None) -> None:
        self._source = source
        self._result = weakref.ref(result)
        self._reader = reader
        self._on_end = on_end
        self._received: list[str] = []

    @property
    def ended(self) -> bool:
        return self._source is None

    @property
    def received(self) -> str:
        return "".join(self._received)

    def _read(self, token: Any) -> str:
        """Read a piece, which is empty while its text is not certain."""
        return self._kept(token if self._reader is None else self._reader.feed(token))

    def _read_rest(self) -> str:
        self._source = None
        return self._kept("" if self._reader is None else self._reader.flush())

    def _kept(self, piece: str) -> str:
        if piece:
            self._received.append(piece)
        return piece

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is None:
            return
        metrics, finish_reason = on_end()
        if (result := self._result()) is not None:
            result.metrics, result.finish_reason = metrics, finish_reason


class TextIterator(_TextStream, Iterator[str]):
    """The pieces of a text, from an iterator of pieces or of tokens."""

    def __next__(self) -> str:
        while (source := self._source) is not None:
            try:
                piece = self._read(next(source))
            except StopIteration:
                piece = self._read_rest()
            if piece:
                return piece
        self._end()
        raise StopIteration

    def close(self) -> None:
        """Stop early: the source is closed, no more pieces come, and metrics and finish reason stay unknown."""
        self._on_end = None
        close = getattr(self._source, "close", None)
        self._source = None
        if close is not None:
            close()

    def read(self) -> str:
        """The whole text; waits for the pieces that have not come yet."""
        for _ in self:
            pass
        return self.received


class AsyncTextIterator(_TextStream, AsyncIterator[str]):
    """A `TextIterator` for pieces or tokens that are awaited; `on_end` must not block."""

    async def __anext__(self) -> str:
        while (source := self._source) is not None:
            try:
                piece = self._read(await anext(source))
            except StopAsyncIteration:
                piece = self._read_rest()
            if piece:
                return piece
        self._end()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop early: the source is dropped, no more pieces come, and metrics and finish reason stay unknown."""
        self._source = self._on_end = None

    async def read(self) -> str:
        """The whole text; waits for the pieces that have not come yet."""
        async for _ in self:
            pass
        return self.received


class TextInfo(TypedDict, total=False):
    """Time and tokens of the request, and why the text ended.

    For a stream, `on_end` returns them at its end, and `awaited` makes an `AsyncIterator` of a source that can be both.
    """

    metrics: Metrics | None
    finish_reason: str | None
    on_end: OnEnd | None
    awaited: bool


class _Text(SkillResult):
    """A result whose value is text, or an iterator of str while it streams, an asynchronous one of an async method."""

    _key: ClassVar[str]

    def __init__(
        self,
        value: Any,
        more: dict[str, Any],
        reader: TokenReader | None,
        *,
        metrics: Metrics | None = None,
        finish_reason: str | None = None,
        on_end: OnEnd | None = None,
        awaited: bool = False,
    ) -> None:
        # The value of a typed answer may be an iterator itself: pydantic gives one for `Iterable[int]`.
        if "text" not in more and isinstance(value, Iterator | AsyncIterator):
            stream = TextIterator if isinstance(value, Iterator) and not awaited else AsyncTextIterator
            value = stream(value, self, reader, on_end)
        super().__init__({self._key: value, **more}, metrics, finish_reason)

    @property
    def text(self) -> str:
        """The whole text; of a stream, waits for the rest of it.

        Raises:
            InputError: The stream must be awaited: see `atext`.
        """
        value = self.get("text", self[self._key])
        if isinstance(value, AsyncTextIterator):
            if not value.ended:
                raise InputError("this text is still on its way to a coroutine: `await result.atext()` gives all of it")
            return value.received
        return value.read() if isinstance(value, TextIterator) else str(value)

    async def atext(self) -> str:
        """The whole text; of a stream made by an async method, waits for the rest of it."""
        value = self[self._key]
        return await value.read() if isinstance(value, AsyncTextIterator) else self.text

    def plot(
        self, image: ImageSource, *, font_size: int | None = None, font: str | PathLike[str] | None = None
    ) -> Image.Image:
        """Write the text into a strip below the image. A stream is read to its end first.

        Args:
            image: A PIL image, an array, a path, bytes or a file object; it stays as it is.
            font_size: In pixels; follows the image's size by default.
            font: A font file, for scripts that Pillow's own font lacks.

        Returns:
            A new RGB image: the image, upright, and the strip. A narrow image is centred above a wider strip.

        Raises:
            ImageError: The image cannot be opened.
            InputError: The font cannot be read, or the stream must be awaited: see `atext`.
        """
        return append_text_strip(open_image(image), self.text, font_size, font)

    def _ipython_display_(self) -> None:
        """Print a stream as it comes, in notebooks and IPython; other texts show their repr."""
        stream = self[self._key]
        if not isinstance(stream, TextIterator) or stream.ended:
            raise NotImplementedError  # asks IPython to go on with the repr
        print(stream.received, end="")
        for piece in stream:
            print(piece, end="", flush=True)
        print()

    def __repr__(self) -> str:
        value = self[self._key]
        shown = repr(value)
        if isinstance(value, _TextStream):
            shown = f"<stream: {value.received!r}>" if value.received else "<stream>"
        more = "".join(f", {key}={reprlib.repr(self[key])}" for key in self if key not in (self._key, "text"))
        return f"{type(self).__name__}({shown}{more}){self._suffix()}"


class Caption(_Text, Generic[A]):
    """A description: `{"caption": str}`, or `{"caption": iterator of str}` while it streams.

    Args:
        caption: The text, or the pieces of it as they come.
        reader: Of a stream of tokens, turns them into text.
        info: See `TextInfo`.
    """

    _key = "caption"

    def __init__(
        self,
        caption: str | Iterator[Any] | AsyncIterator[Any],
        *,
        reader: TokenReader | None = None,
        **info: Unpack[TextInfo],
    ) -> None:
        super().__init__(caption, {}, reader, **info)

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, key: Literal["caption"], /) -> A: ...
        @overload
        def __getitem__(self, key: str, /) -> Any: ...
        def __getitem__(self, key: str, /) -> Any: ...

    @property
    def caption(self) -> A:
        """The text, or the pieces of it as they come: what is under the key "caption"."""
        caption: A = self["caption"]
        return caption


class Answer(_Text, Generic[A, V]):
    """An answer: `{"answer": str, "reasoning"?: {...}}`, or an iterator of str under "answer" while it streams.

    A typed one is `{"answer": object, "text": str}`, and one out of choices `{"answer": str, "scores"?: {...}}`.

    Args:
        answer: The text, or the pieces of it as they come; of a typed answer, its value.
        reasoning: `{"text": str, "grounding": [...]}`; None leaves the key out.
        text: Of a typed answer, its JSON; None leaves the key out.
        scores: The probability of each choice; None leaves the key out. Of a stream they come with the end.
        read: Of a stream, converts its whole text to the answer's value.
        reader: Of a stream of tokens, turns them into text.
        info: See `TextInfo`.
    """

    _key = "answer"

    def __init__(
        self,
        answer: Any,
        reasoning: dict[str, Any] | None = None,
        *,
        text: str | None = None,
        scores: dict[str, float] | None = None,
        read: Callable[[str], Any] | None = None,
        reader: TokenReader | None = None,
        **info: Unpack[TextInfo],
    ) -> None:
        parts = {"text": text, "scores": scores, "reasoning": reasoning}
        more = {name: part for name, part in parts.items() if part is not None}
        super().__init__(answer, more, reader, **info)
        self._read = read

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, key: Literal["answer"], /) -> A: ...
        @overload
        def __getitem__(self, key: str, /) -> Any: ...
        def __getitem__(self, key: str, /) -> Any: ...

    @property
    def answer(self) -> A:
        """The answer, or the pieces of it as they come: what is under the key "answer"."""
        answer: A = self["answer"]
        return answer

    @property
    def value(self) -> V:
        """The answer's value: of a typed question, the object; of a stream, waits for the rest of it.

        Raises:
            InputError: The stream must be awaited: see `avalue`.
        """
        given: Any = self["answer"]
        value: V = self._value_of(self.text) if isinstance(given, _TextStream) else given
        return value

    async def avalue(self) -> V:
        """The answer's value; of a stream made by an async method, waits for the rest of it."""
        given: Any = self["answer"]
        value: V = self._value_of(await self.atext()) if isinstance(given, _TextStream) else given
        return value

    def _value_of(self, text: str) -> Any:
        return text if self._read is None else self._read(text)
