"""Sequences: the engine-side state of requests, and what they need of sinks. No torch.

A sequence reads its request and its image's key once, on the calling thread. What a grammar, an image or a sink raises
on the engine thread ends its request alone.

A sequence through its life, with a pipeline of depth 2:

```
 waiting ──admit──> running ──EOS or cap at commit──> finalized ──last step committed──> released
    ^                  │                                  │
    └── pre-empted ────┘                                  └─ rides along in step t+1: a zombie
```
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from photonlite.image_inputs import ImageRef, PrefixPages
from photonlite.request import AdapterRef, Grammar, Request, Token

MOST_ASSUMED = 15
"""Ids that a launch computes behind a token that has not come, at most: with it they are one tile of attention."""

MAX_INFLIGHT = 2
"""Steps in flight that may carry one sequence: as many as the pipeline has slots."""


class PrefixLink(NamedTuple):
    """A block of a prompt's positions that the prefix cache may have, behind those before it."""

    key: bytes  # of the whole chain up to here
    first: int  # of the full pages that it adds, by their place in the sequence; `stop` is behind the last
    stop: int
    end: int  # positions that the chain covers, this block included
    has_tail: bool  # it ends inside a page


@dataclass(eq=False, slots=True)
class ImageSpan:
    """The positions of an image in a sequence."""

    image: ImageRef
    start: int
    count: int
    key: str = field(init=False)  # the image's, and in a sequence the adapter's, with which it is encoded and read
    link: bytes = b""  # names the block of the prefix cache that ends with the image; see `CacheManager.name`
    pages: PrefixPages | None = None  # that a store may have; None for none

    def __post_init__(self) -> None:
        self.key = self.image.key

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(frozen=True, slots=True, eq=False)
class PromptTurns:
    """Rotary positions on three axes, where a model has them."""

    axes: npt.NDArray[np.int32]  # [T, 3] of a prompt's positions
    shift: int  # on all axes, from the index of a later position to its rotary position


class Sink(Protocol):
    """Receives a sequence's output, on the engine thread in the middle of a tick.

    It must neither block nor call the engine core; it may call an `EngineLoop`.
    """

    def on_token(self, token: Token) -> None:
        """Receive a token as soon as it is certain, and the prompt has been computed."""

    def on_finish(self, sequence: "Sequence") -> None:
        """Receive the end, exactly once; `sequence.error` says why it failed."""


@dataclass(slots=True)
class Timeline:
    """When things happened to a sequence, in seconds of the engine's clock; 0 where they have not."""

    submitted: float = 0.0
    admitted: float = 0.0  # first planned in a prefill
    first_token: float = 0.0
    last_token: float = 0.0
    finished: float = 0.0
    preprocess_s: float = 0.0
    encode_s: float = 0.0
    prefill_s: float = 0.0
    preemptions: int = 0  # times that it gave its pages back and was computed again
    swaps: int = 0  # times that its pages were moved to host memory

    @property
    def queue_s(self) -> float:
        """Seconds from the prepared image to the first launch that carried the prompt."""
        return max(0.0, self.admitted - self.submitted - self.preprocess_s) if self.admitted else 0.0


