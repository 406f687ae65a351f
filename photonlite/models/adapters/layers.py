"""A copy of a model whose layers add the terms of adapters; it shares all weights with the model.

A batch without adapters runs the model itself, which knows nothing of this.
"""

import copy
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from photonlite.kernels.adapters import AdapterRows, AdapterStack, add_adapters
from photonlite.models.adapters.terms import AdapterPlace, AdapterTerm, AdapterWeights
from photonlite.models.base import Model


class CurrentRows(threading.local):
    """The rows of the batch that runs on this thread: set by `AdapterBank.running`, read by all layers."""

    rows: AdapterRows | None = None

    def __call__(self) -> AdapterRows:
        if self.rows is None:
            raise AssertionError("a model with adapters runs without rows: which slots they have is not known")
        return self.rows


class AdaptedLayer(nn.Module):
    """A layer, and the terms that adapters add to its outputs; everything else is the layer's own."""

    def __init__(self, base: nn.Module, current: CurrentRows) -> None:
        super().__init__()
        self.base = base
        self.stacks: dict[AdapterPlace, AdapterStack] = {}
        self.current = current

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base"), name)

    def forward(self, x: Tensor, *args: Any) -> Tensor:
        y: Tensor = self.base(x, *args)
        for stack in tuple(self.stacks.values()):
            add_adapters(y, x, self.current(), stack)
        return y


class AdapterBank:
    """A model with adapters in slots 1 to `slots`, of a rank up to `rank`; slot 0 stands for none.

    Memory for a place is allocated with the first adapter that has a term there. Any thread may write a slot that no
    launch reads; others may be read meanwhile. `generation` counts how often places were added: what was captured
    before lacks some.
    """

    def __init__(self, model: nn.Module, slots: int, rank: int) -> None:
        self.slots, self.rank = slots, rank
        self.generation = 0
        self._lock = threading.RLock()  # of all that changes layers, stacks and slots
        self._current = CurrentRows()
        self._copy = copy_modules(model)
        self._layers: dict[str, AdaptedLayer] = {}

    @property
    def model(self) -> Model:
        """The copy; it must run inside `running`."""
        return cast(Model, self._copy)

    @property
    def rows(self) -> AdapterRows:
        """The rows of the batch that runs on this thread."""
        return self._current()

    def stacks(self, layer: str) -> tuple[AdapterStack, ...]:
        """Return what has been allocated at a layer, by the model's own name of it."""
        return tuple(self._layers[layer].stacks.values()) if layer in self._layers else ()

    @property
    def nbytes(self) -> int:
        """Bytes that slots take on the device."""
        stacks = [stack for layer in self._layers.values() for stack in layer.stacks.values()]
        return sum(stack.a.nbytes + stack.b.nbytes for stack in stacks)

    @contextmanager
    def running(self, rows: AdapterRows) -> Iterator[Model]:
        """Say which slots the rows of the next forward passes have."""
        self._current.rows = rows
        try:
            yield self.model
        finally:
            self._current.rows = None

    @torch.no_grad()
    def reserve(self, weights: AdapterWeights) -> None:
        """Allocate what the terms of an adapter need in every slot, where that is not there yet."""
        with self._lock:
            for term in weights.terms:
                stacks = self._layer(term.place.layer).stacks
                if term.place not in stacks:
                    self.generation += 1
                    stacks[term.place] = self._stack(term)

    @torch.no_grad()
    def write(self, slot: int, weights: AdapterWeights) -> None:
        """Put an adapter into a slot, on the current stream of a card."""
        if not 0 < slot <= self.slots:
            raise AssertionError(f"slot {slot} of {self.slots}: slot 0 holds nothing")
        terms = {term.place: term for term in weights.terms}
        with self._lock:
            self.reserve(weights)
            copies: list[tuple[Tensor, Tensor]] = []
            unused: list[Tensor] = []
            for layer in self._layers.values():
                for place, stack in layer.stacks.items():
                    term = terms.get(place)
                    rank = stack.ranks[slot] = 0 if term is None else term.rank
                    a, b = stack.a[slot], stack.b[slot]
                    if rank < self.rank:
                        unused += [a[..., rank:, :], b[..., rank:]]
                        a, b = a[..., :rank, :], b[..., :rank]
                    if term is not None:
                        copies += [(a, term.a), (b, term.b)]
            # Two calls for hundreds of matrices: each call would take the GIL from the engine's thread.
            if unused:
                torch._foreach_zero_(unused)
            torch._foreach_copy_([target for target, _ in copies], [source for _, source in copies], non_blocking=True)

    def _layer(self, name: str) -> AdaptedLayer:
        if name not in self._layers:
            parent, _, last = name.rpartition(".")
            owner = self._copy.get_submodule(parent)
            while isinstance(owner, AdaptedLayer):
                owner = owner.base
            layer = getattr(owner, last)
            wrap = getattr(layer, "with_adapters", None)  # a layer of several matrices adds terms inside
            adapted = AdaptedLayer(layer, self._current) if wrap is None else wrap(self._current)
            setattr(owner, last, adapted)
            self._layers[name] = adapted
        return self._layers[name]

    def _stack(self, term: AdapterTerm) -> AdapterStack:
        # A quantised layer may have no parameters at all.
        weight = next(self._copy.get_submodule(term.place.layer).parameters(), term.a)
        dtype = weight.dtype if weight.dtype.is_floating_point and weight.element_size() > 1 else term.a.dtype
        device = next(self._copy.parameters()).device
        zeros: Callable[..., Tensor] = functools.partial(torch.zeros, device=device, dtype=dtype)
        experts = term.a.shape[:-2]
        a = zeros(self.slots + 1, *experts, self.rank, term.a.shape[-1])
        b = zeros(self.slots + 1, *experts, term.b.shape[-2], self.rank)
        return AdapterStack(a, b, term.place.first, [0] * (self.slots + 1))


def copy_modules(module: nn.Module) -> nn.Module:
    """Copy a tree of modules that share their parameters: layers of the copy can be replaced."""
    copied = copy.copy(module)
    copied._modules = {name: None if child is None else copy_modules(child) for name, child in module._modules.items()}
    return copied
