"""The kernels of a serial decoder's step, each run alone in all layers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from bench.steps.subjects import Rows, Subject
from photonlite.kernels.decode_attention import attention_config, decode_attention
from photonlite.kernels.serial_block import add_linear, empty_scales, norm_linear, scale_stream
from photonlite.kernels.tilings import tiling_of
from photonlite.models.qwen.fused.layers import block_weights, rotary_rows
from photonlite.runner.tokens import apply_head


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of kernel.

    Attributes:
        run: Launches it once a layer.
        launches: In one run.
        bytes: That one launch reads at least.
        tiles: How it is divided.
    """

    run: Callable[[], None]
    launches: int
    bytes: float
    tiles: str


def parts_of(subject: Subject, streams: int, context: int) -> Mapping[str, Callable[[], Part]]:
    """Return what makes each part, by name; nothing for decoders whose blocks are not serial."""
    if subject.text is None:
        return {}
    return {
        "qkv": partial(_product, subject, streams, "w_qkv"),
        "attention": partial(_attention, subject, streams, context),
        "proj": partial(_product, subject, streams, "w_proj"),
        "gate, up": partial(_product, subject, streams, "w_gate_up"),
        "down": partial(_product, subject, streams, "w_down"),
        "head": partial(_head, subject, streams),
    }


def _product(subject: Subject, streams: int, name: str) -> Part:
    """Return a product of every layer, in or out of the residual stream."""
    if subject.text is None:
        raise RuntimeError("this decoder's blocks are not serial")
    blocks = block_weights(subject.text)
    outs, ins = getattr(blocks[0], name).shape
    into, gated = name in ("w_qkv", "w_gate_up"), name == "w_gate_up"
    x = subject.words.new_empty(streams, ins).normal_()
    stream = subject.words.new_empty(streams, ins if into else outs).normal_()
    writer = blocks[0].w_down.shape if into else (outs, ins)  # of the product that writes the scales
    scales = empty_scales(streams, writer[0], writer[1], blocks[0].eps, x)
    scale_stream(stream, blocks[0].gain_in, scales)
    out = x.new_empty(streams, outs // 2 if gated else outs)

    def run() -> None:
        for block in blocks:
            weight = getattr(block, name)
            if into:
                norm_linear(scales, weight, block.b_qkv if name == "w_qkv" else None, out, gated=gated)
            else:
                add_linear(x, weight, stream, (block.gain_in, scales))

    tiling = tiling_of(streams, outs, ins, gated=gated)
    return Part(run, len(blocks), outs * ins * x.element_size(), str(tiling))


def _attention(subject: Subject, streams: int, context: int) -> Part:
    if subject.text is None:
        raise RuntimeError("this decoder's blocks are not serial")
    rows, blocks, config = Rows(subject, streams, context), block_weights(subject.text), subject.text.config
    rotary = rotary_rows(config, subject.words.device)
    qkv = subject.words.new_empty(streams, len(blocks[0].w_qkv)).normal_()
    out = subject.words.new_empty(streams, blocks[0].w_proj.shape[1])
    given = rows.next_positions()

    def run() -> None:
        for index, block in enumerate(blocks):
            keys, values = rows.cache.layer(index)
            decode_attention(
                qkv, rotary, keys, values, given.table, given.positions, given.slots, out, norms=block.norms
            )  # fmt: skip

    group = config.heads // config.kv_heads
    chosen = attention_config(streams, config.kv_heads, config.max_context, dim=config.head_dim, group=group)
    read = 2 * streams * context * config.kv_heads * config.head_dim * qkv.element_size()
    return Part(run, len(blocks), read, str(chosen))


def _head(subject: Subject, streams: int) -> Part:
    head = subject.head
    if head is None:
        raise RuntimeError("this decoder has no head as data")
    hidden = subject.words.new_empty(streams, subject.words.shape[1]).normal_()
    weight = head.layers[0][0]
    if not isinstance(weight, torch.Tensor):
        raise RuntimeError("the head is quantised")
    tiling = tiling_of(streams, *weight.shape)

    def run() -> None:
        with torch.no_grad():
            apply_head(head, hidden)

    return Part(run, 1, weight.numel() * weight.element_size(), str(tiling))
