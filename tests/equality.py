"""Random requests on real arithmetic: the engine answers as the oracle at any depth.

The model has a grid of 4 x 4 patches, random weights, and float64 numbers, in which the order of sums does not turn a
choice. Everything else is drawn from the seed of a scene: images, skills, settings, grammars in which each token
changes what is allowed next, pages that run out, cancels, the shape of batches.
"""

import copy
import dataclasses
import functools
import random
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from photonlite.config import Batching, Encoding, EngineConfig, KvDtype, Precision
from photonlite.engine.engine import Engine
from photonlite.errors import RequestCancelledError
from photonlite.grammar.automata.tables import SpecialIds
from photonlite.grammar.decoding.automaton import Automaton
from photonlite.grammar.spec import GrammarSpec
from photonlite.images.crops import ImageCrops
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.moondream.prompts import MoondreamPrompts
from photonlite.models.precisions import Precisions
from photonlite.models.quantised import prepare, quantise_layers
from photonlite.request import Allowed, Grammar, Request, SamplingSettings, Token
from photonlite.runner.buffers import kv_format
from photonlite.runner.memory import bytes_of_page
from photonlite.sequence import Sequence
from photonlite.skills import caption, detect, point, query, segment
from photonlite.skills.typed.choices import ChoiceQuestion
from photonlite.skills.typed.forms import ChoicesForm, TextForm, form_of
from photonlite.skills.typed.question import TypedQuestion
from tests.compiling import Workshop
from tests.guard import GUARD
from tests.plain import PlainEngine
from tests.tiny import CPU, EXPERTS, tiny_config, tiny_model, tiny_prompts

_END, _COORDINATE, _SIZE, _VOCABULARY = 0, 5, 6, 272
_TILINGS = ((1, 1), (1, 2), (2, 1), (2, 3), (1, 4))
_KINDS = ("nano", "moondream2", "moondream3")
_PLACE = {"anyOf": [{"type": "object", "format": "box"}, {"type": "object", "format": "point"}, {"type": "null"}]}
_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": _PLACE, "maxItems": 3}, "n": {"type": "integer"}},
    "required": ["n"],
}


class Chance:
    """A grammar in which every token and its numbers decide what may follow.

    Args:
        seed: Of the decisions.
        budget: Tokens at most.
    """

    def __init__(self, seed: int, budget: int) -> None:
        self._state = seed
        self._left = budget
        self._reason: str | None = None
        self._text: tuple[int, ...] = ()  # what is left of a text without choice, behind the next token
        self._announced: tuple[int, ...] = ()  # a text that probably follows the next token
        self._allowed = self._draw()

    @property
    def allowed(self) -> Allowed:
        return self._allowed

    @property
    def ahead(self) -> Allowed | None:
        return None

    @property
    def expected_run(self) -> tuple[int, ...]:
        return self._text or self._announced

    @property
    def run(self) -> tuple[int, ...]:
        probe, found = copy.copy(self), list[int]()
        while probe.finish_reason is None and (only := _forced_word(probe.allowed)) is not None:
            found.append(only)
            probe.accept(Token(only))
        return tuple(found)

    @property
    def finish_reason(self) -> str | None:
        return self._reason

    def accept(self, token: Token) -> None:
        if self._reason is not None or not self._allowed.permits(token.id):
            raise ValueError(f"{token} is not allowed here: {self._allowed}")
        self._left -= 1
        self._state = hash((self._state, token.id, token.values))
        ended = token.id == _END or self._state % 31 == 0
        self._reason = "stop" if ended else "length" if self._left == 0 else None
        self._allowed = self._draw()

    def _draw(self) -> Allowed:
        dice = random.Random(self._state)
        text = self._text or (self._announced if dice.random() < 0.7 else ())
        self._text = text[1:]
        says = not self._text and dice.random() < 0.5
        words = tuple(dice.randrange(7, _VOCABULARY) for _ in range(dice.randint(1, 6)))
        self._announced = words if says else ()
        if text:
            return Allowed(text[:1])
        ids = tuple(dice.sample(range(7, _VOCABULARY), dice.randint(2, 40)))
        return dice.choice(
            (
                Allowed((_COORDINATE,), coordinate=_COORDINATE),
                Allowed((_SIZE,), size=_SIZE),
                Allowed((_COORDINATE, _END), coordinate=_COORDINATE, end=_END),
                Allowed((_COORDINATE, _SIZE, *ids), coordinate=_COORDINATE, size=_SIZE),
                Allowed((*ids, _END)),
                Allowed(ids),
                Allowed(suppressed=ids),
                Allowed(suppressed=ids, coordinate=_COORDINATE),
                Allowed((dice.randrange(7, _VOCABULARY),)),
                Allowed(mask=_bits(*ids)),
                Allowed(mask=_bits(_COORDINATE, *ids), coordinate=_COORDINATE),
                Allowed(mask=_bits(_COORDINATE, _SIZE, *ids), coordinate=_COORDINATE, size=_SIZE),
                Allowed(ids, scored=ids),
                Allowed((_COORDINATE, *ids), coordinate=_COORDINATE, scored=ids[1:]),
            )
        )


