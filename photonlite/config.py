"""Settings of the engine and of images: frozen dataclasses. `settings` reads them from environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypedDict

from photonlite.errors import SettingsError
from photonlite.settings import build, check_settings, from_environment, setting

KvDtype = Literal["auto", "fp8"]
"""In which numbers keys and values are kept: those of the weights, or e4m3 of one byte."""

Precision = Literal["int8", "fp8", "int4"]
"""Weights of 8 or 4 bits: whole numbers, or e4m3; see `kernels.reference.quantised`."""

Weights = Literal["auto", "int8", "fp8", "int4", "fit"]
"""Precision of the text decoder's weights: that of the files, a quantised one, or the best that fits the memory."""

VisionWeights = Literal["auto", "int8", "fp8"]
"""Precision of the image encoder's weights."""


RouterRule = Literal["adaptive", "static", "greedy", "reserve"]
"""How many requests run at a time; see `scheduler.router`."""

Batching = Literal["turns", "mixed"]
"""Whether prompts and decode steps take turns, or share launches; see `scheduler.fifo`."""

Encoding = Literal["turns", "beside"]
"""Whether images are encoded in turn with other steps, or beside them; see `scheduler.fifo`."""


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """How large an image may be, and how it is read.

    Attributes:
        max_pixels: Width times height, compared with the header before any pixel is decoded.
        max_side: Width, and height: a filter has coefficients for each pixel of a side. No JPEG is longer than 65,535.
        max_bytes: Size of the encoded file.
        decode_cpu_s: Seconds of CPU time that a decoding process may take for any image.
        decode_cpu_s_per_megapixel: Seconds that it may take in addition for each million pixels.
        on_white: Whether transparent images are drawn on white, else the colour below shows: a loaded model sets this.

    Raises:
        SettingsError: A limit of pixels or bytes is not a whole number above 0, or a time is not a number above 0.
    """

    max_pixels: int = setting(64_000_000, least=1)
    max_side: int = setting(65_535, least=1)
    max_bytes: int = setting(256 * 1024 * 1024, flag="--max-image-mb", least=1)
    decode_cpu_s: float = setting(1.0, above=0)
    decode_cpu_s_per_megapixel: float = setting(0.1, above=0)
    on_white: bool = setting(False, flag=None)

    def __post_init__(self) -> None:
        check_settings(self, "image limit")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> ImageLimits:
        """Take the limits from environment variables; what is unset keeps its default.

        Args:
            environ: Variable names and values; the process's own unless given.

        Raises:
            SettingsError: A variable holds no whole number above 0.
        """
        return build(cls, from_environment(cls, environ))


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine runs.

    Attributes:
        depth: Steps in flight: 2 launches the next step before the last one is read, 1 does not.
        max_batch: Requests that are decoded together; None for 64 on CUDA and 8 on the CPU.
        page_size: Positions of a page of the KV cache; a power of two.
        max_context: Positions of prompt and answer at most; None for what the checkpoint takes, at most 32,768 of
            families that take more: keys and values of the longest request must fit the cache.
        max_input_tokens: Positions of a prompt and its images at most; None for what the context has room for.
        max_output_tokens: Tokens of an answer at most, whatever a request asks for. With `max_input_tokens` it shortens
            the context to both together, for which the memory is planned.
        max_input_images: Images of one request at most.
        kv_cache_bytes: Memory for keys and values; None takes what `gpu_memory_fraction` leaves, and on the CPU what
            `max_batch` longest requests need, at most a quarter of the machine's memory.
        kv_dtype: "auto" keeps keys and values in the type of the weights. "fp8" keeps them in one byte each (e4m3, one
            constant scale a layer): pages take half the bytes of bfloat16, so that there are twice as many and decoding
            reads half as much of them. Answers change a little: `bench/results/kv_fp8.md`. On CUDA it takes a card of
            capability 8.9 or later.
        gpu_memory_fraction: Share of the card that weights, activations, graphs and cache may take together.
        prefix_caching: Whether what was computed for an image or a prompt serves later requests.
        embedding_cache_bytes: Host memory for embeddings of images, and for keys and values where they pay: an image
            whose pages were taken from the prefix cache is then not encoded again. On CUDA it is page-locked at start,
            and without `store` few images are kept where encoding is quick and none is asked about again. 0 keeps none.
        store: Folder in which the same is kept for later processes too, apart for each cache salt; several may share
            it, and `photonlite store` shows and prunes it. None for none.
        store_bytes: Bytes in that folder, about; what was not read for longest goes first.
        launch_budget_s: Seconds on the device that encoding and prefill work may take between two decode steps while no
            more requests wait than are being decoded. Where ten times as many wait, it may take ten times as long:
            launches grow, and the device answers more requests.
        max_pause_s: Where that growth ends: what is being decoded never waits longer for other work, but for a single
            crop or prompt that takes longer by itself. 0 keeps to `launch_budget_s` however many wait.
        max_crops: Crops that one launch encodes at most.
        max_prefill_tokens: Positions that one launch prefills at most; a single longer prompt goes alone.
        batching: "turns" launches prompts as a whole, in pauses between decode steps. "mixed" lets them ride with what
            is decoded, in parts where they are long: nothing that decodes waits for a prompt longer than the part in
            its step takes, and both share the reading of weights. Answers are the same. It takes turns while a
            real-time request is open, and for a while where memory was short.
        mixed_tokens: Positions of such a step, decoded ones among them, but at least one of a prompt; a block that
            attends to itself in both directions, such as Moondream's image, is never cut. None for as many as
            take two fifths of a decode step, as measured, or, where many prompts wait, for a sixteenth of their
            positions, at most what `launch_budget_s` or half a decode step has time for.
        encoding: "turns" encodes images in pauses between decode steps. "beside" encodes them on a stream of their own
            while others decode: no step waits for an image, and every step takes longer meanwhile. Answers are the
            same. It is meant for cards, where it takes more memory: images and steps cannot share their activations.
        encode_sms: About how many multiprocessors (SMs) of a card are the encoder's own, with "beside": images of bulk
            requests and the prompts about them run there while enough is decoded on the others, from a second set of
            CUDA graphs: start takes longer. 0 lets both share all of them, and so does a card that cannot be divided:
            that takes the package cuda-bindings and a driver with green contexts. A CPU has none, and only lets prompts
            run beside decode steps. None for what `tuning` says.
        realtime_part: Whether images of bulk requests and the prompts about them leave the other SMs to real-time
            requests while these come, with "beside" and a divided card: they run in the encoder's part alone, slower
            but at any time, and real-time requests about other images do not wait for them. Else images take turns on
            the whole card meanwhile, and so they do for a while once two of sixteen real-time requests with a
            deadline are late beside them or end less than 2 ms before it, as those do that need nearly all of their
            time even alone.
        tuning: A file that `photonlite tune` has written for this card and model, with "beside": its schedule says how
            many SMs are the encoder's own, and its measurements when that pays. None for the file in the user's cache,
            if there is one for this card, model and versions; else a default for the card.
        cuda_graphs: Whether decode steps and prompts are captured as CUDA graphs at start.
        graph_sizes: Batch sizes that are captured, `max_batch` in the place of larger ones; batches above the largest
            run without a graph.
        pad_to_graph: Whether a batch is padded to the next captured size; else only exact sizes use a graph.
        forced_runs: Whether tokens that a grammar leaves no choice about, such as names and punctuation of JSON, are
            appended at once and computed together, where that saves more than it costs others; else one by one, as a
            baseline to measure against. Answers are the same.
        router: How many requests run at a time. "adaptive" admits one where the most positions that it and the running
            ones will hold together at any moment, by the lengths of earlier answers, stay within a budget, which grows
            while it holds requests back and shrinks when one had to give its pages back. "static" keeps to
            `router_budget`. "greedy" admits whatever fits at the moment. "reserve" admits what fits if every answer
            gets as long as its limits allow: none ever gives pages back.
        router_budget: The budget at start, as a share of the positions that the KV cache holds; from 0 to 1.5.
        swap_bytes: Host memory, allocated at start and page-locked on CUDA, for keys and values of preempted
            requests: they are swapped back in later instead of recomputed, where copying is quicker. 0 recomputes
            all of them.
        fused: Whether fused kernels run where there are some, on CUDA; else the same operations one by one in PyTorch:
            a baseline to measure against, and a fallback for a kernel that fails on a card.
        fp8_linears: Whether the linear layers of the image encoder and of prefill multiply e4m3 numbers, with a scale
            for each row of activations and each output of a weight; decoding keeps the weights as they are. Quicker
            where many crops or prompts come together, and answers change a little. On CUDA it takes a card of
            capability 8.9 or later and weights in bfloat16; the CPU computes the same in float32, slowly. An answer
            then depends on the kind of launch that computes each token: on what is cached, on forced runs, on mixed
            steps, and on whether a launch has adapters, with which all of it keeps to the weights' type.
        cpu_threads: Threads over which one operation on the CPU is spread at most; None for PyTorch's own number, one a
            core. It takes fewer where an operation is small, and while other programs use the cores.
        image_threads: Threads that decode, hash and cut images.
        max_prepared_bytes: Decoded images, at three bytes a pixel, that may wait for the engine. A call that finds no
            room waits, before its image is decoded and at most until its deadline. Real-time calls have a quarter of
            the room to themselves, and bulk ones the rest; only a single image that is larger takes more.
        tensor_parallel: Ranks that run the model together, each in a process of its own: on CUDA on cards that follow
            each other, for checkpoints that are larger than one and for shorter steps; on the CPU for tests, without a
            gain. It must divide heads, key heads, the MLP's width and the vocabulary. Linux only. Decoders then run
            without fused kernels.
        adapter_slots: Adapters that are on the device at a time, of requests that run or wait for the first launch; the
            one that was not used for longest makes room for another.
        adapter_rank: Largest rank of an adapter; every slot has room for it.
        adapter_bytes: Host memory for adapters that are loaded; those that were not used for longest are read from
            their files again when they are needed.
        grammar_workers: Processes at most that compile schemas and patterns. The first starts with the first typed
            question, others when one would have to wait; of several no caller ever has all.
        grammar_limit_s: Seconds of CPU time that compiling one may take. On a machine too busy to give it these, it is
            ended after five times as many seconds.
        grammar_cache_bytes: Memory for compiled ones, the least recently used of which go first.
        trace: Whether spans of every phase are recorded from the start.

    Raises:
        SettingsError: A value is out of its range.
    """

    depth: int = setting(2, least=1, most=2)
    max_batch: int | None = setting(None, least=1)
    page_size: int = setting(16, least=1)
    max_context: int | None = setting(None, least=1)
    max_input_tokens: int | None = setting(None, least=1)
    max_output_tokens: int | None = setting(None, least=1)
    max_input_images: int | None = setting(None, least=1)
    kv_cache_bytes: int | None = setting(None, least=1)
    kv_dtype: KvDtype = "auto"
    gpu_memory_fraction: float = setting(0.9, above=0, most=1)
    prefix_caching: bool = True
    embedding_cache_bytes: int = setting(2**28, least=0)
    store: str | None = None
    store_bytes: int = setting(2**32, least=1)
    launch_budget_s: float = setting(0.004, above=0)
    max_pause_s: float = setting(0.035, least=0)
    max_crops: int = setting(16, least=1)
    max_prefill_tokens: int = setting(4096, least=1)
    batching: Batching = "turns"
    mixed_tokens: int | None = setting(None, least=1)
    encoding: Encoding = "turns"
    encode_sms: int | None = setting(None, least=0)
    realtime_part: bool = False
    tuning: str | None = None
    cuda_graphs: bool = True
    graph_sizes: tuple[int, ...] = setting((1, 2, 4, 8, 16, 24, 32, 48, 64), least=1)
    pad_to_graph: bool = True
    forced_runs: bool = True
    router: RouterRule = "adaptive"
    router_budget: float = setting(1.0, above=0, most=1.5)
    swap_bytes: int = setting(0, least=0)
    fused: bool = True
    fp8_linears: bool = False
    cpu_threads: int | None = setting(None, least=1)
    image_threads: int = setting(4, least=1)
    max_prepared_bytes: int = setting(2**30, least=1)
    tensor_parallel: int = setting(1, least=1)
    adapter_slots: int = setting(8, least=1)
    adapter_rank: int = setting(16, least=1, most=512)
    adapter_bytes: int = setting(2**30, least=0)
    grammar_workers: int = setting(2, least=1)
    grammar_limit_s: float = setting(2.0, above=0)
    grammar_cache_bytes: int = setting(2**28, least=0)
    trace: bool = False

    def __post_init__(self) -> None:
        check_settings(self, "engine setting")
        if self.page_size & (self.page_size - 1):
            raise SettingsError(f"engine setting 'page_size' is {self.page_size}: it must be a power of two")
        if self.fp8_linears and self.tensor_parallel > 1:
            raise SettingsError(
                "engine setting 'fp8_linears' is True: it must be False where 'tensor_parallel' is above 1"
            )
        if self.swap_bytes and self.tensor_parallel > 1:
            raise SettingsError(
                f"engine setting 'swap_bytes' is {self.swap_bytes}: it must be 0 where 'tensor_parallel' is above 1"
            )
        if self.encoding == "beside" and self.tensor_parallel > 1:
            raise SettingsError(
                "engine setting 'encoding' is 'beside': it must be 'turns' where 'tensor_parallel' is above 1"
            )
        if self.encode_sms and not (self.encoding == "beside" and self.cuda_graphs):
            raise SettingsError(
                f"engine setting 'encode_sms' is {self.encode_sms}: it must be 0 where 'encoding' is 'turns' or "
                "'cuda_graphs' is False"
            )
        if self.realtime_part and not (self.encoding == "beside" and self.cuda_graphs and self.encode_sms != 0):
            raise SettingsError(
                "engine setting 'realtime_part' is True: it must be False where 'encoding' is 'turns', 'cuda_graphs' "
                "is False or 'encode_sms' is 0"
            )
        if self.tuning is not None and not (self.encoding == "beside" and self.cuda_graphs and self.encode_sms is None):
            raise SettingsError(
                f"engine setting 'tuning' is {self.tuning!r:.60}: it must be None where 'encoding' is 'turns', "
                "'cuda_graphs' is False or 'encode_sms' is given"
            )
        if self.fp8_linears and not self.fused:
            raise SettingsError("engine setting 'fp8_linears' is True: it must be False where 'fused' is False")
        if self.mixed_tokens is not None and self.batching != "mixed":
            raise SettingsError(
                f"engine setting 'mixed_tokens' is {self.mixed_tokens}: it must be None where 'batching' is 'turns'"
            )

    @property
    def context(self) -> int | None:
        """Positions of the longest request; None for what the checkpoint takes."""
        if self.max_input_tokens is None or self.max_output_tokens is None:
            return self.max_context
        longest = self.max_input_tokens + self.max_output_tokens
        return longest if self.max_context is None else min(longest, self.max_context)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> EngineConfig:
        """Take what environment variables set; the rest keeps its default.

        Raises:
            SettingsError: A variable holds no number, or one out of range.
        """
        return build(cls, from_environment(cls, environ))


class EngineSettings(TypedDict, total=False):
    """Settings of `EngineConfig` by name, for the argument `engine` of `photonlite.load`."""

    depth: int
    max_batch: int | None
    page_size: int
    max_context: int | None
    max_input_tokens: int | None
    max_output_tokens: int | None
    max_input_images: int | None
    kv_cache_bytes: int | None
    kv_dtype: KvDtype
    gpu_memory_fraction: float
    prefix_caching: bool
    embedding_cache_bytes: int
    store: str | None
    store_bytes: int
    launch_budget_s: float
    max_pause_s: float
    max_crops: int
    max_prefill_tokens: int
    batching: Batching
    mixed_tokens: int | None
    encoding: Encoding
    encode_sms: int | None
    realtime_part: bool
    tuning: str | None
    cuda_graphs: bool
    graph_sizes: tuple[int, ...]
    pad_to_graph: bool
    forced_runs: bool
    router: RouterRule
    router_budget: float
    swap_bytes: int
    fused: bool
    fp8_linears: bool
    cpu_threads: int | None
    image_threads: int
    max_prepared_bytes: int
    tensor_parallel: int
    adapter_slots: int
    adapter_rank: int
    adapter_bytes: int
    grammar_workers: int
    grammar_limit_s: float
    grammar_cache_bytes: int
    trace: bool


DEFAULT_IMAGE_LIMITS: Final = ImageLimits()
