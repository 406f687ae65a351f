"""The kernels of a step of a decoder with experts, each run alone in all layers that have them.

Products of experts stand beside the same in operations of PyTorch, and beside its product of segments where there is
one. Routes are drawn anew for each layer: rows that route alike would read few experts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bench.steps.parts import Part
from bench.steps.subjects import Rows, Subject
from photonlite.kernels import experts as kernels
from photonlite.kernels.decode_attention import attention_config, decode_attention
from photonlite.kernels.reference import experts as reference
from photonlite.kernels.reference.experts import ExpertWeight, Routes
from photonlite.kernels.small_batch_gemm import linear_out, small_batch_gemm
from photonlite.kernels.tilings import tiling_of
from photonlite.kernels.triton_utils import use_triton
from photonlite.models.moondream.fused.layers import PackedBlock, PackedExperts
from photonlite.models.moondream.fused.mixture import MixtureTables
from photonlite.models.moondream.model import MoondreamModel

PROMPT = 740
"""Positions of a prompt with an image, for grouped products of many rows."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A block with experts, and rows that go to them.

    Attributes:
        block: Its weights.
        experts: Those of its experts.
        logits: Of the router, ``[T, E]``.
        routes: What follows from them.
        met: Experts that some row goes to.
    """

    block: PackedBlock
    experts: PackedExperts
    logits: Tensor
    routes: Routes
    met: int


def mixture_parts_of(subject: Subject, streams: int, context: int) -> Mapping[str, Callable[[], Part]]:
    """Return what makes each part, by name."""
    if subject.mixture is None:
        return {}
    model = subject.mixture
    parts: dict[str, Callable[[], Part]] = {
        "sum and norm": partial(_sum, model, streams),
        "qkv, router": partial(_product, model, streams, into=True),
        "temperatures": partial(_temperatures, model, streams, context),
        "attention": partial(_attention, subject, streams, context),
        "proj": partial(_product, model, streams, into=False),
        "route": partial(_route, model, streams),
    }
    parts |= _grouped(model, streams, "")
    if streams == 1:
        parts |= {"route of a prompt": partial(_route, model, PROMPT)} | _grouped(model, PROMPT, " of a prompt")
    return parts


def _grouped(model: MoondreamModel, tokens: int, suffix: str) -> dict[str, Callable[[], Part]]:
    parts: dict[str, Callable[[], Part]] = {}
    for name, into in (("experts in", True), ("experts out", False)):
        parts[f"{name}{suffix}"] = partial(_experts, model, tokens, into=into, plain=False)
        parts[f"{name}{suffix}, plain operations"] = partial(_experts, model, tokens, into=into, plain=True)
    return parts


def _layers(model: MoondreamModel, tokens: int) -> list[Layer]:
    moe, words = model.config.text.moe, model.text.wte
    if moe is None:
        raise RuntimeError("this decoder has no experts")
    layers = []
    generator = torch.Generator(words.device).manual_seed(tokens)  # equal routes for all that are compared
    for block in model.packed_blocks:
        if block.experts is not None:
            logits = torch.randn(tokens, moe.num_experts, device=words.device, generator=generator).to(words.dtype)
            routes = kernels.route(logits, moe.experts_per_token)
            layers.append(Layer(block, block.experts, logits, routes, int(routes.starts.diff().gt(0).sum())))
    return layers


def _rows(model: MoondreamModel, tokens: int, width: int) -> Tensor:
    return model.text.wte.new_empty(tokens, width).normal_()


def _experts(model: MoondreamModel, tokens: int, *, into: bool, plain: bool) -> Part:
    layers = _layers(model, tokens)
    weights = [layer.experts.inward if into else layer.experts.outward for layer in layers]
    count, _, ins = weights[0].values.shape
    ranks = layers[0].experts.rank_count
    x = _rows(model, tokens if into else tokens * ranks, ins)
    module = reference if plain else kernels
    product = module.experts_in if into else module.experts_out

    def run() -> None:
        for layer, weight in zip(layers, weights, strict=True):
            product(x, layer.routes, weight)

    choose = kernels.tiling_in if into else kernels.tiling_out
    tiling = choose(tokens, count, ranks, fp8=weights[0].scale is not None)
    way = str(tiling) if use_triton(x) else "reference"
    if plain:
        way = "product of segments" if reference.has_segments(x, weights[0]) else "gathered or padded"
    read = sum(layer.met for layer in layers) / len(layers) * _bytes_of(weights[0])
    return Part(run, len(layers), read, f"{way}; {sum(layer.met for layer in layers) / len(layers):.1f} of {count}")


def _bytes_of(weight: ExpertWeight) -> float:
    """Return the bytes of one expert's matrix."""
    _, outs, ins = weight.values.shape
    return outs * ins * weight.values.element_size() + (0 if weight.scale is None else 4 * outs)


