"""What a decode step takes: a decoder with random weights in both forms, and rows with a full context."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.bubble.subjects import fill_randomly, random_model
from bench.gpu.floors import bytes_of_expert
from bench.gpu.routes import counting_experts
from bench.shapes import Shape
from photonlite.config import Weights
from photonlite.kernels import columns
from photonlite.kernels.reference.sampling import Logits
from photonlite.kernels.sampling import sample_tokens
from photonlite.models.base import Head, ModelShape, NextPositions, StepDecoder
from photonlite.models.layers import Attention
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.experts import MixtureMLP
from photonlite.models.moondream.fused.decode import FusedDecode as FusedParallel
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.precisions import Precisions
from photonlite.models.quantised import quantise_layers
from photonlite.models.qwen.config import QwenConfig, TextConfig
from photonlite.models.qwen.fused.decode import FusedDecode
from photonlite.models.qwen.fused.layers import block_weights, rotary_rows
from photonlite.models.qwen.text import TextDecoder
from photonlite.runner.buffers import PagedCache
from photonlite.runner.decode import decode_attention
from photonlite.runner.slots import PAGES, POSITION, WRITE_SLOT
from photonlite.runner.tokens import apply_head

PAGE = 16
_WHOLE_GROUPS = {"text": {"dim": 128, "ff_dim": 256}, "vision": {"proj_out_dim": 128}, "region": {"dim": 128}}
"""Sizes of a tiny model whose rows kernels take in 4 bits."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A decoder with random weights.

    Attributes:
        shape: Sizes of its cache.
        words: Embeddings, ``[vocab, dim]``.
        fused: Its steps in fused kernels; None where it has none.
        plain: Its steps in plain operations: embeddings ``[B, 1, dim]``, positions ``[B, 1]`` and attention to states.
        head: Its language head as data, for fused kernels.
        logits: The same in plain operations.
        weight_bytes: Of all matrices that every step reads.
        expert_bytes: Of one expert of one layer, which a step reads if a row goes to it.
        text: The decoder, where `bench.steps.parts` can run its kernels one by one.
        mixture: The model of a decoder with experts, likewise by `bench.steps.mixture`.
        parallel: The model of a decoder of parallel blocks without experts.
    """

    shape: ModelShape
    words: Tensor
    fused: StepDecoder | None
    plain: Callable[[Tensor, Tensor, Attention], Tensor]
    head: Head | None
    logits: Callable[[Tensor], Tensor]
    weight_bytes: int
    expert_bytes: int = 0
    text: TextDecoder | None = field(default=None, repr=False)
    mixture: MoondreamModel | None = field(default=None, repr=False)
    parallel: MoondreamModel | None = field(default=None, repr=False)

    def bytes_of(self, streams: int, context: int, met: Sequence[int] = ()) -> float:
        """Return the bytes that a step reads at least: weights, of each layer the experts met, and keys and values."""
        shape = self.shape
        kv = 2 * shape.layers * shape.kv_heads * shape.head_dim * self.words.element_size()
        return self.weight_bytes + sum(met) * self.expert_bytes + streams * context * kv


def make_subject(
    shape: Shape, device: torch.device, dtype: torch.dtype, *, tiny: bool, weights: Weights = "auto"
) -> Subject:
    """Make a decoder of a shape on a device; weights in 8 and 4 bits are those of parallel blocks without experts."""
    raw = shape.tiny if tiny else shape.raw
    if tiny and weights != "auto":
        raw = {**raw, **{part: raw[part] | sizes for part, sizes in _WHOLE_GROUPS.items()}}
    if shape.family == "moondream":
        return _moondream(MoondreamConfig.from_dict(raw), device, dtype, weights)
    if weights != "auto":
        raise SystemExit("only Moondream 2's shape has weights in 8 and 4 bits here")
    return _qwen(QwenConfig.from_dict(raw), device, dtype)


def _moondream(config: MoondreamConfig, device: torch.device, dtype: torch.dtype, weights: Weights) -> Subject:
    model = random_model(config, device, dtype)
    fused: StepDecoder | None
    if weights in ("int8", "fp8", "int4"):
        quantise_layers(model, Precisions(weights))
        fused = FusedParallel(config.text, model.packed_blocks)  # which a CPU runs in operations of PyTorch
    else:
        fused = model.step_decoder()
    text, heads = model.text, model.heads
    moe = config.text.moe
    each = bytes_of_expert(config, dtype)  # the matrices of all experts are parameters of the blocks
    all_experts = 0 if moe is None else each * moe.num_experts * sum(isinstance(m, MixtureMLP) for m in text.modules())
    return Subject(
        shape=model.shape,
        words=text.wte,
        fused=fused,
        plain=model.forward,
        head=heads.text if heads is not None else None,
        logits=model.logits,
        weight_bytes=_bytes(text.blocks) + _bytes(text.lm_head) - all_experts,
        expert_bytes=each,
        mixture=model if all_experts else None,
        parallel=None if all_experts else model,
    )


def _qwen(config: QwenConfig, device: torch.device, dtype: torch.dtype) -> Subject:
    with torch.device("meta"):
        empty = TextDecoder(config.text, config.version).to(dtype)
    text = empty.to_empty(device=device).requires_grad_(False).eval()
    fill_randomly(text, 0)
    head = text.words if text.head is None else text.head.weight
    return Subject(
        shape=_cache_shape(config.text),
        words=text.words,
        fused=FusedDecode(block_weights(text), rotary_rows(config.text, device)),
        plain=lambda x, positions, attention: text(x, positions.expand(3, -1, -1), attention),
        head=Head((text.norm.weight, None, text.norm.eps), ((head, None),)),
        logits=text.logits,
        weight_bytes=_bytes(text.blocks) + head.numel() * head.element_size(),
        text=text,
    )


def _cache_shape(text: TextConfig) -> ModelShape:
    return ModelShape(
        layers=text.layers,
        kv_heads=text.kv_heads,
        head_dim=text.head_dim,
        max_context=text.max_context,
        prefix_length=1,
        bos_id=0,
        dim=text.dim,
        vocab_size=text.vocab_size,
    )


def _bytes(module: nn.Module) -> int:
    return sum(one.numel() * one.element_size() for one in module.parameters() if one.ndim > 1)


class Rows:
    """Sequences with random keys and values that take one step again and again, at one position.

    Args:
        subject: The decoder.
        streams: Sequences; each goes on with tokens of its own.
        context: Positions that they have.
    """

    def __init__(self, subject: Subject, streams: int, context: int) -> None:
        shape, device = subject.shape, subject.words.device
        self._subject = subject
        each = -(-(context + 1) // PAGE)
        self.cache = PagedCache(shape, 1 + streams * each, PAGE, device, subject.words.dtype)
        self.cache.keys.normal_()
        self.cache.values.normal_()
        self.rows = torch.zeros(streams, PAGES + -(-shape.max_context // PAGE), dtype=torch.int32, device=device)
        pages = torch.randperm(streams * each, device=device) + 1
        self.rows[:, PAGES : PAGES + each] = pages.view(streams, each)
        self.rows[:, POSITION] = context
        self.rows[:, WRITE_SLOT] = self.rows[:, PAGES + context // PAGE] * PAGE + context % PAGE
        self._pending = torch.zeros(streams, columns.PENDING_COLUMNS, dtype=torch.int32, device=device)
        self._pending[:, 0] = torch.randint(shape.vocab_size, (streams,), device=device)
        self._params = torch.zeros(streams, columns.PARAM_COLUMNS, dtype=torch.int32, device=device)
        self._params[:, [columns.FORCED, columns.COORDINATE, columns.SIZE, columns.END]] = -1
        self._masks = torch.full((streams, -(-shape.vocab_size // 32)), -1, dtype=torch.int32, device=device)
        self._results = torch.zeros(streams, columns.RESULT_COLUMNS, dtype=torch.int32, device=device)
        self._own = torch.arange(streams, dtype=torch.int32, device=device)

    def next_positions(self) -> NextPositions:
        """Return the rows as step decoders take them."""
        return NextPositions(self.rows[:, POSITION], self.rows[:, WRITE_SLOT], self.rows[:, PAGES:])

    @torch.inference_mode()
    def met(self) -> list[int]:
        """Take a step and return how many experts of each layer its rows go to; nothing without experts."""
        if self._subject.mixture is None:
            return []
        with counting_experts(self._subject.mixture) as counts:
            self.plain()
        return counts

    def fused(self) -> None:
        """Take a step in fused kernels: embed, decode, head, greedy choice."""
        subject = self._subject
        if subject.fused is None or subject.head is None:
            raise RuntimeError("this decoder has no fused steps here")
        hidden = subject.fused(self._embedded(), self.next_positions(), self.cache)
        self._choose(hidden, apply_head(subject.head, hidden))

    def plain(self) -> None:
        """Take the same step in operations of PyTorch."""
        positions = self.rows[:, POSITION : POSITION + 1]
        attention = decode_attention(self.cache, self.rows)
        hidden = self._subject.plain(self._embedded()[:, None], positions, attention)[:, 0]
        self._choose(hidden, self._subject.logits(hidden))

    def _embedded(self) -> Tensor:
        return functional.embedding(self._pending[:, 0], self._subject.words)

    def _choose(self, hidden: Tensor, logits: Tensor) -> None:
        sample_tokens(
            Logits(logits), hidden, self._params, self._masks, self._results, self._pending, self._own, sampled=False
        )  # fmt: skip
