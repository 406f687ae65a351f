"""What the threads that prepare images need of an engine, which they must not keep alive."""

import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np

from photonlite.cache.store.store import ImageStore
from photonlite.engine.engine import Engine
from photonlite.images.pool import ImagePool

P = ParamSpec("P")
R = TypeVar("R")


def connect(pool: ImagePool, engine: Engine, store: ImageStore | None) -> None:
    """Let images be cut, and read from a store, into the memory of an engine, which is woken when they are."""
    pool.buffer = _weakly(engine.host_array, lambda shape: np.empty(shape, np.uint8))
    if store is not None:
        store.buffer = pool.buffer
        store.policy.unit_costs = _weakly(engine.get_unit_costs, lambda: (None, None))
    pool.on_ready = _weakly(engine.wake, lambda: None)


def _weakly(method: Callable[P, R], otherwise: Callable[P, R]) -> Callable[P, R]:
    """Return a call of a method that does not keep its object alive, and of `otherwise` once that is gone."""
    known = weakref.WeakMethod(method)
    return lambda *args, **kwargs: (known() or otherwise)(*args, **kwargs)
