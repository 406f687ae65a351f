"""Settings of the engine and of images: frozen dataclasses. `settings` reads them from environment variables."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from photonlite.errors import SettingsError
from photonlite.numeric import make_plain
from photonlite.settings import build, from_environment

KvDtype = Literal["auto", "fp8"]
"""In which numbers keys and values are kept: those of the weights, or e4m3 of one byte."""


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """How large an image may be.

    Attributes:
        max_pixels: Width times height, compared with the header before any pixel is decoded.
        max_bytes: Size of the encoded file.
        decode_cpu_s: Seconds of CPU time that a decoding process may take for any image.
        decode_cpu_s_per_megapixel: Seconds that it may take in addition for each million pixels.

    Raises:
        SettingsError: A limit of pixels or bytes is not a whole number above 0, or a time is not a number above 0.
    """

    max_pixels: int = 64_000_000
    max_bytes: int = field(default=256 * 1024 * 1024, metadata={"flag": "--max-image-mb"})
    decode_cpu_s: float = 1.0
    decode_cpu_s_per_megapixel: float = 0.1

    def __post_init__(self) -> None:
        make_plain(self)
        for name in ("max_pixels", "max_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SettingsError(f"image limit {name!r} is {value!r}: give a whole number of at least 1")
        for name in ("decode_cpu_s", "decode_cpu_s_per_megapixel"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
                raise SettingsError(f"image limit {name!r} is {value!r}: give a number of seconds above 0")

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
        kv_cache_bytes: Memory for keys and values; None takes what `gpu_memory_fraction` leaves, and on the CPU what
            `max_batch` longest requests need, at most a quarter of the machine's memory.
        kv_dtype: "auto" keeps keys and values in the type of the weights. "fp8" keeps them in one byte each (e4m3, one
            constant scale a layer): pages take half the bytes of bfloat16, so that there are twice as many and decoding
            reads half as much of them. Answers change a little: `bench/results/kv_fp8.md`. On CUDA it takes a card of
            capability 8.9 or later.
        gpu_memory_fraction: Share of the card that weights, activations, graphs and cache may take together.
        prefix_caching: Whether what was computed for an image or a prompt serves later requests.
        launch_budget_s: Seconds on the device that encoding and prefill work may take between two decode steps while no
            more requests wait than are being decoded. Where ten times as many wait, it may take ten times as long:
            launches grow, and the device answers more requests.
        max_pause_s: Where that growth ends: what is being decoded never waits longer for other work, but for a single
            crop or prompt that takes longer by itself. 0 keeps to `launch_budget_s` however many wait.
        max_crops: Crops that one launch encodes at most.
        max_prefill_tokens: Positions that one launch prefills at most; a single longer prompt goes alone.
        cuda_graphs: Whether decode steps and prompts are captured as CUDA graphs at start.
        graph_sizes: Batch sizes that are captured; larger batches run without a graph.
        pad_to_graph: Whether a batch is padded to the next captured size; else only exact sizes use a graph.
        compile: Whether the captured forward pass goes through `torch.compile` first, where no fused kernels run it:
            minutes at start.
        fused: Whether fused kernels run where there are some, on CUDA; else the same operations one by one in PyTorch:
            a baseline to measure against, and the way round a kernel that fails on a card.
        fp8_linears: Whether the linear layers of the image encoder and of prefill multiply e4m3 numbers, with a scale
            for each row of activations and each output of a weight; decoding keeps the weights as they are. Quicker
            where many crops or prompts come together, and answers change a little. On CUDA it takes a card of
            capability 8.9 or later and weights in bfloat16; the CPU computes the same in float32, slowly.
        cpu_threads: Threads over which one operation on the CPU is spread at most; None for PyTorch's own number, one a
            core. It takes fewer where an operation is small, and while other programs use the cores.
        image_threads: Threads that decode, hash and cut images.
        max_prepared_bytes: Decoded images, at three bytes a pixel, that may wait for the engine. A call that finds no
            room waits, before its image is decoded and at most until its deadline. Real-time calls have a quarter of
            the room to themselves, and bulk ones the rest; only a single image that is larger takes more.
        grammar_workers: Processes at most that compile schemas and patterns. The first starts with the first typed
            question, others when one would have to wait; of several no caller ever has all.
        grammar_limit_s: Seconds that compiling one may take.
        grammar_cache_bytes: Memory for compiled ones, the least recently used of which go first.
        trace: Whether spans of every phase are recorded from the start.

    Raises:
        SettingsError: A value is out of its range.
    """

    depth: int = 2
    max_batch: int | None = None
    page_size: int = 16
    kv_cache_bytes: int | None = None
    kv_dtype: KvDtype = "auto"
    gpu_memory_fraction: float = 0.9
    prefix_caching: bool = True
    launch_budget_s: float = 0.004
    max_pause_s: float = 0.035
    max_crops: int = 16
    max_prefill_tokens: int = 4096
    cuda_graphs: bool = True
    graph_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 24, 32, 48, 64)
    pad_to_graph: bool = True
    compile: bool = False
    fused: bool = True
    fp8_linears: bool = False
    cpu_threads: int | None = None
    image_threads: int = 4
    max_prepared_bytes: int = 2**30
    grammar_workers: int = 2
    grammar_limit_s: float = 2.0
    grammar_cache_bytes: int = 2**28
    trace: bool = False

    def __post_init__(self) -> None:
        make_plain(self)
        for name in _NUMBERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise SettingsError(f"engine setting {name!r} is {value!r}: it must be a number")
        for name in _WHOLE:
            value = getattr(self, name)
            if value is not None and not _is_whole(value):
                raise SettingsError(f"engine setting {name!r} is {value!r}: it must be a whole number")
        within = {
            "depth": (self.depth in (1, 2), "1 or 2"),
            "max_batch": (self.max_batch is None or self.max_batch >= 1, "at least 1"),
            "page_size": (self.page_size >= 1 and self.page_size & (self.page_size - 1) == 0, "a power of two"),
            "kv_cache_bytes": (self.kv_cache_bytes is None or self.kv_cache_bytes >= 1, "at least 1"),
            "kv_dtype": (self.kv_dtype in get_args(KvDtype), "'auto' or 'fp8'"),
            "gpu_memory_fraction": (0 < self.gpu_memory_fraction <= 1, "above 0 and at most 1"),
            "launch_budget_s": (0 < self.launch_budget_s < math.inf, "above 0, and finite"),
            "max_pause_s": (0 <= self.max_pause_s < math.inf, "at least 0, and finite"),
            "fp8_linears": (self.fused or not self.fp8_linears, "False where 'fused' is False"),
            "max_crops": (self.max_crops >= 1, "at least 1"),
            "max_prefill_tokens": (self.max_prefill_tokens >= 1, "at least 1"),
            "graph_sizes": (
                all(_is_whole(size) and size >= 1 for size in self.graph_sizes),
                "whole numbers of at least 1",
            ),
            "cpu_threads": (self.cpu_threads is None or self.cpu_threads >= 1, "at least 1"),
            "image_threads": (self.image_threads >= 1, "at least 1"),
            "max_prepared_bytes": (self.max_prepared_bytes >= 1, "at least 1"),
            "grammar_workers": (self.grammar_workers >= 1, "at least 1"),
            "grammar_limit_s": (0 < self.grammar_limit_s < math.inf, "above 0, and finite"),
            "grammar_cache_bytes": (self.grammar_cache_bytes >= 0, "at least 0"),
        }
        for name, (fine, limit) in within.items():
            if not fine:
                raise SettingsError(f"engine setting {name!r} is {getattr(self, name)!r}: it must be {limit}")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> EngineConfig:
        """Take what environment variables set; the rest keeps its default.

        Raises:
            SettingsError: A variable holds no number, or one out of range.
        """
        return build(cls, from_environment(cls, environ))


DEFAULT_IMAGE_LIMITS: Final = ImageLimits()

_NUMBERS: Final = ("gpu_memory_fraction", "launch_budget_s", "max_pause_s", "grammar_limit_s")

_WHOLE: Final = (
    "depth",
    "max_batch",
    "page_size",
    "kv_cache_bytes",
    "max_crops",
    "max_prefill_tokens",
    "cpu_threads",
    "image_threads",
    "max_prepared_bytes",
    "grammar_workers",
    "grammar_cache_bytes",
)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
