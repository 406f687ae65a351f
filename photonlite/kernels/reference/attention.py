"""Attention over keys and values that lie in pages, in PyTorch; see the modules of the same names in `kernels`."""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

HeadNorms: TypeAlias = tuple[Tensor, Tensor, float]
"""RMS norms of every head before it is rotated: weight of queries [D], of keys [D], and eps."""

FP8 = torch.float8_e4m3fn  # three bits of mantissa, normal from 2**-6 to 448, no infinities


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """How a layer scores keys, where that is not ``q k / sqrt(D)`` of all that a query may see."""

    scale: float  # in place of 1 / sqrt(D)
    softcap: float | None = None  # scores become ``softcap * tanh(score / softcap)``
    window: int | None = None  # a query sees so many of the newest positions up to its own; in a block it sees all

    def limit(self, mask: Tensor) -> Tensor:
        """Leave in a bool mask ``[T, S]`` of the newest T of S positions what the window shows."""
        return mask if self.window is None else mask.triu(mask.shape[1] - mask.shape[0] - self.window + 1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Attend with q ``[B, H, T, D]``, k and v ``[B, H_kv, S, D]``, and a bool mask of ``[B, H, T, S]``."""
        group = q.shape[1] // k.shape[1]
        if self.softcap is None:
            return functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, scale=self.scale, enable_gqa=group > 1
            )
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        scores = torch.tanh(q @ k.transpose(2, 3) * (self.scale / self.softcap)) * self.softcap
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        wide = torch.promote_types(q.dtype, torch.float32)
        return scores.softmax(dim=-1, dtype=wide).to(q.dtype) @ v


def quantise(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Return keys or values as a cache of `dtype` stores them: in FP8 ``x / scale``, saturated; else `x` itself."""
    if dtype != FP8:
        return x
    # Some versions of PyTorch convert what is too large to NaN; a NaN stays one here too.
    largest = torch.finfo(FP8).max
    return (x / scale).clamp(-largest, largest).to(FP8)


def dequantise(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Return the keys or values that a cache stores as `x`, in a type to compute with; see :func:`quantise`."""
    return x.to(dtype) * scale if x.dtype == FP8 else x


def indexable(x: Tensor) -> Tensor:
    """Return the same memory in a type that PyTorch can index and copy: FP8 as bytes."""
    return x.view(torch.uint8) if x.dtype == FP8 else x


def gather_pages(pages: Tensor, table: Tensor, unseen: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Gather pages of `table`, int64 ``[B, P]``, as ``[B, P * page, H_kv, D]`` in `dtype`; 0 where `unseen` is set."""
    found = indexable(pages)[table].view(pages.dtype).flatten(1, 2)
    return dequantise(found, dtype, scale).masked_fill(unseen[..., None, None], 0.0)


def write_kv(
    keys: Tensor, values: Tensor, k: Tensor, v: Tensor, slots: Tensor, k_scale: float = 1.0, v_scale: float = 1.0
) -> None:
    """Write ``[N, H_kv, D]`` into pages; `slots` are page * page size + place, and of equal ones any may win."""
    page, place = slots // keys.shape[1], slots % keys.shape[1]
    for target, source, scale in ((keys, k, k_scale), (values, v, v_scale)):
        indexable(target).index_put_((page, place), indexable(quantise(source, target.dtype, scale)))


def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, page_table: Tensor, lengths: Tensor,
    k_scale: float = 1.0, v_scale: float = 1.0, rule: ScoreRule | None = None,
) -> Tensor:  # fmt: skip
    size = keys.shape[1]
    positions = torch.arange(page_table.shape[1] * size, device=q.device)
    seen = positions < lengths[:, None]  # [B, S]
    if rule is not None and rule.window is not None:
        seen &= positions >= lengths[:, None] - rule.window
    table = page_table.long().masked_fill(~seen.view(*page_table.shape, size).any(dim=2), 0)
    k = gather_pages(keys, table, ~seen, q.dtype, k_scale)  # [B, S, H_kv, D]
    v = gather_pages(values, table, ~seen, q.dtype, v_scale)
    # A row that sees nothing attends to everything: all of it is 0 by now, where an empty softmax may be NaN.
    mask = seen | (lengths == 0)[:, None]
    if rule is not None:
        return rule.attend(q[:, :, None], k.transpose(1, 2), v.transpose(1, 2), mask[:, None, None])[:, :, 0]
    out = functional.scaled_dot_product_attention(
        q[:, :, None],
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask[:, None, None],
        enable_gqa=q.shape[1] != keys.shape[2],
    )
    return out[:, :, 0]


def decode_attention(
    qkv: Tensor, rotary: Tensor, keys: Tensor, values: Tensor, page_table: Tensor, positions: Tensor, slots: Tensor,
    out: Tensor, *, turns: Tensor | None = None, norms: HeadNorms | None = None,
    k_scale: float = 1.0, v_scale: float = 1.0, factors: Tensor | None = None, rule: ScoreRule | None = None,
    stored: bool = False,
) -> None:  # fmt: skip
    kv_heads, dim = keys.shape[2:]
    heads = qkv.view(len(qkv), -1, dim)
    if stored:
        found = paged_attention(heads, keys, values, page_table, positions + 1, k_scale, v_scale, rule)
        out.copy_(found.flatten(1))
        return
    q, k, v = torch.split(heads, [heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    q, k = _normed_heads(q, k, norms)
    q, v = _scaled(q, v, factors)
    cos, sin = rotary[:, (positions if turns is None else turns).long(), None]  # [B, 1, R / 2]
    write_kv(keys, values, _rotated(k, cos, sin).to(v.dtype), v, slots.long(), k_scale, v_scale)
    q = _rotated(q, cos, sin).to(v.dtype)
    out.copy_(paged_attention(q, keys, values, page_table, positions + 1, k_scale, v_scale, rule).flatten(1))


def paged_prefill_attention(
    q: Tensor, keys: Tensor, values: Tensor, page_table: Tensor, tiles: Tensor, out: Tensor,
    *, k_scale: float = 1.0, v_scale: float = 1.0, rule: ScoreRule | None = None,
) -> None:  # fmt: skip
    size, rule = keys.shape[1], rule or ScoreRule(q.shape[2] ** -0.5)
    for row, first, count, position, block in tiles.tolist():
        if count == 0:
            continue
        limits = torch.arange(position + 1, position + count + 1, device=q.device).clamp(min=block)
        stop = max(position + count, block)
        table = page_table[row : row + 1, : -(-stop // size)].long()
        places = torch.arange(table.shape[1] * size, device=q.device)
        unseen = (places >= stop)[None]
        k = gather_pages(keys, table, unseen, q.dtype, k_scale)  # [1, S, H_kv, D]
        v = gather_pages(values, table, unseen, q.dtype, v_scale)
        queries = q[None, first : first + count].transpose(1, 2)
        found = rule.attend(queries, k.transpose(1, 2), v.transpose(1, 2), places < limits[:, None])
        out[first : first + count] = found[0].transpose(0, 1).flatten(1)


def rotary_gelu_write(
    h: Tensor, positions: Tensor, slots: Tensor | None, rotary: Tensor, keys: Tensor, values: Tensor, heads: int,
    *, axes: Tensor | None = None, norms: HeadNorms | None = None, k_scale: float = 1.0, v_scale: float = 1.0,
    factors: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    kv_heads, dim = keys.shape[2:]
    width = (heads + 2 * kv_heads) * dim
    q, k, v = h[:, :width].reshape(len(h), -1, dim).split_with_sizes((heads, kv_heads, kv_heads), dim=1)
    q, k = _normed_heads(q, k, norms)
    q, v = _scaled(q, v, factors)
    if axes is None:
        cos, sin = rotary[:, positions.long(), None]  # [T, 1, R / 2]
    else:
        pairs = torch.arange(len(axes), device=h.device)
        cos, sin = rotary[:, positions[:, axes.long()].long(), pairs][:, :, None]
    if slots is not None:
        write_kv(keys, values, _rotated(k, cos, sin).to(v.dtype), v, slots.long(), k_scale, v_scale)
    inside = functional.gelu(h[:, width:], approximate="tanh")
    return _rotated(q, cos, sin).to(h.dtype), torch.cat((h.new_empty(len(h), heads * dim), inside), dim=1)


def rotate_heads(qkv: Tensor, rotary: Tensor, heads: int) -> None:
    turned = qkv[:, : 4 * heads * rotary.shape[2]].view(len(qkv), 2 * heads, -1)
    turned.copy_(_rotated(turned, *rotary[:, :, None]))


def _normed_heads(q: Tensor, k: Tensor, norms: HeadNorms | None) -> tuple[Tensor, Tensor]:
    """Apply the RMS norms of heads, if there are any; the result is as wide as the arithmetic, at least float32."""
    if norms is None:
        return q, k
    *weights, eps = norms
    wide = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k)]
    q, k = (functional.rms_norm(x, x.shape[-1:], w.to(x.dtype), eps) for x, w in zip(wide, weights, strict=True))
    return q, k


def _scaled(q: Tensor, v: Tensor, factors: Tensor | None) -> tuple[Tensor, Tensor]:
    """Multiply queries ``[B, H, D]`` and values ``[B, H_kv, D]`` with factors of their heads, ``[B, H + H_kv]``."""
    if factors is None:
        return q, v
    of_q, of_v = torch.split(factors[..., None], [q.shape[1], v.shape[1]], dim=1)
    return (q * of_q).to(q.dtype), (v * of_v).to(v.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    real, imag, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = torch.cat((real * cos - imag * sin, real * sin + imag * cos), dim=-1)
    return torch.cat((turned.to(x.dtype), rest), dim=-1)