def _forced_word(allowed: Allowed) -> int | None:
    """Return the only id that may stand there, if it is a word without scores."""
    only = allowed.ids[0] if allowed.ids is not None and len(allowed.ids) == 1 else None
    return None if allowed.scored or only in (_COORDINATE, _SIZE) else only


def _bits(*ids: int) -> npt.NDArray[np.int32]:
    numbers = [sum(1 << one % 32 for one in ids if one // 32 == word) for word in range(-(-_VOCABULARY // 32))]
    return np.array(numbers, np.uint32).view(np.int32)


@dataclass(eq=False)
class CutImage:
    key: str
    crops: ImageCrops
    size: tuple[int, int] | None = (30, 40)
    failure: BaseException | None = None

    def request_crops(self, pages: object = None) -> None:
        raise AssertionError("they are cut already")

    def drop_crops(self) -> None: ...


@dataclass(eq=False)
class Collector:
    """Collects tokens and the end of a request; cancels it after `cancel_at` tokens."""

    engine: Engine
    cancel_at: int | None
    tokens: list[Token] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    sequence: Sequence | None = None
    ends: int = 0

    def on_token(self, token: Token) -> None:
        self.tokens.append(token)
        if len(self.tokens) == self.cancel_at and self.sequence is not None:
            self.engine.cancel(self.sequence)

    def on_finish(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.ends += 1
        self.done.set()


@dataclass(frozen=True)
class Asked:
    """Makes equal requests: a grammar has state, so each run needs a new one."""

    kind: str
    settings: SamplingSettings
    image: int | None
    seed: int
    cancel_at: int | None

    def request(self, config: object) -> Request:
        # No answer depends on who goes first.
        return dataclasses.replace(self._request(config), realtime=self.seed % 5 < 2)

    def _request(self, config: object) -> Request:
        prompts = tiny_prompts(config)  # type: ignore[arg-type]
        if self.kind == "chance":
            base = query.build(
                prompts,
                query.read_question(
                    prompts,
                    "why?",
                    images=int(self.image is not None),
                    reasoning=False,
                    refs=None,
                    settings=self.settings,
                ),
            )
            budget = min(base.budget, 40)
            return Request("query", base.prompt, Chance(self.seed, budget), budget, self.settings)
        refs = [(0.25, 0.5), (0.1, 0.2, 0.3, 0.4)] if self.seed % 3 == 0 else None
        if self.kind in ("schema", "choices"):
            return self._typed(prompts)
        if self.kind == "detect":
            return detect.build(prompts, "mug", settings=self.settings)
        if self.kind == "point":
            return point.build(prompts, "mug", refs=refs, settings=self.settings)
        if self.kind == "segment":
            return segment.build(prompts, "mug", refs=refs, settings=self.settings)
        if self.kind == "caption":
            return caption.build(prompts, "short", settings=self.settings)
        return query.build(
            prompts,
            query.read_question(
                prompts,
                "why? " * (1 + self.seed % 4),
                images=int(self.image is not None),
                reasoning=self.kind == "reasoning",
                refs=refs if self.image is not None else None,
                settings=self.settings,
            ),
        )

    def _typed(self, prompts: MoondreamPrompts) -> Request:
        asked = query.read_question(
            prompts,
            "why?",
            images=int(self.image is not None),
            reasoning=self.seed % 7 == 0,
            refs=None,
            settings=dataclasses.replace(self.settings, max_tokens=40),
        )
        if self.kind == "choices":
            return ChoiceQuestion(prompts, asked, ChoicesForm(("yes", "no", "now", "nowhere"))).bind(None)
        form = form_of(_SCHEMA, None, None)
        assert isinstance(form, TextForm)
        return TypedQuestion(prompts, asked, form).bind(_automaton(form.spec))


@functools.cache
def _automaton(spec: GrammarSpec) -> Automaton:
    """Return the compiler of the vocabulary that all scenes share."""
    prompts = tiny_prompts(tiny_config())
    return Workshop(prompts.pieces(), SpecialIds(_END, _COORDINATE, _SIZE, _VOCABULARY)).automaton(spec)


@dataclass(frozen=True)
class Way:
    """How an engine runs a scene."""

    depth: int
    runs: bool = True
    swaps: bool = False
    batching: Batching = "turns"
    encoding: Encoding = "turns"


class Scene:
    """Requests, images and a model drawn from a seed.

    Args:
        seed: Of everything.
        count: Requests.
        kv_dtype: Of keys and values.
        weights: Precision of the decoder's linear layers; None for the model's type.
    """

    def __init__(self, seed: int, count: int, kv_dtype: KvDtype = "auto", weights: Precision | None = None) -> None:
        self.dice = random.Random(seed)
        self.kind = self.dice.choice(_KINDS[:2] if weights else _KINDS)  # experts are not quantised
        vision = {"crop_size": 16, "enc_patch_size": 4}
        raw = "photonlite_nano" if self.kind == "nano" else self.kind
        text = EXPERTS if self.kind == "moondream3" else {}
        sections = {"vision": vision, "text": text}
        if weights is not None:  # rows that kernels of 4 bits take
            text = {"dim": 64, "ff_dim": 64, "n_heads": 8}
            sections = {"vision": vision | {"proj_out_dim": 64}, "text": text, "region": {"dim": 64}}
        self.config = tiny_config(raw, **sections)
        self.model = _weights(self.config, seed % 7, weights)
        self.kv = kv_format(kv_dtype, self.model, CPU, torch.float64)
        self.crops = [self._crops() for _ in range(5)]
        self.asked = [self._ask() for _ in range(count)]
        self.pages = self.dice.choice((None, 1.0, 1.0, 1.4))
        self.options = {
            "kv_dtype": kv_dtype,
            "max_batch": self.dice.choice((1, 3, 5, 8, 8)),
            "page_size": self.dice.choice((2, 4, 8, 16)),
            "prefix_caching": self.dice.random() < 0.9,
            "launch_budget_s": self.dice.choice((1e-6, 0.004)),
            "max_pause_s": self.dice.choice((0.0, 10.0)),
            "max_crops": self.dice.choice((1, 3, 16)),
            "max_prefill_tokens": self.dice.choice((1, 60, 4096)),
        }
        self.mixed_tokens = self.dice.choice((None, 1, 6, 40))

    def expected(self) -> list[tuple[Token, ...]]:
        """Return the answers of the oracle, one request after another."""
        oracle = PlainEngine(self.model, CPU, torch.float64, self.kv if self.kv.scales else None)
        return [
            oracle.generate(
                asked.request(self.config), None if asked.image is None else self.crops[asked.image]
            ).complete().tokens
            for asked in self.asked
        ]  # fmt: skip

    def answers(self, way: "Way") -> Iterator[tuple[Asked, Collector]]:
        """Run all requests on the engine at once; returns each with its outcome."""
        swap_bytes = 4 * (self._cache_bytes() or 0) if way.swaps else 0
        memory = {"kv_cache_bytes": self._cache_bytes(), "swap_bytes": swap_bytes}
        mixed_tokens = self.mixed_tokens if way.batching == "mixed" else None
        batching = {"batching": way.batching, "mixed_tokens": mixed_tokens}
        more = {"encoding": way.encoding if self.options.get("tensor_parallel", 1) == 1 else "turns", **self.options}
        config = EngineConfig(depth=way.depth, forced_runs=way.runs, **memory, **batching, **more)
        engine = Engine(self.model, CPU, torch.float64, config)
        collectors = []
        for asked in self.asked:
            collector = Collector(engine, asked.cancel_at)
            image = None if asked.image is None else CutImage(str(asked.image), self.crops[asked.image])
            collector.sequence = engine.submit(asked.request(self.config), collector, () if image is None else (image,))
            if asked.cancel_at == 0:
                engine.cancel(collector.sequence)
            collectors.append(collector)
        for asked, collector in zip(self.asked, collectors, strict=True):
            assert collector.done.wait(GUARD), f"{asked} got no answer"
            yield asked, collector
        self.metrics = engine.metrics
        engine.close()

    def _cache_bytes(self) -> int | None:
        """Return a cache for so many longest requests, plus a few pages."""
        if self.pages is None:
            return None
        size = int(self.options["page_size"])
        longest = -(-self.model.shape.max_context // size)
        return int(self.pages * longest + 3) * bytes_of_page(self.model.shape, self.kv.dtype, size)

    def _crops(self) -> ImageCrops:
        rows, columns = tiling = self.dice.choice(_TILINGS)
        count = 1 if tiling == (1, 1) else 1 + rows * columns
        pixels = np.random.default_rng(self.dice.getrandbits(32)).integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
        return ImageCrops(pixels, tiling)

    def _ask(self) -> Asked:
        dice = self.dice
        kinds = ("chance", "chance", "detect", "point", "segment", "caption", "query", "reasoning", "schema", "choices")
        kind = dice.choice(kinds)
        settings = SamplingSettings(
            temperature=dice.choice((0, 0, 0.5, 2.0)),  # float32 holds them exactly
            top_p=dice.choice((1.0, 0.75)),
            max_tokens=dice.choice((1, 2, 7, 40)),
            max_objects=dice.choice((1, 2, 15)),
            seed=dice.randrange(1000),
        )
        if (settings.seed or 0) % 3 == 0:
            settings = dataclasses.replace(settings, repetition_penalty=1.5 if (settings.seed or 0) % 2 else 0.5)
        imageless = kind in ("chance", "query") and dice.random() < 0.3
        cancel_at = dice.randrange(6) if dice.random() < 0.1 else None
        return Asked(kind, settings, None if imageless else dice.randrange(5), dice.getrandbits(30), cancel_at)


WAYS = (
    Way(1),
    Way(2),
    Way(2, runs=False, encoding="beside"),
    Way(2, batching="mixed", encoding="beside"),
    Way(2, swaps=True),
    Way(1, swaps=True, batching="mixed", encoding="beside"),
)


def check_scene(
    seed: int,
    count: int,
    kv_dtype: KvDtype = "auto",
    ways: Iterable[Way] = WAYS,
    weights: Precision | None = None,
) -> dict[str, int]:
    """Compare ways of running a scene with the oracle; returns counts of exercised events."""
    return check(Scene(seed, count, kv_dtype, weights), f"seed {seed}", ways)


def check(scene: Scene, name: str, ways: Iterable[Way] = WAYS) -> dict[str, int]:
    """As `check_scene`, of a scene that a name tells from others in messages."""
    expected = scene.expected()
    counted = ("tokens", "cancelled", "preemptions", "swaps", "zombies", "hits", "encodes", "forced", "mixed")
    seen = dict.fromkeys(counted, 0)
    may_swap = scene.pages is not None and scene.options.get("tensor_parallel", 1) == 1
    for way in (way for way in ways if may_swap or not way.swaps):
        for (asked, got), wanted in zip(scene.answers(way), expected, strict=True):
            where = f"{name}, {way}, {asked}"
            assert got.ends == 1, where
            error = None if got.sequence is None else got.sequence.error
            if isinstance(error, RequestCancelledError) and asked.cancel_at is not None:
                seen["cancelled"] += 1
                wanted = wanted[: len(got.tokens)]
            else:
                assert error is None, where
            assert [_exact(token) for token in got.tokens] == [_exact(token) for token in wanted], where
            # One comparison of each answer: three for each token took a tenth of the time.
            np.testing.assert_allclose(_rounded(got.tokens), _rounded(wanted), atol=1e-5, err_msg=where)
        seen["tokens"] += scene.metrics.tokens
        seen["preemptions"] += scene.metrics.preemptions
        seen["swaps"] += scene.metrics.swaps
        seen["zombies"] += scene.metrics.zombie_rows * (way.depth == 2)
        seen["hits"] += scene.metrics.prefix_hits
        seen["encodes"] += scene.metrics.steps["encode"]
        seen["forced"] += scene.metrics.forced_tokens
        seen["mixed"] += scene.metrics.steps["mixed"]
        assert way.runs or scene.metrics.forced_tokens == 0
    return seen


def _exact(token: Token) -> tuple[object, ...]:
    return token.id, token.values, len(token.masses), len(token.scores)


def _rounded(tokens: Iterable[Token]) -> list[float]:
    return [number for token in tokens for number in (token.probability, *token.masses, *token.scores)]


def _weights(config: object, seed: int, weights: Precision | None = None) -> MoondreamModel:
    model = tiny_model(config, seed).double()  # type: ignore[arg-type]
    quantise_layers(model, Precisions(weights))
    prepare(model, CPU)
    return model


_: type[Grammar] = Chance
