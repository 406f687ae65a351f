"""Weights in 8 and 4 bits: which layers have them, and how they are made while a checkpoint is read.

Those of the decoder's blocks, of its head, and of the image encoder. Embeddings, norms, the first layer of patches and
heads of numbers keep the model's type. A head that is the embedding gets a quantised copy of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from photonlite.config import Precision
from photonlite.device.cpu import set_threads
from photonlite.errors import CheckpointError, SettingsError
from photonlite.kernels import cards
from photonlite.kernels.host_products import HostProduct, Pack, Stored, kernel
from photonlite.kernels.quantised import Weight, dense
from photonlite.kernels.quantised import obstacle as weight_obstacle
from photonlite.kernels.reference.compensation import quantise_for
from photonlite.kernels.reference.quantised import QuantisedWeight, empty, quantise
from photonlite.models.families import LoadOptions
from photonlite.models.matching import check_tensors
from photonlite.models.precisions import Precisions
from photonlite.models.shards import read_headers, read_tensors

_PARTS = ("values", "scale", "shift")
_TEXT = "text."  # begins the names of the decoder's layers
_LEFT = ("patch_emb", "patch_embed", "router")  # last parts of names of layers that keep the model's type


def layers_of(model: nn.Module, precisions: Precisions) -> dict[str, Precision]:
    """Return the names of the linear layers that are quantised, and how."""
    found = {}
    for name, module in model.named_modules():
        part, _, rest = name.partition(".")
        precision = {"text": precisions.text, "vision": precisions.vision}.get(part)
        if type(module) is nn.Linear and precision is not None and rest.rpartition(".")[2] not in _LEFT:
            found[name] = precision
    return found


def precisions_of(model: nn.Module) -> dict[str, Precision]:
    """Return the precision of quantised text and vision layers of a loaded model, by part."""
    named = [(name.partition(".")[0], getattr(module, "precision", None)) for name, module in model.named_modules()]
    return {part: precision for part, precision in named if precision is not None}


def give_head(model: Any) -> bool:
    """Give a decoder whose head is its embedding a head of its own, without values yet; return whether it got one."""
    if getattr(model.text, "head", model) is not None:
        return False
    rows, columns = model.text.words.shape
    with torch.device("meta"):
        model.text.head = nn.Linear(columns, rows, bias=False)
    return True


def outline_bytes(model: nn.Module, precisions: Precisions, dtype: torch.dtype) -> int:
    """Return the bytes that the weights of a model without values will take; it is changed."""
    if precisions.text is not None:
        give_head(model)
    replace_layers(model, layers_of(model, precisions))
    state = model.state_dict().items()
    return sum(
        value.numel() * (value.element_size() if _keeps_type(name, value) else dtype.itemsize) for name, value in state
    )


def _keeps_type(name: str, value: Tensor) -> bool:
    return name.rpartition(".")[2] in _PARTS or value.dtype == torch.float8_e4m3fn  # of experts


def load_stored(files: Iterable[Path], model: nn.Module, options: LoadOptions) -> None:
    """Give a model without values those of files in photonlite's own form; CheckpointError for unusable files."""
    device, dtype = options.device, options.dtype
    replace_layers(model, layers_of(model, options.precisions))
    expected = model.state_dict()
    found = {info.name: info for info in read_headers(files)}
    check_tensors(found, {name: tuple(value.shape) for name, value in expected.items()})
    state = {}
    for name, (info, mapped) in zip(found, read_tensors(found.values()), strict=True):
        kept = expected[name].dtype if name.rpartition(".")[2] in _PARTS else dtype
        if kept != dtype and mapped.dtype != kept:
            raise CheckpointError(f"{name} in {info.file} has type {info.dtype}, where {kept} is expected")
        state[name] = torch.empty(mapped.shape, dtype=kept, device=device).copy_(mapped)
    give_values(model, state, device, dtype)


def obstacle(module: nn.Module) -> str | None:
    """Return what keeps kernels that take matrices from a part of a model, if it has quantised layers."""
    found = next((one for one in module.modules() if isinstance(one, QuantisedLinear)), None)
    return None if found is None else f"its weights are in {found.precision}"


