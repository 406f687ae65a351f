from typing import Any

import pytest

from bench.tiers import evict
from photonlite.errors import EngineDiedError
from tests.guard import GUARD
from tests.serving import IMAGE, on_thread, serve


def test_eviction_frees_every_page() -> None:
    with serve() as model:
        model.detect(IMAGE, "mug")
        pages = model._session.engine._core.scheduler.cache.pages
        assert pages.free < pages.usable

        evict(model)

        assert pages.free == pages.usable


def test_eviction_from_an_engine_that_fails_raises_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    with serve() as model:
        model.detect(IMAGE, "mug")
        monkeypatch.setattr(model._session.engine._core.scheduler.cache.prefix, "evict", fail)

        for _ in range(2):  # while it fails, and once it has failed
            error = on_thread(lambda: evict(model)).exception(GUARD)
            assert isinstance(error, EngineDiedError)