@dataclass(eq=False, slots=True)
class Sequence:
    number: int  # unique; later ones are larger
    request: Request
    sink: Sink
    prefix_len: int  # positions before the prompt: BOS, and the leading image if there is one
    image: ImageRef | None = None  # a leading one: it and BOS attend to each other in both directions
    deadline: float | None = None  # when the answer is worthless, on the engine's clock
    seed: int = 0
    links: tuple[PrefixLink, ...] | None = None  # the prefix blocks its prompt consists of; see `CacheManager.name`
    row: int | None = None  # of the pending table, from admission to release
    pages: list[int] = field(default_factory=list)
    shared_pages: int = 0  # of these, the first so many were in the prefix cache at its admission
    reserved: int = 0  # pages that it may come to need, where the router keeps count of them
    num_computed_tokens: int = 0  # positions that launched steps have given keys and values
    num_committed_tokens: int = 0  # the same of committed steps; 0 until the whole prompt is
    filled: int = 0  # the same of launches that have run, up to one that failed; see `note_filled`
    cut: bool = False  # its last launch left known positions to later ones
    beside: bool = False  # its prompt is computed on the encoder's stream: it decodes once that step has committed
    tokens: list[Token] = field(default_factory=list)  # committed
    num_handed_out: int = 0  # of these: the sink gets those of an opening once the prompt has been computed
    answered: bool = False  # its opening is the whole answer: it waits for its images alone
    inflight_refs: int = 0  # launched and uncommitted steps that carry it
    finalized: bool = False  # it has ended, and changes no more
    turn_end: int = 0  # positions that it computes before it gives way again, where another one can
    turn_room: int = 0  # positions for which real-time sequences must have room when it comes back
    preempting: bool = False  # releases its pages as soon as its steps have committed, and starts again
    error: BaseException | None = None
    times: Timeline = field(default_factory=Timeline)
    inside: tuple[ImageSpan, ...] = ()  # images inside the prompt, which is causal
    turns: PromptTurns | None = None
    adapter_slot: int = 0  # on the device, from when it is held to the release; 0 for none
    prompt_block: int = 0  # positions up to the prompt's end, where all of it attends to itself in both directions

    # Read once from the request. A budget of 0 asks for nothing but the image's place in the prefix cache.
    images: tuple[ImageSpan, ...] = field(init=False)
    prompt: tuple[Token, ...] = field(init=False)
    budget: int = field(init=False)
    skill: str = field(init=False)
    realtime: bool = field(init=False)
    temperature: float = field(init=False)
    top_p: float = field(init=False)
    top_k: int = field(init=False)  # 0: no limit
    repetition_penalty: float = field(init=False)  # 1: none
    grammar: Grammar = field(init=False)
    cache_salt: str = field(init=False)
    adapter: AdapterRef | None = field(init=False)
    adapter_key: str = field(init=False)  # "" without an adapter
    kept: bool = field(init=False)  # later requests may share the pages of its answer
    expected_run: tuple[int, ...] = field(init=False, default=())  # of its grammar, see `request.Grammar`
    assumed: tuple[int, ...] = field(init=False, default=())  # of these: a launched step computes them already
    prompt_length: int = field(init=False)  # positions of BOS, image and prompt
    longest: int = field(init=False)  # positions it can ever fill: the last token is never fed back

    def __post_init__(self) -> None:
        request = self.request
        leading = () if self.image is None else (ImageSpan(self.image, 1, self.prefix_len - 1),)
        self.images = (*leading, *self.inside)
        self.adapter, self.adapter_key = request.adapter, request.adapter_key
        if self.adapter_key:
            for span in self.images:
                span.key = f"{span.key} {self.adapter_key}"  # as `images.pool.stored_key`
        self.prompt = tuple(request.prompt)
        self.budget = int(request.budget)
        self.skill, self.realtime = str(request.skill), bool(request.realtime)
        settings = request.settings
        self.temperature, self.top_p = float(settings.temperature), float(settings.top_p)
        self.top_k, self.repetition_penalty = int(settings.top_k or 0), float(settings.repetition_penalty)
        self.grammar, self.cache_salt = request.grammar, request.cache_salt
        self.kept = bool(request.kept) and not self.prompt_block  # no later prompt begins with the same block
        self.prompt_length = self.prefix_len + len(self.prompt)
        self.longest = self.prompt_length + max(0, self.budget - 1)
        if self.prompt_block and not self.prefix_len <= self.prompt_block <= self.prompt_length:
            raise AssertionError(f"a block of {self.prompt_block} positions in a prompt of {self.prompt_length}")

    @property
    def num_tokens(self) -> int:
        """Positions whose input is known on the host: prompt and committed tokens."""
        return self.prompt_length + len(self.tokens)

    @property
    def is_behind(self) -> bool:
        """Whether known tokens have no keys and values beside one that was sampled: of its prompt, or of a run."""
        return self.cut or self.prompt_length + len(self.tokens) - self.num_computed_tokens > 1

    @property
    def awaits_token(self) -> bool:
        """Whether a launched step samples its next token, and nothing further has been launched."""
        return self.inflight_refs > 0 and self.num_computed_tokens == self.prompt_length + len(self.tokens)

    @property
    def assumable(self) -> tuple[int, ...]:
        """The expected ids that the next launch may compute behind the token that it awaits."""
        if not self.expected_run or not self.awaits_token:
            return ()
        return self.expected_run[: max(0, min(MOST_ASSUMED, self.longest - self.num_computed_tokens - 1))]

    @property
    def has_turn(self) -> bool:
        """Whether it has come back from host memory, and has yet to work: others give way first."""
        return self.num_computed_tokens < self.turn_end

    @property
    def next_index(self) -> int:
        """Which of its tokens the next launch samples: behind those known and those that launched steps sample."""
        sampled, known = self.num_computed_tokens + 1 - self.prompt_length, len(self.tokens)
        return sampled if sampled > known else known

    @property
    def samples(self) -> bool:
        return self.budget > 0

    @property
    def block(self) -> int:
        """Leading positions that attend to each other in both directions."""
        return self.prompt_block or (0 if self.image is None else self.prefix_len)

    def tokens_after_image(self, start: int) -> tuple[Token, ...]:
        """Return prompt and committed tokens from position `start` on, which lies behind BOS and a leading image."""
        offset = start - self.prefix_len
        return (*self.prompt[offset:], *self.tokens[max(0, offset - len(self.prompt)) :])

    def note_filled(self, start: int, end: int) -> bool:
        """Note that a launch has given positions keys and values; returns whether all before them have theirs.

        For the device's stream: a launch that is queued behind one that failed runs all the same, behind a hole.
        """
        if self.filled != start:
            return False
        self.filled = end
        return True

    def accept(self, token: Token, now: float) -> bool:
        """Append a token that was committed now, and hand it out; returns whether it was the last one.

        Tokens that come before anything was computed, an opening, are handed out with the first one that comes later.
        Raises what grammar and sink raise, which are plug-ins, and an AssertionError where the grammar goes on beyond
        the budget.
        """
        grammar, tokens = self.grammar, self.tokens
        grammar.accept(token)
        finished = grammar.finish_reason is not None
        tokens.append(token)
        if self.num_committed_tokens:
            self.hand_out(now)
        if not finished and len(tokens) >= self.budget:
            # Nothing is launched beyond the budget: it would never end.
            raise AssertionError(f"the grammar goes on after {len(tokens)} tokens, which were its budget")
        return finished

    def hand_out(self, now: float) -> None:
        """Give the sink the tokens that it does not have, unless it was told of an error."""
        self.times.first_token = self.times.first_token or now
        self.times.last_token = now
        while self.num_handed_out < len(self.tokens) and self.error is None:
            self.num_handed_out += 1
            self.sink.on_token(self.tokens[self.num_handed_out - 1])

    def retain(self) -> None:
        """Count a launched step that carries it."""
        if self.inflight_refs >= MAX_INFLIGHT:
            raise AssertionError(f"sequence {self.number} is in {self.inflight_refs} steps already")
        self.inflight_refs += 1

    def release(self) -> None:
        """Count down after a step that carried it was committed, or failed to launch."""
        if self.inflight_refs <= 0:
            raise AssertionError(f"sequence {self.number} is in no step")
        self.inflight_refs -= 1
