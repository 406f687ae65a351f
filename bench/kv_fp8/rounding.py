"""What rounding keys and values to FP8 does to a forward pass: layer by layer on its own, and to the logits in the end.

A prompt is run as one batch. That is what an engine computes, whatever launches it cuts the prompt into: its prefill
sees its own keys and values as the cache will store them.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from photonlite.images.crops import ImageCrops
from photonlite.kernels.reference.attention import FP8, ScoreRule, dequantise, quantise
from photonlite.models.base import Model
from photonlite.models.layers import Attention, MaskedAttention, attend
from photonlite.models.moondream.model import MoondreamModel
from photonlite.runner.buffers import KvFormat, kv_format


@dataclass(frozen=True, slots=True)
class Rounding:
    """What FP8 does to the keys or the values of one layer.

    Attributes:
        predicted: Root mean square, from the weights.
        observed: Root mean square.
        scale: What they are divided by.
        largest: The largest number after the division; FP8 ends at 448.
        error: Root mean square of the error over that of the numbers.
    """

    predicted: float
    observed: float
    scale: float
    largest: float
    error: float


@dataclass(frozen=True, slots=True)
class LayerFigures:
    """One layer.

    Attributes:
        keys: Of them.
        values: Of them.
        attention: Root mean square of the error of the attention's output, over that of the output.
    """

    keys: Rounding
    values: Rounding
    attention: float


@dataclass(frozen=True, slots=True)
class LogitFigures:
    """Logits of one run against those of the exact run.

    Attributes:
        error: Root mean square of the difference over the standard deviation of the true logits.
        agree: Share of positions whose largest logit is that of the same id.
        margin: Between the two largest true logits in the middle of all positions, in standard deviations.
        lost: The largest such margin among positions that do not agree; 0 where all do.
    """

    error: float
    agree: float
    margin: float
    lost: float


class RoundedAttention:
    """Attention within one batch, of keys and values that a cache has rounded.

    Args:
        mask: See :class:`photonlite.models.layers.MaskedAttention`.
        kv: How the cache stores them.
    """

    def __init__(self, mask: Tensor, kv: KvFormat) -> None:
        self._mask = mask
        self._kv = kv

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule | None = None) -> Tensor:
        """Attend; see :class:`photonlite.models.layers.Attention`."""
        return attend(q, *self.rounded(layer, k, v), self._mask, rule)

    def rounded(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values as the cache stores and returns them."""
        k_scale, v_scale = self._kv.scales[layer]
        keys, values = quantise(k, FP8, k_scale), quantise(v, FP8, v_scale)
        return dequantise(keys, k.dtype, k_scale), dequantise(values, v.dtype, v_scale)


class WatchedAttention:
    """Exact attention that records the effect of rounding on each layer alone.

    Args:
        mask: See :class:`photonlite.models.layers.MaskedAttention`.
        model: Predicts how large keys and values are.
        kv: How a cache would store them.

    Attributes:
        layers: What it has seen, in the order of the layers.
    """

    def __init__(self, mask: Tensor, model: Model, kv: KvFormat) -> None:
        self._exact = MaskedAttention(mask)
        self._rounded = RoundedAttention(mask, kv)
        self._predicted = model.kv_statistics()
        self._scales = kv.scales
        self.layers: list[LayerFigures] = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule | None = None) -> Tensor:
        """Attend; see :class:`photonlite.models.layers.Attention`."""
        out = self._exact(layer, q, k, v, rule)
        pairs = zip((k, v), self._rounded.rounded(layer, k, v), strict=True)
        keys, values = (
            Rounding(rms, _rms(x), scale, float(x.abs().max()) / scale, _rms(read - x) / _rms(x))
            for (x, read), rms, scale in zip(pairs, self._predicted[layer], self._scales[layer], strict=True)
        )
        self.layers.append(LayerFigures(keys, values, _rms(self._rounded(layer, q, k, v, rule) - out) / _rms(out)))
        return out


@dataclass(frozen=True, slots=True)
class Prompt:
    """An image and words.

    Attributes:
        crops: The image.
        ids: The words.
    """

    crops: ImageCrops
    ids: Sequence[int]


@torch.inference_mode()
def watch_layers(model: MoondreamModel, prompt: Prompt) -> list[LayerFigures]:
    """Run a prompt exactly and return the effect of FP8 on each layer."""
    kv = kv_format("fp8", model, model.text.wte.device, model.text.wte.dtype)
    x = _embed(model, prompt)
    attention = WatchedAttention(_mask(model, x), model, kv)
    _run(model, x, attention)
    return attention.layers


@torch.inference_mode()
def compare_logits(model: MoondreamModel, prompt: Prompt, narrow: torch.dtype) -> dict[str, LogitFigures]:
    """Run a prompt with and without rounding, in float32 and in a narrower type, and compare with float32.

    Args:
        model: Its weights are those of the narrower type; the truth is the same numbers in float32.
        prompt: Logits at its words are compared.
        narrow: The type.

    Returns:
        Figures by what was run.
    """
    model = model.to(narrow)
    wide = copy.deepcopy(model).float()
    truth = _logits(wide, prompt, fp8=False)
    name = str(narrow).removeprefix("torch.")
    return {
        f"{name}, KV in {name}": _against(truth, _logits(model, prompt, fp8=False)),
        f"{name}, KV in FP8": _against(truth, _logits(model, prompt, fp8=True)),
        "float32, KV in FP8": _against(truth, _logits(wide, prompt, fp8=True)),
    }


def _logits(model: MoondreamModel, prompt: Prompt, *, fp8: bool) -> Tensor:
    """Return the logits at the words of a prompt, float32 ``[words, vocab]``."""
    x = _embed(model, prompt)
    mask = _mask(model, x)
    kv = kv_format("fp8", model, x.device, x.dtype)
    hidden = _run(model, x, RoundedAttention(mask, kv) if fp8 else MaskedAttention(mask))
    return model.logits(hidden[0, -len(prompt.ids) :]).float()


def _run(model: MoondreamModel, x: Tensor, attention: Attention) -> Tensor:
    return model.forward(x, torch.arange(x.shape[1], device=x.device), attention)


def _embed(model: MoondreamModel, prompt: Prompt) -> Tensor:
    """Embed BOS, image and words, ``[1, T, dim]``."""
    device = model.text.wte.device
    bos, words = (torch.tensor(ids, device=device) for ids in ([model.shape.bos_id], list(prompt.ids)))
    image = model.encode_image(torch.from_numpy(prompt.crops.pixels).to(device), prompt.crops.tiling)
    return torch.cat((model.embed(bos), image, model.embed(words)))[None]


def _mask(model: MoondreamModel, x: Tensor) -> Tensor:
    """Return the mask, bool ``[T, T]``: BOS and image see each other, words are causal."""
    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
    mask[: model.shape.prefix_length, : model.shape.prefix_length] = True
    return mask


def _against(truth: Tensor, found: Tensor) -> LogitFigures:
    deviation = truth.std(dim=-1)
    first, second = truth.topk(2, dim=-1).values.unbind(-1)
    margin = (first - second) / deviation
    agree = found.argmax(dim=-1) == truth.argmax(dim=-1)
    lost = margin[~agree]
    return LogitFigures(
        error=_rms((found - truth) / deviation[:, None]),
        agree=float(agree.float().mean()),
        margin=float(margin.median()),
        lost=float(lost.max()) if len(lost) else 0.0,
    )


def _rms(x: Tensor) -> float:
    return float(x.float().square().mean().sqrt())