def _route(model: MoondreamModel, tokens: int) -> Part:
    layers = _layers(model, tokens)

    def run() -> None:
        for layer in layers:
            kernels.route(layer.logits, layer.experts.rank_count)

    return Part(run, len(layers), layers[0].logits.numel() * layers[0].logits.element_size(), f"{tokens} rows")


def _product(model: MoondreamModel, streams: int, *, into: bool) -> Part:
    blocks = [layer.block for layer in _layers(model, streams)]
    outs, ins = (blocks[0].w_in if into else blocks[0].w_out).shape
    x, stream = _rows(model, streams, ins), _rows(model, streams, outs)

    def run() -> None:
        for block in blocks:
            if into:
                small_batch_gemm(x, block.w_in, block.b_in)
            else:
                linear_out(x, block.w_out, block.b_out, stream, None)

    return Part(run, len(blocks), outs * ins * x.element_size(), str(tiling_of(streams, outs, ins)))


def _sum(model: MoondreamModel, streams: int) -> Part:
    layers = _layers(model, streams)
    x = _rows(model, streams, model.shape.dim)
    added = x.new_empty(streams, layers[0].experts.rank_count, model.shape.dim).normal_() / 100

    def run() -> None:
        for layer in layers:
            kernels.add_and_norm(x, added, None, layer.block.norm)

    return Part(run, len(layers), added.numel() * added.element_size(), f"{streams} rows")


def _temperatures(model: MoondreamModel, streams: int, context: int) -> Part:
    blocks = [layer.block for layer in _layers(model, streams)]
    tables = MixtureTables(model.config.text, model.packed_blocks)
    qkv = _rows(model, streams, tables.qkv_width)
    positions = torch.full((streams,), context, dtype=torch.int32, device=qkv.device)

    def run() -> None:
        for block in blocks:
            tables.factors(block, qkv, positions)

    tau = blocks[0].tau
    read = 0.0 if tau is None else tau.weight.numel() * tau.weight.element_size()
    return Part(run, len(blocks), read, f"{streams} rows")


def _attention(subject: Subject, streams: int, context: int) -> Part:
    model = subject.mixture
    if model is None:
        raise RuntimeError("this decoder has no experts")
    rows, tables = Rows(subject, streams, context), MixtureTables(model.config.text, model.packed_blocks)
    qkv, out = _rows(model, streams, tables.qkv_width), _rows(model, streams, tables.width)
    heads = qkv.shape[1] // model.shape.head_dim - model.shape.kv_heads
    factors = torch.rand(streams, heads, device=qkv.device)
    given = rows.next_positions()

    def run() -> None:
        for index in range(model.shape.layers):
            keys, values = rows.cache.layer(index)
            decode_attention(
                qkv, tables.rotary, keys, values, given.table, given.positions, given.slots, out, factors=factors
            )  # fmt: skip

    chosen = attention_config(streams, model.shape.kv_heads, model.shape.max_context, dim=model.shape.head_dim)
    read = 2 * streams * context * model.shape.kv_heads * model.shape.head_dim * qkv.element_size()
    return Part(run, model.shape.layers, read, str(chosen))
