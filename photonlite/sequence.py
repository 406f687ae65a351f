"""Sequences: requests on their way through the engine, and what they know of their images and sinks. No torch.

A sequence reads its request and the name of its image once, when it is made, on the thread that asks. The engine's
thread calls a request's own objects in few places, each of which confines what they raise to that request: the grammar
(`engine.core`, `engine.requests`), the image (`scheduler.encoding`, `engine.core`) and the sink (`engine.requests`).

A sequence through its life, with a pipeline of depth 2:

```
 waiting ──admit──> running ──EOS or cap at commit──> finalized ──last step committed──> released
    ^                  │                                  │
    └── pre-empted ────┘                                  └─ rides along in step t+1: a zombie
```
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from photonlite.request import Grammar, Request, Token

MAX_INFLIGHT = 2
"""Steps in flight that may carry one sequence: as many as the pipeline has slots."""


class Crops(Protocol):
    """The crops of one image, as `images.crops` cuts them."""

    @property
    def pixels(self) -> npt.NDArray[np.uint8]:
        """uint8 ``[n, C, C, 3]``, where the device can read it without waiting."""
        ...

    @property
    def tiling(self) -> tuple[int, int]:
        """Rows and columns of local crops."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class CutImage:
    """An image's crops, read once from its `Crops`; see there.

    Raises:
        ValueError: The pixels are no uint8 ``[n, C, C, 3]`` with n of at least 1.
    """

    pixels: npt.NDArray[np.uint8]
    tiling: tuple[int, int]

    def __post_init__(self) -> None:
        pixels = self.pixels
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3 or not len(pixels):
            raise ValueError(f"crops are {pixels.dtype} {list(pixels.shape)}, not uint8 [n, C, C, 3]")

    @property
    def count(self) -> int:
        """Crops that there are."""
        return len(self.pixels)


@dataclass(frozen=True, slots=True, eq=False)
class UncutImage:
    """An image whose crops the device makes, as `images.packing` packs it and `runner.feed` reads it.

    Attributes:
        packed: uint8 ``[bytes]``, where the device can read it without waiting: pixels ``[H, W, 3]``, then filters.
        size: Width and height in pixels.
        tiling: Rows and columns of local crops.
        filters: Where each filter lies in `packed`: first byte, rows and columns of int32. Two of the whole image,
            across and down, then two of the local crops.
        down_first: Of each pair, whether the pass down comes before the pass across.
    """

    packed: npt.NDArray[np.uint8]
    size: tuple[int, int]
    tiling: tuple[int, int]
    filters: tuple[tuple[int, int, int], ...]
    down_first: tuple[bool, ...]

    @property
    def count(self) -> int:
        """Crops that it becomes."""
        rows, columns = self.tiling
        return 1 if self.tiling == (1, 1) else 1 + rows * columns


def read_crops(crops: Crops | UncutImage) -> CutImage | UncutImage:
    """Read crops once, into plain values.

    Raises:
        ValueError: They are no crops; reading those of a plug-in may raise anything.
    """
    return crops if isinstance(crops, UncutImage) else CutImage(crops.pixels, crops.tiling)


