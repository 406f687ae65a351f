"""What an adapter is made of: low-rank terms at places of a model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from photonlite.errors import AdapterError
from photonlite.models.quantised import QuantisedLinear


class AdapterPlace(NamedTuple):
    """Where a term is added: to outputs ``[first, stop)`` of a layer, by the model's own name of it."""

    layer: str
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class AdapterTerm:
    """``B A x``, added to the outputs of a place whose layer reads `x`.

    Of a layer of E experts each has its own: ``[E, r, K]`` and ``[E, N, r]``.
    """

    place: AdapterPlace
    a: Tensor  # [r, K]
    b: Tensor  # [N, r]; includes the adapter's scale

    @property
    def rank(self) -> int:
        return self.a.shape[-2]

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """An adapter in host memory; `key` is the hash of its files' content."""

    key: str
    terms: tuple[AdapterTerm, ...]

    @property
    def nbytes(self) -> int:
        return sum(term.nbytes for term in self.terms)

    def pinned(self) -> "AdapterWeights":
        """Return the same in one piece of page-locked memory."""
        terms = self.terms
        sizes = [matrix.numel() for term in terms for matrix in (term.a, term.b)]
        parts = iter(torch.split(torch.empty(sum(sizes), dtype=terms[0].a.dtype, pin_memory=True), sizes))

        def moved(matrix: Tensor) -> Tensor:
            return next(parts).view(matrix.shape).copy_(matrix)

        return AdapterWeights(self.key, tuple(AdapterTerm(term.place, moved(term.a), moved(term.b)) for term in terms))

    @property
    def rank(self) -> int:
        return max(term.rank for term in self.terms)


def whole_layer(model: nn.Module, name: str) -> AdapterPlace | None:
    """Return the place of all outputs of a linear layer of the blocks, or of the image encoder; None for others."""
    if not name.startswith(("text.blocks.", "vision.")):
        return None
    try:
        layer = model.get_submodule(name)
    except AttributeError:
        return None
    return AdapterPlace(name, 0, layer.out_features) if isinstance(layer, nn.Linear | QuantisedLinear) else None


def refuse_variant(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> list[AdapterTerm]:
    """Raise AdapterError: `families.Family.read_variant` of families whose makers have no format of their own."""
    raise AdapterError(f"{source} has no adapter_config.json beside it: name the folder that PEFT wrote")


def check_terms(terms: Iterable[AdapterTerm], model: nn.Module, limit: int, source: str) -> None:
    """Raise AdapterError for a term of another base model's shape, or over the limit of ranks."""
    for term in terms:
        layer, outputs = term.place.layer, term.place.stop - term.place.first
        module = model.get_submodule(layer)
        inputs, experts = inputs_of(module), _experts_of(module)
        halves = (*experts, term.rank, inputs), (*experts, outputs, term.rank)
        if not term.rank or (term.a.shape, term.b.shape) != halves:
            each = f" of {experts[0]} experts" if experts else ""
            raise AdapterError(
                f"{source} was made for another model: its matrices at {layer} are {list(term.a.shape)} and "
                f"{list(term.b.shape)}, where {inputs} inputs and {outputs} outputs{each} are expected"
            )
        if term.rank > limit:
            raise AdapterError(
                f"{source} has rank {term.rank} at {layer}, over the limit of {limit}: raise the engine setting "
                "'adapter_rank', or train it with a smaller rank"
            )


def wide(tensor: Tensor) -> Tensor:
    """Return a tensor in float32 at least: a scale is multiplied before the numbers are rounded."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _experts_of(layer: nn.Module) -> tuple[int, ...]:
    """Return the leading dimensions of a layer's matrices: the number of its experts, or nothing."""
    weight = None if isinstance(layer, QuantisedLinear) else getattr(layer, "weight", None)
    return tuple(weight.shape[:-2]) if isinstance(weight, Tensor) else ()


def inputs_of(layer: nn.Module) -> int:
    """Return how many numbers a layer reads: a linear one, or one that says so by itself."""
    found = layer.in_features
    if not isinstance(found, int):
        raise AssertionError(f"{type(layer).__name__} has {found!r} inputs")
    return found
