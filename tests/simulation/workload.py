"""What a seed draws: a configuration, and requests with all that will happen to them."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from photonlite.config import RouterRule
from photonlite.grammar.automata.tables import words
from photonlite.image_inputs import PrefixPages, StoredImage, UncutImage
from photonlite.request import IMAGE, Token
from photonlite.runner.slots import SlotShape
from photonlite.scheduler.limits import Limits
from photonlite.scheduler.parts import PartSpeeds, PartTable
from tests.simulation.grammar import MakeGrammar, draw_grammar, with_fault
from tests.simulation.hostile import Hostility, draw_hostility
from tests.simulation.model import COORDINATE, COORDINATES, SIZE, SIZES, VOCAB_SIZE, WORDS

_CALLS = {
    "launch": 60,
    "padded": 40,
    "upload": 120,
    "encode": 8,
    "prefill": 12,
    "decode": 40,
    "finalize": 60,
    "download": 60,
    "collect": 60,
}
"""Kinds of calls that may fail, and how many of the first ones may."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """How the engine is configured, and what fails.

    Attributes:
        depth: Of the pipeline.
        max_batch: Sequences that run at a time.
        pending_rows: Sequences that may have a row of the pending table.
        page_size: Positions of a page.
        pages: Of the KV cache, the scratch page among them.
        max_pages: Of a page table.
        prefix_length: Positions of BOS and image.
        prefix_caching: Whether prefixes are kept.
        sizes: Batch sizes that decode steps are padded to.
        max_prefill_tokens: Of a launch.
        max_crops: Of a launch.
        max_jobs: Images whose features are on the device at a time.
        max_image_bytes: Of uncut images that one launch copies.
        launch_budget_s: Of the virtual clock, for encode and prefill launches between two decode steps.
        max_pause_s: The same where many wait.
        forced_runs: Whether tokens that must follow are appended at once.
        mixes: Whether prompts ride with decode steps.
        mixed_tokens: Of such a step; None for what the launch budget has time for.
        encodes_beside: Whether images are encoded beside the other steps.
        inside: Whether images stand inside prompts, and attention is causal everywhere.
        staged_pages: Stored ones on the device whose prompts have not begun.
        router: Decides how many sequences run.
        router_budget: Share of the pages that these may need.
        swap_pages: Of host memory.
        free_copies: Whether copies to it and back count as taking no time.
        cancels: Chance of a cancel at each of some ten moments of a tick.
        pushes: Chance that the device runs an operation at such a moment, on top of what its temper makes it run.
        failures: For each kind of call, numbers of calls that fail.
        spoiled: Chance that a row's numbers turn into NaNs.
        prefix_lm: Whether whole prompts attend in both directions.
        stored: Chance that the embeddings of an image that was encoded before can be read in place of its crops.
        deadly: The call from which on every launch fails; None for never.
        adapter_slots: Adapters that are on the device at a time.
        adapter_delay: Ticks that loading one takes at most.
        adapter_faults: Chance that one cannot be loaded.
    """

    depth: int
    max_batch: int
    pending_rows: int
    page_size: int
    pages: int
    max_pages: int
    prefix_length: int
    prefix_caching: bool
    sizes: tuple[int, ...]
    max_prefill_tokens: int
    max_crops: int
    max_jobs: int
    max_image_bytes: int
    launch_budget_s: float
    max_pause_s: float
    forced_runs: bool
    router: RouterRule
    router_budget: float
    swap_pages: int
    free_copies: bool
    cancels: float
    pushes: float
    failures: dict[str, frozenset[int]]
    spoiled: float
    deadly: int | None
    prefix_lm: bool
    stored: float
    adapter_slots: int
    adapter_delay: int
    adapter_faults: float
    mixes: bool
    mixed_tokens: int | None
    encodes_beside: bool
    inside: bool
    staged_pages: int

    @property
    def divides(self) -> bool:
        """Whether the encoder may have a part of the device, and prompts about its images too."""
        return self.encodes_beside and self.pages % 2 == 0  # without a draw, which would change all later ones

    @property
    def realtime_part(self) -> bool:
        """Whether bulk images keep to the encoder's part while real-time requests are near."""
        return self.divides and self.max_crops != 2  # as above

    def limits(self) -> Limits:
        """Return the scheduler's limits."""
        return Limits(
            self.max_batch,
            self.pending_rows,
            self.max_prefill_tokens,
            self.max_crops,
            self.max_jobs,
            self.max_image_bytes,
            launch_budget_s=self.launch_budget_s,
            max_pause_s=self.max_pause_s,
            max_positions=self.max_pages * self.page_size,
            vocab_size=VOCAB_SIZE,
            forced_runs=self.forced_runs,
            router=self.router,
            router_budget=self.router_budget,
            adapter_slots=self.adapter_slots,
            swap_pages=self.swap_pages,
            mixes=self.mixes,
            mixed_tokens=self.mixed_tokens,
            encodes_beside=self.encodes_beside,
            parts=PartTable({8: PartSpeeds(0.9, 0.9)}) if self.divides else None,
            realtime_part=self.realtime_part,
            staged_pages=self.staged_pages,
        )

    def slots(self, longest: int) -> SlotShape:
        """Return the runner's shape, for requests of at most so many positions."""
        return SlotShape(
            max_rows=self.max_batch,
            max_tokens=max(longest + self.max_batch, self.max_prefill_tokens),
            page_size=self.page_size,
            max_pages=self.max_pages,
            mask_words=words(VOCAB_SIZE),
            pending_rows=self.pending_rows + 1,
        )

    def fits(self, positions: int, *, kept: Sequence[int]) -> bool:
        """Whether a request of so many positions can run alone, where the prefix cache keeps it up to some of them."""
        tails = sum(end % self.page_size != 0 for end in kept) if self.prefix_caching else 0
        return -(-positions // self.page_size) + tails < self.pages


@dataclass(frozen=True, slots=True)
class CutCrops:
    """Crops: one pixel each, which names it."""

    pixels: npt.NDArray[np.uint8]
    tiling: tuple[int, int]

    @property
    def numbers(self) -> list[int]:
        """The crops as the fake model sees them."""
        return [int.from_bytes(crop.tobytes(), "little") for crop in self.pixels]

    def uncut(self) -> UncutImage:
        """The same as an image of which the device makes the crops."""
        rows, columns = (1, max(1, len(self.pixels) - 1))
        return UncutImage(self.pixels.reshape(-1), (len(self.pixels), 1), (rows, columns), (), ())


class LateImage:
    """An image that is cut some time after its crops are requested.

    Args:
        key: Of its content.
        cut: Its crops, or what the device makes them of, when they are there.
        delay: Ticks from the first question on.
        failure: What comes instead of the crops; None where they come.
        ask: Is called at the first question.
        restore: Returns what is stored of an image and can be read, given the pages that are of use.
    """

    size = None

    def __init__(
        self,
        key: str,
        cut: CutCrops | UncutImage,
        delay: int,
        failure: Exception | None,
        ask: Callable[["LateImage"], None],
        restore: Callable[[PrefixPages | None], StoredImage | None] = lambda pages: None,
    ) -> None:
        self.key = key
        self.delay = delay
        self.crops: CutCrops | UncutImage | StoredImage | None = None
        self._restore = restore
        self._pages: PrefixPages | None = None
        self.failure: Exception | None = None
        self._cut = cut
        self._failure = failure
        self._ask: Callable[[LateImage], None] | None = ask
        self._asked = ask

    def request_crops(self, pages: PrefixPages | None) -> None:
        if self._ask is not None:
            self._pages = pages
            ask, self._ask = self._ask, None
            ask(self)

    def drop_crops(self) -> None:
        """Drop the crops; they arrive again when requested, as late as the first time."""
        if self.crops is not None:
            self.crops, self._ask = None, self._asked

    def arrive(self) -> None:
        """Deliver the crops, or the failure."""
        self.failure = self._failure
        if self._failure is None:
            self.crops = self._restore(self._pages) or self._cut


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to come.

    Attributes:
        at: Tick of its arrival.
        image: Number of its image; None for text alone.
        prompt: What follows it.
        budget: Tokens at most.
        grammar: Builds its grammar.
        temperature: Above 0, every choice draws.
        top_p: Share of the allowed ids that draws consider.
        cache_salt: Whose it is.
        seed: Of its draws.
        delay: Ticks that cutting its image takes.
        fails: Whether its image cannot be cut.
        deadline: Ticks after which its answer is worthless; None for never.
        realtime: Whether it comes before bulk work.
        hostility: Which of its own objects raises; None where none does.
        adapter: Which one answers, by number; 0 for none.
        further: What is asked about the same image, by the same tenant, when it has ended.
    """

    at: int
    image: int | None
    prompt: tuple[Token, ...]
    budget: int
    grammar: MakeGrammar
    temperature: float
    top_p: float
    cache_salt: str
    seed: int
    delay: int
    fails: bool
    deadline: float | None
    realtime: bool
    hostility: Hostility | None = None
    adapter: int = 0
    further: "tuple[Ask, ...]" = ()

    def as_bulk(self) -> "Ask":
        """Return the same request, and its further ones, as bulk work."""
        return dataclasses.replace(self, realtime=False, further=tuple(one.as_bulk() for one in self.further))

    @property
    def penalized(self) -> bool:
        """Whether it has a repetition penalty."""
        return self.seed % 4 == 0

    @property
    def work(self) -> int:
        """Tokens of it and all that follows, and something for each image."""
        return self.budget + 8 + sum(one.work for one in self.further)


@dataclass(frozen=True, slots=True)
class Workload:
    """All requests of a simulation, in the order of their arrival, and the images they are about."""

    asks: list[Ask]
    images: list[CutCrops] = field(default_factory=list)


class Standing(NamedTuple):
    """Where an image stands inside a prompt."""

    image: int
    start: int
    count: int


def lay_out(ask: Ask, images: int, prefix_length: int) -> tuple[tuple[Token, ...], list[Standing]]:
    """Put an ask's image inside its prompt, and for some images another one behind it.

    Both together take no more positions than a leading image does.
    """
    words, tokens, standing = list(ask.prompt), list[Token](), list[Standing]()
    most = max(1, (prefix_length - 1) // 2)
    if ask.image is not None:
        chosen = [(ask.image, ask.image % 2)]
        if ask.image != 1 and prefix_length > 2:
            chosen.append(((ask.image + 1) % images, ask.image % 2))
        for image, before in chosen:
            before = max(0, min(before, len(words) - 1))  # a word follows the last image
            tokens += words[:before]
            del words[:before]
            standing.append(Standing(image, len(tokens), max(1, most - image % 2)))
            tokens += [IMAGE] * standing[-1].count
    return (*tokens, *words), standing


def draw_scenario(random: Random, longest: int, prefix_length: int) -> Scenario:
    """Draw a configuration for requests of at most so many positions."""
    page_size = random.choice((1, 2, 4, 4, 8))
    max_batch = random.choice((1, 2, 3, 4, 8, 12, 12, 16, 20))
    alone = -(-longest // page_size)
    few, many, plenty = alone + random.randrange(-1, alone + 2), alone * (max_batch + 3), alone * 50
    usable = random.choices((few, many, plenty), (6, 3, 1))[0]
    wounded = random.random() < 0.35
    chosen = random.sample(list(_CALLS), random.randrange(1, 5)) if wounded else []
    failures = {kind: frozenset(random.sample(range(_CALLS[kind]), random.randrange(1, 4))) for kind in chosen}
    drawn = Scenario(
        depth=random.choice((1, 2, 2, 2)),
        max_batch=max_batch,
        pending_rows=max_batch + random.choice((0, 1, max_batch, max_batch)),
        page_size=page_size,
        pages=max(2, usable + 1),
        max_pages=alone + random.randrange(2),
        prefix_length=prefix_length,
        prefix_caching=random.random() < 0.8,
        sizes=random.choice(((), (1, 2, 4, 8), (2, 6), (1, 3, 8, 16))),
        max_prefill_tokens=random.choice((8, 20, 60, 400)),
        max_crops=random.choice((1, 2, 3, 8)),
        max_jobs=random.choice((1, 2, 8)),
        max_image_bytes=random.choice((sys.maxsize, 9, 24)),
        launch_budget_s=random.choice((0.0003, 0.002, 0.02)),
        max_pause_s=random.choice((0.0, 0.01, 0.1)),
        forced_runs=random.random() < 0.9,
        router=random.choice(("adaptive", "adaptive", "static", "greedy", "greedy", "reserve")),
        router_budget=random.choice((0.5, 1.0, 1.5)),
        free_copies=random.random() < 0.7,
        swap_pages=random.choice((0, 2, alone, 20 * alone, 20 * alone)),
        cancels=random.choice((0.0, 0.002, 0.006, 0.02)),
        pushes=random.choice((0.0, 0.0, 0.3)),
        failures=failures,
        spoiled=0.004 if random.random() < 0.2 else 0.0,
        deadly=random.randrange(60) if random.random() < 0.03 else None,
        prefix_lm=random.random() < 0.2,
        stored=random.choice((0.0, 0.5, 0.9)),
        adapter_slots=random.choice((1, 1, 2, 3, 8)),
        adapter_delay=random.choice((0, 3, 30)),
        adapter_faults=random.choice((0.0, 0.0, 0.2)),
        mixes=random.random() < 0.5,
        mixed_tokens=random.choice((None, 1, 4, 12, 40)),
        encodes_beside=random.random() < 1 / 3,
        inside=False,
        staged_pages=random.choice((sys.maxsize, sys.maxsize, 2, 6)),
    )
    if drawn.prefix_lm or random.random() < 2 / 3:
        return drawn
    return dataclasses.replace(drawn, inside=True, stored=random.choice((0.5, 0.9, 1.0)))


def draw_workload(random: Random) -> tuple[Workload, int, int]:
    """Draw requests; returns the longest one's positions and the length of images' prefixes too."""
    prefix_length = random.randrange(2, 14)
    images = [_draw_crops(random) for _ in range(random.randrange(1, 6))]
    longest_prompt, longest_answer = random.choice((2, 6, 12)), random.choice((3, 8, 16, 40))
    openings = [[_draw_token(random) for _ in range(longest_prompt)] for _ in range(3)]
    share_of_images = random.choice((0.0, 0.5, 0.8, 1.0))
    faults, late = random.choice((0.0, 0.05, 0.2)), random.choice((0, 5, 40))
    hurried = random.choice((0.0, 0.0, 0.1))
    follow = random.choice((0.0, 0.0, 0.3))
    crowded = random.random() < 0.15
    share_of_realtime = random.choice((0.0, 0.1, 0.3, 0.6, 0.95))
    share_of_hostile = random.choice((0.0, 0.0, 0.05, 0.3))
    adapters = random.choice((0, 0, 1, 2, 5, 12))
    tenants = random.choice((("",), ("",), ("", "one"), ("one", "other", "third")))
    asks: list[Ask] = []
    at = 0
    for _ in range(random.choice((4, 8, 12, 24))):
        for _ in range(random.randrange(1, 20 if crowded else 6)):
            image = random.randrange(len(images)) if random.random() < share_of_images else None
            alone = image is not None and random.random() < 0.12
            opening = random.choice(openings)
            prompt = opening[: random.randrange(1, longest_prompt + 1)]
            prompt += [_draw_token(random) for _ in range(random.randrange(longest_prompt - len(prompt) + 1))]
            budget = 0 if alone else random.randrange(1, longest_answer + 1)
            grammar = draw_grammar(random, max(1, budget))
            if budget and random.random() < faults:
                grammar = with_fault(random, grammar, budget)
            realtime = random.random() < share_of_realtime
            asks.append(
                Ask(
                    at,
                    image,
                    () if alone else tuple(prompt),
                    budget,
                    grammar,
                    0.7 if random.random() < 0.2 else 0.0,
                    random.choice((1.0, 1.0, 0.25, 0.75)),  # float32 holds them
                    random.choice(tenants),
                    random.getrandbits(30),
                    random.randrange(late + 1),
                    random.random() < 0.04,
                    _draw_deadline(random, hurried, realtime),
                    realtime,
                    draw_hostility(random) if random.random() < share_of_hostile else None,
                    random.randrange(adapters + 1),
                )
            )
            if not alone and asks[-1].hostility is None and random.random() < follow:
                asks[-1] = _followed(random, asks[-1], depth=2)
        at += random.choice((0, 1, 4, 20))
    return Workload(asks, images), prefix_length + longest_prompt + longest_answer, prefix_length


def _followed(random: Random, ask: Ask, depth: int) -> Ask:
    """Draw what follows a request: some of it about a shorter prompt, some of it followed itself."""
    if depth == 0:
        return ask
    further = []
    for _ in range(random.randrange(1, 4)):
        prompt, budget = ask.prompt[: random.randrange(1, len(ask.prompt) + 1)], random.randrange(1, ask.budget + 1)
        grammar, seed = draw_grammar(random, budget), random.getrandbits(30)
        branch = dataclasses.replace(ask, prompt=prompt, budget=budget, grammar=grammar, seed=seed)
        further.append(_followed(random, branch, depth - 1) if random.random() < 0.3 else branch)
    return dataclasses.replace(ask, further=tuple(further))


def _draw_deadline(random: Random, hurried: float, realtime: bool) -> float | None:
    if random.random() >= hurried:
        return None
    # A tick is a second, and launches take milliseconds of the device: only such a deadline can be hopeless in time.
    return random.random() * 0.01 if realtime and random.random() < 0.5 else float(random.randrange(80))


def _draw_crops(random: Random) -> CutCrops:
    count = random.randrange(1, 7)
    pixels = np.frombuffer(random.randbytes(3 * count), np.uint8).reshape(count, 1, 1, 3)
    return CutCrops(pixels, (1, count))


def _draw_token(random: Random) -> Token:
    kind = random.random()
    if kind < 0.05:
        return Token(COORDINATE, (random.choice(COORDINATES),))
    if kind < 0.1:
        return Token(SIZE, (random.choice(SIZES), random.choice(SIZES)))
    return Token(random.choice(WORDS))