class ImageRef(Protocol):
    """An image that a request is about: identified by its content, cut into crops only when they are needed."""

    @property
    def key(self) -> str:
        """Tells images apart: a hash of pixels, adapter and tenant."""
        ...

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height in pixels; None where it is not known."""
        ...

    @property
    def crops(self) -> Crops | UncutImage | None:
        """The crops, or what the device makes them of; None until they are there."""
        ...

    @property
    def failure(self) -> BaseException | None:
        """Why the crops could not be cut; None while they may come."""
        ...

    def request_crops(self) -> None:
        """Begin to make them on another thread, unless that has been done; returns at once."""
        ...

    def drop_crops(self) -> None:
        """Let go of them: the image has been encoded. They may be asked for again."""
        ...


class Sink(Protocol):
    """Where a sequence's output goes; called on the engine thread in the middle of a tick.

    It must neither block nor call the engine core; what an `EngineLoop` offers may be called.
    """

    def on_token(self, token: Token) -> None:
        """Take a token as soon as it is certain."""
        ...

    def on_finish(self, sequence: "Sequence") -> None:
        """Take the end: `sequence.error` tells whether it failed. Called exactly once."""
        ...


@dataclass(slots=True)
class Timeline:
    """When things happened to a sequence, in seconds of `time.perf_counter`; 0 where they have not."""

    submitted: float = 0.0
    admitted: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0
    preprocess_s: float = 0.0
    encode_s: float = 0.0
    prefill_s: float = 0.0
    preemptions: int = 0

    @property
    def queue_s(self) -> float:
        """Seconds from the prepared image to the first launch that carried the prompt."""
        return max(0.0, self.admitted - self.submitted - self.preprocess_s) if self.admitted else 0.0


@dataclass(eq=False, slots=True)
class Sequence:
    """A request on its way through the engine.

    Attributes:
        number: Unique; later ones are larger.
        request: What was asked. A budget of 0 asks for nothing but the image's place in the prefix cache.
        sink: Where the output goes.
        prefix_len: Positions before the prompt: BOS, and the image if there is one.
        image: What it is about; None for text alone.
        deadline: When the answer is worthless, in seconds of `time.perf_counter`; None for never.
        seed: Of its random numbers.
        prefix_keys: Names of the prefix blocks that its prompt consists of; see `cache.manager.CacheManager.name`.
        row: Its row of the pending table, from admission to release.
        pages: Its page table.
        num_computed_tokens: Positions that launched steps have given keys and values.
        tokens: What it has produced, as far as committed.
        inflight_refs: Launched and uncommitted steps that carry it.
        finalized: It has ended; it changes no more.
        preempting: It gives its pages back as soon as its steps have committed, and starts again.
        error: Why it failed.
        times: When things happened to it.
        prompt: Of the request, as are the next six.
        budget: Tokens at most.
        realtime: Whether it comes before bulk work.
        temperature: 0 is greedy.
        top_p: Probability mass to consider.
        grammar: What may follow the prompt.
        cache_salt: A tenant's own text.
        image_key: The image's key; None for text alone.
        prompt_length: Positions of BOS, image and prompt.
    """

    number: int
    request: Request
    sink: Sink
    prefix_len: int
    image: ImageRef | None = None
    deadline: float | None = None
    seed: int = 0
    prefix_keys: tuple[bytes, ...] | None = None
    row: int | None = None
    pages: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    tokens: list[Token] = field(default_factory=list)
    inflight_refs: int = 0
    finalized: bool = False
    preempting: bool = False
    error: BaseException | None = None
    times: Timeline = field(default_factory=Timeline)
    prompt: tuple[Token, ...] = field(init=False)
    budget: int = field(init=False)
    realtime: bool = field(init=False)
    temperature: float = field(init=False)
    top_p: float = field(init=False)
    grammar: Grammar = field(init=False)
    cache_salt: str = field(init=False)
    image_key: str | None = field(init=False)
    prompt_length: int = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        self.prompt = tuple(request.prompt)
        self.budget = int(request.budget)
        self.realtime = bool(request.realtime)
        self.temperature, self.top_p = float(request.settings.temperature), float(request.settings.top_p)
        self.grammar, self.cache_salt = request.grammar, request.cache_salt
        self.image_key = None if self.image is None else self.image.key
        self.prompt_length = self.prefix_len + len(self.prompt)

    @property
    def num_tokens(self) -> int:
        """Positions whose input is known on the host: prompt and committed tokens."""
        return self.prompt_length + len(self.tokens)

    @property
    def samples(self) -> bool:
        """Whether it produces tokens at all."""
        return self.budget > 0

    @property
    def longest(self) -> int:
        """Positions it can ever fill: the last token is never fed back."""
        return self.prompt_length + max(0, self.budget - 1)

    def tokens_after_image(self, start: int) -> tuple[Token, ...]:
        """Give prompt and committed tokens from position `start` on; it lies behind BOS and image."""
        return (*self.prompt, *self.tokens)[start - self.prefix_len :]

    def retain(self) -> None:
        """Count a launched step that carries it."""
        if self.inflight_refs >= MAX_INFLIGHT:
            raise AssertionError(f"sequence {self.number} is in {self.inflight_refs} steps already")
        self.inflight_refs += 1

    def release(self) -> None:
        """Count a step that carried it and was committed, or was not launched after all."""
        if self.inflight_refs <= 0:
            raise AssertionError(f"sequence {self.number} is in no step")
        self.inflight_refs -= 1
