"""A step executor over the production model runner on a device that does everything at once, driven by hand."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from photonlite import sequence as engine_sequence
from photonlite.batch import BatchItem, CropGroup, EncodeJob, PageCopy, ScheduledBatch, Step
from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.config import KvDtype
from photonlite.device.base import Array
from photonlite.device.cuda import CudaDevice
from photonlite.grammar.automata.tables import words
from photonlite.image_inputs import UncutImage, read_crops
from photonlite.images.crops import ImageCrops
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.fused.decode import FusedDecode
from photonlite.models.moondream.fused.prefill import FusedPrefill
from photonlite.models.moondream.model import MoondreamModel
from photonlite.request import Allowed, Request, SamplingSettings, Token
from photonlite.runner.buffers import kv_format
from photonlite.runner.graphs import GraphOptions
from photonlite.runner.slots import SlotShape
from photonlite.runner.step_executor import StepExecutor
from photonlite.runner.stored_images import ImageKeeper
from photonlite.runner.torch_model_runner import FusedParts, RunnerLimits, Spread, TorchModelRunner
from tests.cache.sequences import NamedImage
from tests.plain import PlainRunner, Sampler
from tests.tiny import CPU, tiny_model

COORDINATE, SIZE = Allowed((5,), coordinate=5), Allowed((6,), size=6)
OBJECT_OR_END = Allowed((5, 0), coordinate=5, end=0)
TEXT = Allowed(suppressed=(0,))


class Anybody:
    """The leader of all jobs."""

    cache_salt = ""


_ANYBODY: Any = Anybody()


class Mark:
    done = True

    def wait(self) -> None: ...


class Immediate:
    """A device and each of its streams: work is done when it has been given."""

    def __init__(self) -> None:
        self.compute = self.upload = self.download = self.encode = self

    def run(self, work: Callable[[], None]) -> None:
        with torch.inference_mode():
            work()

    def record(self, event: Any) -> None: ...

    def wait(self, event: Any) -> None: ...

    def event(self) -> Mark:
        return Mark()

    def time_of(self, event: Any) -> float:
        return 0.0

    def elapsed(self, start: Any, end: Any) -> float:
        return 0.0

    def host_array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        return np.zeros(shape, dtype)

    def close(self) -> None: ...


class Spied:
    """A model whose heads tell which hidden states they were given."""

    def __init__(self, model: MoondreamModel) -> None:
        self._model = model
        self.hidden = torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._model, name)
        if not name.endswith("logits"):
            return found

        def head(hidden: Tensor) -> Tensor:
            self.hidden = hidden.clone()
            return found(hidden)

        return head


class Played:
    """Instead of a graph: the work itself, again."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        return work

    def used_bytes(self) -> int:
        return 0


@dataclass(eq=False)
class Story:
    """A request, and what is allowed at each of its tokens."""

    prompt: tuple[Token, ...]
    allowed: tuple[Allowed, ...]
    crops: ImageCrops | None = None
    sequence: engine_sequence.Sequence = field(init=False)


