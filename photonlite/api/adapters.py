"""The adapters of a model, by name."""

import os
import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath

import torch
from torch import nn

from photonlite.config import EngineConfig
from photonlite.engine.adapters import AdapterReader, AdapterStore, HostAdapter
from photonlite.engine.engine import Engine
from photonlite.errors import AdapterError, SettingsError, UnknownAdapterError
from photonlite.hints import did_you_mean
from photonlite.models.adapters.files import find_adapter
from photonlite.models.checkpoint import LoadedModel

_NAME = re.compile(r"[\w.@-]{1,100}")


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that is loaded.

    Attributes:
        name: What requests call it.
        key: Hash of its files' content.
        source: The folder, file or Hub id that it was loaded from.
        rank: Its largest rank.
        nbytes: Host memory that its weights take.
    """

    name: str
    key: str
    source: str
    rank: int
    nbytes: int


class Adapters:
    """Loads, lists and finds adapters; from any thread. It outlives the engine, which may be restarted."""

    def __init__(self, loaded: LoadedModel, dtype: torch.dtype, config: EngineConfig, engine: Engine) -> None:
        self._engine = engine
        self._store: AdapterStore | None = None
        if loaded.family is not None and isinstance(loaded.model, nn.Module):
            reader = AdapterReader(loaded.model, loaded.family, dtype, config.adapter_rank)
            self._store = AdapterStore(reader, config.adapter_bytes)
        self._lock = threading.Lock()
        self._used = False  # by an engine: requests may have adapters whose names are forgotten

    def load(self, source: str | os.PathLike[str], name: str | None) -> Adapter:
        """Load an adapter; see `VisionModel.load_adapter`."""
        if self._store is None:
            raise SettingsError(
                "this model takes no adapters: one on several ranks, or not loaded from files, has none"
            )
        files = find_adapter(source)
        chosen = PurePath(os.fspath(source)).name.removesuffix(".safetensors") if name is None else name
        if not isinstance(chosen, str) or not _NAME.fullmatch(chosen):
            raise AdapterError(
                f"{str(chosen)!r:.120} cannot be an adapter's name: give up to 100 letters, digits and . _ @ - as name"
            )
        with self._lock:
            engine = self._engine
            engine.check()  # it may have died, or been restarted, while files were downloaded
            engine.use_adapters(self._store)
            self._used = True
            return _described(self._store.load(chosen, files, engine.reserve_adapter))

    def listed(self) -> list[Adapter]:
        return [] if self._store is None else [_described(one) for one in self._store.named.values()]

    def unload(self, name: str) -> None:
        """Forget an adapter; UnknownAdapterError where there is none of this name."""
        self.find(name)
        if self._store is None or self._store.unload(name) is None:
            raise self._unknown(name)

    def find(self, name: object) -> HostAdapter | None:
        """Return the adapter of a name, None for None; UnknownAdapterError says which there are."""
        if name is None:
            return None
        if not isinstance(name, str):
            raise UnknownAdapterError(
                f"adapter is of type {type(name).__name__}: give the name of a loaded one, or None"
            )
        found = None if self._store is None else self._store.named.get(name)
        if found is None:
            raise self._unknown(name)
        return found

    def resume(self, engine: Engine) -> None:
        """Let a new engine take the adapters that are loaded, before it takes requests."""
        with self._lock:
            self._engine = engine
            if self._store is None or not self._used:
                return
            engine.use_adapters(self._store)
            for adapter in self._store.named.values():
                with suppress(AdapterError):  # files that are gone end the requests that need them
                    engine.reserve_adapter(self._store.weights_of(adapter))

    def _unknown(self, name: str) -> UnknownAdapterError:
        names = [one.name for one in self.listed()]
        loaded = f"loaded are {', '.join(names)}" if names else "none is loaded; load_adapter() loads one"
        return UnknownAdapterError(f"no adapter is called {name!r:.100}{did_you_mean(name, names)}: {loaded}")


def _described(adapter: HostAdapter) -> Adapter:
    return Adapter(adapter.name, adapter.key, adapter.files.source, adapter.rank, adapter.nbytes)
