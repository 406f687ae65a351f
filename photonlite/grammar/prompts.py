"""What a checkpoint gives to skills and grammars: its prompts, its ids, its text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from photonlite.grammar.decoding.corners import CornersFormat
from photonlite.grammar.decoding.grammars import PathIds, Vocabulary
from photonlite.grammar.decoding.items import ItemFormat
from photonlite.request import Token, Turn

Places: TypeAlias = Sequence[Sequence[float]]
"""Spatial references as numbers."""

Size: TypeAlias = tuple[int, int]
"""Width and height of an image, in pixels."""

PlaceKind: TypeAlias = Literal["detect", "point", "segment"]
"""What a list of places holds: boxes, points or outlines."""

ListFormat: TypeAlias = ItemFormat | CornersFormat
"""How a list of places is written: in digits, or with tokens of its own."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request may have; None for what the context has room for."""

    max_input_tokens: int | None = None  # positions of prompt and images
    max_output_tokens: int | None = None
    max_input_images: int | None = None


class TokenDecoder(Protocol):
    """Turns ids into text one by one, never half a character."""

    def feed(self, token_id: int, /) -> str: ...
    def flush(self) -> str: ...


class InlineImages(Protocol):
    """What prompts need that hold their images, whose answers list places."""

    @property
    def least_positions(self) -> int:
        """Positions that an image takes at least, whatever its size."""
        ...

    def positions_of(self, size: Size) -> tuple[int, int]:
        """Return the rows and columns of positions that an image of a width and height takes; may raise ImageError."""

    def encode(self) -> tuple[Token, ...]:
        """Return the beginning of prompts about one image, up to its end; empty where other prompts gain nothing."""

    def format(self, kind: PlaceKind, subject: str) -> ListFormat:
        """Return how a list of boxes, points or outlines is written."""

    def bounds(self, kind: PlaceKind, size: Size) -> tuple[int, ...]:
        """Return the largest numbers of an item in an image of a width and height, in pixels; () without digits."""

    def mask(self, codes: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return what the codes of an outline stand for, ``[rows, columns]`` of its box: inside where it is above 0."""


class Conversations(Protocol):
    """What prompts need that are conversations."""

    def chat(self, turns: Sequence[Turn]) -> tuple[Token, ...]:
        """Return the prompt for the next turn of a conversation; PromptError where it cannot be written."""


class Prompts(Protocol):
    """What skills need of a checkpoint: prompts, the ids of grammars, text. Each family implements it."""

    @property
    def skills(self) -> tuple[str, ...]: ...
    @property
    def max_context(self) -> int: ...
    @property
    def limits(self) -> RequestLimits: ...
    def limited(self, limits: RequestLimits) -> "Prompts":
        """Return the same prompts for requests within limits."""
        ...

    @property
    def prefix_length(self) -> int:
        """Positions before prompts with an image: BOS and the image. Without one it is BOS alone."""
        ...

    @property
    def inline(self) -> InlineImages | None:
        """What prompts need that hold their images; None where BOS and one image stand before all prompts."""
        ...

    @property
    def conversations(self) -> Conversations | None:
        """What writes conversations, and reads several images; None where prompts are questions about one."""
        ...

    @property
    def vocab_size(self) -> int: ...
    @property
    def vocabulary(self) -> Vocabulary: ...
    @property
    def path_ids(self) -> PathIds: ...
    def caption(self, length: str) -> tuple[Token, ...]: ...
    def query(self, question: str, *, reasoning: bool, refs: Places, images: int = 1) -> tuple[Token, ...]: ...
    def detect(self, subject: str) -> tuple[Token, ...]: ...
    def point(self, subject: str, *, refs: Places) -> tuple[Token, ...]: ...
    def segment(self, subject: str, *, refs: Places) -> tuple[Token, ...]: ...
    def spell(self, text: str) -> tuple[int, ...]:
        """Spell text as the model writes it, without special ids."""
        ...

    def pieces(self) -> list[bytes]:
        """Return the bytes of each id; none for one that is special or has no token."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; special ids have none."""
        ...

    def detokenizer(self) -> TokenDecoder: ...