class Rig:
    """Hands out pages in random order; every page holds NaN until it is written."""

    def __init__(
        self,
        config: MoondreamConfig,
        dtype: torch.dtype,
        *,
        sizes: tuple[int, ...] = (),
        page_size: int = 4,
        device: torch.device = CPU,
        packed: bool = False,
        fused: bool = False,
        kv_dtype: KvDtype = "auto",
        spread: Spread | None = None,
        keeper: ImageKeeper | None = None,
        divided: bool = False,
    ) -> None:
        self.device = device
        self.model = tiny_model(config).to(device, dtype)
        prompts = FusedPrefill(config.text, self.model.packed_blocks) if packed else None
        steps = FusedDecode(config.text, self.model.packed_blocks) if fused else None
        kv = kv_format(kv_dtype, self.model, device, dtype)
        shape = self.model.shape
        self.page_size = page_size
        self.spied = Spied(self.model)
        max_pages = -(-shape.max_context // page_size)
        slots = SlotShape(
            max_rows=8,
            max_tokens=300,
            page_size=page_size,
            max_pages=max_pages,
            mask_words=words(shape.vocab_size),
            pending_rows=17,
        )
        pages = 8 * max_pages
        self.model_runner = TorchModelRunner(  # type: ignore[arg-type]
            self.spied, device, dtype, RunnerLimits(slots, pages, 2, 8, 1 << 16, divided, divided),
            fused=FusedParts(prompts=prompts, steps=steps), kv=kv, spread=spread, keeper=keeper,
        )  # fmt: skip
        if sizes:
            self.model_runner.capture(GraphOptions(sizes), Played() if device is CPU else None)
        self.poison()
        where = Immediate() if device is CPU else CudaDevice(device)
        self.runner = StepExecutor(where, self.model_runner, 2, encodes_beside=divided, prompts_beside=divided)
        self.plain = PlainRunner(self.model, device, dtype, kv if kv.scales else None)
        self._free = random.Random(0).sample(range(1, pages), pages - 1)
        self._manager = CacheManager(PagePool(2, page_size))
        self._steps = itertools.count()
        self._jobs = itertools.count()
        self._rows = itertools.count()

    def poison(self) -> None:
        with torch.inference_mode():
            self.model_runner.cache.keys.fill_(torch.nan)
            self.model_runner.cache.values.fill_(torch.nan)

    def open(self, story: Story, shared: Sequence[int] = ()) -> engine_sequence.Sequence:
        """Return a story a sequence with pages for all it may become; the first may be shared."""
        before = 1 if story.crops is None else self.model.shape.prefix_length
        request = Request("query", story.prompt, None, len(story.allowed), SamplingSettings())  # type: ignore[arg-type]
        row = next(self._rows)
        image = None if story.crops is None else NamedImage("")
        sequence = story.sequence = engine_sequence.Sequence(row, request, None, before, image, row=row)  # type: ignore[arg-type]
        self._manager.name(sequence)
        needed = -(-sequence.longest // self.page_size)
        sequence.pages = [*shared, *(self._free.pop() for _ in range(needed - len(shared)))]
        return sequence

    def job(self, crops: ImageCrops | UncutImage) -> EncodeJob:
        return EncodeJob(next(self._jobs), "", read_crops(crops), _ANYBODY)

    def encode(self, *groups: CropGroup) -> None:
        step = self._step(ScheduledBatch("encode", groups=groups))
        assert self.runner.collect(step) == []

    def encoded(self, story: Story) -> EncodeJob | None:
        """Encode a story's image at once."""
        if story.crops is None:
            return None
        job = self.job(story.crops)
        self.encode(CropGroup(job, 0, job.total))
        return job

    def fresh(self, story: Story, job: EncodeJob | None = None) -> BatchItem:
        """Start a story, or start it again after a pre-emption: a new row, new pages, all that is known."""
        tokens = story.sequence.tokens if hasattr(story, "sequence") else []
        sequence = self.open(story)
        sequence.tokens = list(tokens)
        job = job or self.encoded(story)
        return BatchItem(sequence, 0, sequence.num_tokens, len(tokens), () if job is None else (job,))

    def prefill(
        self, stories: Sequence[Story], rows: Sequence[BatchItem], copies: tuple[PageCopy, ...] = ()
    ) -> list[Token | Exception | None]:
        step = self._step(ScheduledBatch("prefill", rows=tuple(rows), copies=copies))
        return self.finish(step, stories)

    def prefill_beside(self, stories: Sequence[Story]) -> list[Token | Exception | None]:
        """Compute all positions of stories but the last in the encoder's part."""
        fresh = [self.fresh(story) for story in stories]
        rows = tuple(row._replace(count=row.count - 1, index=None) for row in fresh)
        return self.runner.collect(self._step(ScheduledBatch("prefill", rows, beside=True)))

    def decode(self, stories: Sequence[Story], *, beside: bool = False) -> list[Token | Exception | None]:
        return self.finish(self.launch_decode(stories, beside=beside), stories)

    def launch_decode(self, stories: Sequence[Story], *, beside: bool = False) -> Step:
        return self._step(ScheduledBatch("decode", rows=_pending(stories)), beside=beside)

    def mix(
        self, decoding: Sequence[Story], stories: Sequence[Story], rows: Sequence[BatchItem]
    ) -> list[Token | Exception | None]:
        """Decode some stories, and compute known positions of others beside them."""
        step = self._step(ScheduledBatch("mixed", rows=(*_pending(decoding), *rows)))
        return self.finish(step, [*decoding, *stories])

    def launch_assuming(self, stories: Sequence[Story], ids: Sequence[tuple[int, ...]]) -> Step:
        """Compute the pending token of each story, and behind it some ids that are assumed to follow."""
        rows = []
        for row, behind in zip(_pending(stories), ids, strict=True):
            index = len(row.sequence.tokens) + len(behind)
            rows.append(row._replace(count=1 + len(behind), index=index, assumed=behind))
        return self._step(ScheduledBatch("run", rows=tuple(rows)))

    def _step(self, plan: ScheduledBatch, *, beside: bool = False) -> Step:
        number = next(self._steps)
        step = Step(number, plan, number % 2, beside=beside)
        self.runner.launch(step)
        return step

    def finish(self, step: Step, stories: Sequence[Story]) -> list[Token | Exception | None]:
        allowed = [
            None if row.index is None else story.allowed[row.index]
            for story, row in zip(stories, step.rows, strict=True)
        ]
        self.runner.finalize(step, allowed)
        found = self.runner.collect(step)
        for story, token in zip(stories, found, strict=True):
            if isinstance(token, Token):
                story.sequence.tokens.append(token)
        return found

    def expected(self, story: Story) -> tuple[list[Token], list[Tensor]]:
        """Tokens of the plain runner, and the hidden states that they were chosen from."""
        sampler = Sampler(SamplingSettings())
        cache = self.plain.new_cache(self.model.shape.max_context)
        if story.crops is not None:
            self.plain.prefill_image(cache, self.plain.encode(story.crops.pixels, story.crops.tiling))
        tokens: list[Token] = []
        states = []
        new: Sequence[Token] = story.prompt
        for allowed in story.allowed:
            states.append(self.plain.extend(cache, new))
            tokens.append(self.plain.next_token(states[-1], allowed, sampler))
            new = tokens[-1:]
        return tokens, states


def _pending(stories: Sequence[Story]) -> tuple[BatchItem, ...]:
    sequences = [story.sequence for story in stories]
    return tuple(BatchItem(one, one.num_tokens - 1, 1, len(one.tokens), pending=True) for one in sequences)


def make_image(config: MoondreamConfig, tiling: tuple[int, int], seed: int = 0) -> ImageCrops:
    side = config.vision.crop_size
    count = 1 if tiling == (1, 1) else 1 + tiling[0] * tiling[1]
    pixels = np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), np.uint8)
    return ImageCrops(pixels, tiling)


def words_of(*ids: int) -> tuple[Token, ...]:
    return tuple(Token(number) for number in ids)