def refuse_fp8(model: nn.Module) -> None:
    """Raise SettingsError for a model whose products cannot be those of e4m3 numbers."""
    if (reason := obstacle(model)) is not None:
        raise SettingsError(
            f"engine setting 'fp8_linears' is on, but the model cannot multiply in FP8, because {reason}: leave it off"
        )


def stored_weight(layer: nn.Module) -> Weight:
    """Return the weight of a linear layer, quantised or not."""
    if isinstance(layer, QuantisedLinear):
        return layer.stored
    assert isinstance(layer, nn.Linear), f"{type(layer).__name__} is no linear layer"
    return layer.weight


def fused_obstacle(text: nn.Module, *joined: nn.Module) -> str | None:
    """Return what keeps fused kernels from a decoder with quantised layers; products of `joined` ones become one."""
    layers = [layer for layer in text.modules() if isinstance(layer, QuantisedLinear)]
    if any(layer.is_prepared for layer in layers):
        return "its weights are in the form of the CPU's products"
    if any(isinstance(layer, QuantisedLinear) != isinstance(joined[0], QuantisedLinear) for layer in joined):
        return "only some layers of a block are quantised"
    if len({layer.precision for layer in layers if layer in joined}) > 1:
        return "layers of a block are quantised in several ways"
    if any(layer.precision == "fp8" for layer in layers):
        card = cards.card_of(layers[0].values.device)
        if (reason := cards.obstacle(card, cards.fp8_needs("small_batch_gemm"))) is not None:
            return reason if card is None else f"{reason}: fp8 saves memory alone there; weights in int8 save time too"
    return next((reason for layer in layers if (reason := weight_obstacle(layer.stored)) is not None), None)


class QuantisedLinear(nn.Module):
    """A linear layer whose weight is quantised: `values`, `scale` and, of int4, `shift`.

    On the CPU :meth:`prepare` hands the weight over to a product that may store it in another form.
    """

    def __init__(self, shape: tuple[int, int], precision: Precision, *, bias: bool) -> None:
        super().__init__()
        self.out_features, self.in_features = shape
        self.precision = precision
        like = empty(shape, precision, "meta")
        for name in _PARTS:
            value = getattr(like, name)
            self.register_parameter(name, None if value is None else nn.Parameter(value, requires_grad=False))
        self.bias = nn.Parameter(torch.empty(shape[0]), requires_grad=False) if bias else None
        self._product: HostProduct | None = None

    @classmethod
    def of(cls, linear: nn.Linear, precision: Precision) -> QuantisedLinear:
        """Quantise a layer that has its values."""
        shape = linear.out_features, linear.in_features
        layer = cls(shape, precision, bias=linear.bias is not None)
        layer.share(quantise(linear.weight.detach(), precision))
        layer.bias = linear.bias
        return layer

    @property
    def is_prepared(self) -> bool:
        """Whether the weight is in the form of a product: `stored` is gone."""
        return self._product is not None

    @property
    def stored(self) -> QuantisedWeight:
        """The weight, before :meth:`prepare`."""
        return QuantisedWeight(*(getattr(self, name) for name in _PARTS))

    def share(self, weight: QuantisedWeight) -> None:
        """Take another form of the same weight, such as a part of a larger one."""
        for name in _PARTS:
            value = getattr(weight, name)
            setattr(self, name, None if value is None else nn.Parameter(value, requires_grad=False))

    @property
    def weight(self) -> Tensor:
        """The weight as a matrix, computed anew."""
        dtype = torch.float32 if self.bias is None else self.bias.dtype
        return dense(self.stored, dtype) if self._product is None else self._product.matrix(dtype)

    def forward(self, x: Tensor) -> Tensor:
        if self._product is None:
            return functional.linear(x, dense(self.stored, x.dtype), self.bias)
        out = self._product.multiply(x.reshape(-1, x.shape[-1])).to(x.dtype).view(*x.shape[:-1], -1)
        return out if self.bias is None else out + self.bias

    def prepare(self, pack: Pack | None) -> None:
        """Hand the weight over to a kernel of the CPU, if there is one that takes it."""
        self._product = (pack and pack(self.stored)) or Stored(self.stored)
        for name in _PARTS:
            setattr(self, name, None)


