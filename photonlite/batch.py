"""The contract between scheduler, engine and runner: sequences, plans and steps, in plain values. No torch.

```
scheduler.plan ──> Plan(kind, rows)  ──launch──>  Step(plan, slot)  ──collect──> a Token or an error for each row
                        │
                        └─ Row(sequence, start, count): positions [start, start + count) get their keys and values
```

A sequence through its life, with a pipeline of depth 2:

```
 waiting ──admit──> running ──EOS or cap at commit──> finalized ──last step committed──> released
    ^                  │                                  │
    └── pre-empted ────┘                                  └─ rides along in step t+1: a zombie
```
"""

from collections.abc import Sequence as ListLike
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from photonlite.request import Allowed, Request, Token

Kind = Literal["encode", "prefill", "decode"]

MAX_INFLIGHT = 2
"""Steps in flight that may carry one sequence: as many as the pipeline has slots."""


class Crops(Protocol):
    """The crops of one picture, as `images.crops` cuts them."""

    @property
    def pixels(self) -> npt.NDArray[np.uint8]:
        """uint8 ``[n, C, C, 3]``, where the device can read it without waiting."""
        ...

    @property
    def tiling(self) -> tuple[int, int]:
        """Rows and columns of local crops."""
        ...


class Picture(Protocol):
    """A picture that a request is about: identified by its content, cut into crops only when they are needed."""

    @property
    def key(self) -> str:
        """Tells pictures apart: a hash of pixels, adapter and tenant."""
        ...

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height in pixels; None where it is not known."""
        ...

    @property
    def crops(self) -> Crops | None:
        """The crops; None until they are cut."""
        ...

    @property
    def failure(self) -> BaseException | None:
        """Why the crops could not be cut; None while they may come."""
        ...

    def request_crops(self) -> None:
        """Begin to cut them on another thread, unless that has been done; returns at once."""
        ...

    def drop_crops(self) -> None:
        """Let go of them: the picture has been encoded. They may be asked for again."""
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
        """Seconds from the prepared picture to the first launch that carried the prompt."""
        return max(0.0, self.admitted - self.submitted - self.preprocess_s) if self.admitted else 0.0


@dataclass(eq=False, slots=True)
class Sequence:
    """A request on its way through the engine.

    Attributes:
        number: Unique; later ones are larger.
        request: What was asked. A budget of 0 asks for nothing but the picture's place in the prefix cache.
        sink: Where the output goes.
        before: Positions before the prompt: BOS, and the picture if there is one.
        picture: What it is about; None for text alone.
        deadline: When the answer is worthless, in seconds of `time.perf_counter`; None for never.
        seed: Of its random numbers.
        row: Its row of the pending table, from admission to release.
        pages: Its page table.
        filled: Positions that launched steps have given keys and values.
        tokens: What it has produced, as far as committed.
        inflight_refs: Launched and uncommitted steps that carry it.
        finalized: It has ended; it changes no more.
        preempting: It gives its pages back as soon as its steps have committed, and starts again.
        error: Why it failed.
        times: When things happened to it.
    """

    number: int
    request: Request
    sink: Sink
    before: int
    picture: Picture | None = None
    deadline: float | None = None
    seed: int = 0
    row: int | None = None
    pages: list[int] = field(default_factory=list)
    filled: int = 0
    tokens: list[Token] = field(default_factory=list)
    inflight_refs: int = 0
    finalized: bool = False
    preempting: bool = False
    error: BaseException | None = None
    times: Timeline = field(default_factory=Timeline)

    @property
    def prompt_length(self) -> int:
        """Positions of BOS, picture and prompt."""
        return self.before + len(self.request.prompt)

    @property
    def known_length(self) -> int:
        """Positions whose input is known on the host: prompt and committed tokens."""
        return self.prompt_length + len(self.tokens)

    @property
    def samples(self) -> bool:
        """Whether it produces tokens at all."""
        return self.request.budget > 0

    @property
    def longest(self) -> int:
        """Positions it can ever fill: the last token is never fed back."""
        return self.prompt_length + max(0, self.request.budget - 1)

    def tokens_after_picture(self, start: int) -> tuple[Token, ...]:
        """Give prompt and committed tokens from position `start` on; it lies behind BOS and picture."""
        return (*self.request.prompt, *self.tokens)[start - self.before :]

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


@dataclass(eq=False, slots=True)
class EncodeJob:
    """A picture on its way through the vision encoder, crop group by crop group.

    Attributes:
        number: Unique; names its features on the device.
        key: Of the picture.
        crops: Of the picture.
        leader: The sequence it is encoded for; others may wait for it too.
        launched: Crops that launched steps have taken.
        failed: A step failed; what it has computed is worth nothing.
    """

    number: int
    key: str
    crops: Crops
    leader: Sequence | None = None
    launched: int = 0
    failed: bool = False

    @property
    def total(self) -> int:
        """Crops of the picture."""
        return len(self.crops.pixels)

    @property
    def encoded(self) -> bool:
        """Whether launched steps encode every crop, so that later work on the compute stream may use the features."""
        return self.launched == self.total and not self.failed


@dataclass(frozen=True, eq=False, slots=True)
class CropGroup:
    """Crops ``[first, first + count)`` of a job, in one encoder batch with others."""

    job: EncodeJob
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class PageCopy:
    """A page to copy on the compute stream, all positions of it."""

    source: int
    target: int


@dataclass(frozen=True, eq=False, slots=True)
class Row:
    """One sequence in a launch.

    Attributes:
        sequence: Whose.
        start: First position that gets keys and values.
        count: How many do; 1 when decoding.
        index: Which token of the sequence is sampled; None where none is.
        job: Where the picture's embeddings come from, when `start` is 0 and there is a picture.
    """

    sequence: Sequence
    start: int
    count: int
    index: int | None
    job: EncodeJob | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """What the next launch does.

    Attributes:
        kind: Which path it takes.
        rows: Sequences of a prefill or decode launch, in the order of the batch.
        groups: Crops of an encode launch.
        copies: Pages to copy before the forward pass.
        saves: Pages to copy after it.
    """

    kind: Kind
    rows: tuple[Row, ...] = ()
    groups: tuple[CropGroup, ...] = ()
    copies: tuple[PageCopy, ...] = ()
    saves: tuple[PageCopy, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """How one row's token is chosen.

    Attributes:
        allowed: What may stand there.
        temperature: 0 is greedy.
        top_p: Probability mass to consider.
        seed: Of the sequence.
        index: Which token of the sequence: seed and index give the random numbers, whatever the batch.
    """

    allowed: Allowed
    temperature: float
    top_p: float
    seed: int
    index: int


State = Literal["launched", "pending", "committing", "free"]


@dataclass(eq=False, slots=True)
class Step:
    """A launch, from its forward pass to its commit.

    Attributes:
        number: In order of launch.
        plan: What it does.
        slot: Whose buffers it uses.
        state: Launched (the forward pass is queued), pending (sampled, on its way back), committing, free (committed).
        failure: What went wrong with it as a whole, on the device or before.
        faults: What was wrong with single rows before they reached the device, by index.
        device_s: Seconds that its forward pass took on the device; known once collected.
        graphed: Whether it ran as a CUDA graph.
        padded: Rows of the batch that ran, the unused ones included.
    """

    number: int
    plan: Plan
    slot: int
    state: State = "launched"
    failure: BaseException | None = None
    faults: dict[int, Exception] = field(default_factory=dict)
    device_s: float = 0.0
    graphed: bool = False
    padded: int = 0

    @property
    def kind(self) -> Kind:
        """Of the plan."""
        return self.plan.kind

    @property
    def rows(self) -> tuple[Row, ...]:
        """Of the plan."""
        return self.plan.rows


class Runner(Protocol):
    """Does the work of steps on a device; none of its methods waits for the device but `collect` and `close`."""

    def launch(self, step: Step) -> None:
        """Queue copies and the forward pass; raises where the launch itself fails."""
        ...

    def finalize(self, step: Step, choices: ListLike[Choice | None]) -> None:
        """Queue heads, masks, sampling and the copy of the results; None for rows whose token nobody wants."""
        ...

    def collect(self, step: Step) -> list[Token | Exception | None]:
        """Wait for the results: a token for each row, why it has none, or None where none was sampled.

        Raises:
            Exception: The step failed as a whole.
        """
        ...

    def forget(self, job: EncodeJob) -> None:
        """Let go of a picture's features once the work queued so far is done."""
        ...

    def close(self) -> None:
        """Wait for all work and let go of the device's memory."""
        ...