class WeightStore:
    """Takes the parameters of a model as they are read, part by part, and quantises those of some layers.

    Args:
        model: Without values.
        layers: Precisions of layers, by name.
        options: Where the model will be, and the moments of the inputs of layers in int4, where they are known.
    """

    def __init__(self, model: nn.Module, layers: Mapping[str, Precision], options: LoadOptions) -> None:
        self._moments = options.precisions.moments
        self._layers, self._device, self._dtype = layers, options.device, options.dtype
        self._shapes = {name: value.shape for name, value in model.state_dict().items()}
        self._state: dict[str, Tensor] = {}
        self._model = model
        replace_layers(model, layers)

    def put(self, name: str, value: Tensor, rows: slice = slice(None), dtype: torch.dtype | None = None) -> None:
        """Store some rows of a parameter, all by default, in the model's type or another; may raise CheckpointError."""
        layer = name.removesuffix(".weight")
        if layer in self._layers and layer != name:
            try:
                self.put_quantised(layer, self._quantise(layer, value.to(self._device)), rows)
            except ValueError as cause:
                raise CheckpointError(f"{name}: {cause}") from cause
            return
        if name not in self._state:
            self._state[name] = torch.empty(self._shapes[name], dtype=dtype or self._dtype, device=self._device)
        self._state[name][rows].copy_(value)

    def _quantise(self, layer: str, value: Tensor) -> QuantisedWeight:
        if layer in self._moments:
            return quantise_for(value, self._moments[layer])
        return quantise(value, self._layers[layer])

    def put_quantised(self, layer: str, weight: QuantisedWeight, rows: slice = slice(None)) -> None:
        """Store some rows of a layer's weight."""
        if f"{layer}.values" not in self._state:
            whole = empty(self._shapes[f"{layer}.weight"], weight.precision, self._device)
            self._state |= {f"{layer}.{part}": value for part, value in _tensors(whole).items()}
        for part, value in _tensors(weight).items():
            self._state[f"{layer}.{part}"][rows].copy_(value)

    def fill(self) -> None:
        """Give the model its values, in evaluation mode and without gradients."""
        give_values(self._model, self._state, self._device, self._dtype)


def replace_layers(model: nn.Module, layers: Mapping[str, Precision]) -> None:
    """Replace linear layers without values by quantised ones; SettingsError where a precision does not suit one."""
    for name, precision in layers.items():
        parent, _, child = name.rpartition(".")
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear), f"{name} is no linear layer"
        shape = linear.out_features, linear.in_features
        try:
            with torch.device("meta"):
                layer = QuantisedLinear(shape, precision, bias=linear.bias is not None)
        except ValueError as cause:
            raise SettingsError(f"{name} cannot have weights in {precision}: {cause}; use int8 or fp8") from cause
        setattr(model.get_submodule(parent), child, layer)


def quantise_layers(model: nn.Module, precisions: Precisions) -> None:
    """Quantise the layers of a model that has its values, one by one."""
    for name, precision in layers_of(model, precisions).items():
        parent, _, child = name.rpartition(".")
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear), f"{name} is no linear layer"
        setattr(model.get_submodule(parent), child, QuantisedLinear.of(linear, precision))


def give_values(model: nn.Module, state: Mapping[str, Tensor], device: torch.device | str, dtype: torch.dtype) -> None:
    """Give a model its values, in evaluation mode and without gradients."""
    model.load_state_dict(state, assign=True)
    model.requires_grad_(False).eval()


def prepare(model: nn.Module, device: torch.device) -> None:
    """Convert quantised layers to what a device multiplies with; an image encoder multiplies in the model's type."""
    if device.type != "cpu":
        return
    layers = {name: one for name, one in model.named_modules() if isinstance(one, QuantisedLinear)}
    packs = [kernel(layer.precision) if name.startswith(_TEXT) else None for name, layer in layers.items()]
    # PyTorch packs int8 in one thread. It packs int4 in several, and would take five bytes a weight in each of ours.
    narrow = any(layer.precision == "int4" for layer in layers.values())
    threads = 1 if narrow else torch.get_num_threads()
    with ThreadPoolExecutor(threads, initializer=None if narrow else partial(set_threads, 1)) as pool:
        list(pool.map(QuantisedLinear.prepare, layers.values(), packs))


def _tensors(weight: QuantisedWeight) -> dict[str, Tensor]:
    return {name: value for name in _PARTS if (value := getattr(weight, name)) is not None}
