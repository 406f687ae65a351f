"""No table of a model grows with the number of ended requests, however they end."""

import asyncio
import contextlib
import gc
import time

import pytest

from photonlite.api import VisionModel
from photonlite.errors import PhotonliteError
from tests.compiling import fake_compilers
from tests.growth import grown, table_sizes
from tests.serving import IMAGE, make_image, run, serve

SETTINGS = {"max_tokens": 6}
BOUNDED = ("_rows", "_deadlines", "_bins", "_buckets")
"""Tables with a bound of their own: kept masks, deadlines of what has ended, histograms."""

LATE = 2
"""Prefixes that a round may compute or not: those of requests that may be ended by their deadlines first."""


class Held:
    """A class outside photonlite."""


class Table:
    __module__ = "photonlite.pretended"

    def __init__(self) -> None:
        self.entries: list[object] = []
        self.more = {"inner": {1, 2}}


def test_tables_are_found_by_reference_and_growth_is_named() -> None:
    table = Table()
    before = table_sizes(table)
    assert before == {"entries": 0, "more": 1, "more[]": 2}
    table.entries.append(Held())
    table.more["other"] = set()

    assert grown(before, table_sizes(table)) == {"entries": (0, 1), "more": (1, 2)}


def ask_everything(model: VisionModel) -> None:
    """Send requests of every kind: answered, refused, late, cancelled, streamed, dropped, typed, scored, batched."""
    model.detect(IMAGE, "mug", settings={"max_objects": 2}, cache_salt="one")
    model.query(None, "why?" * 9, settings=SETTINGS, cache_salt="other", realtime=True)
    model.query(IMAGE, "why?", choices=["ab", "ac", "b", "ba", "bab"])
    model.query(IMAGE, "why?", regex="[ab]{2}", settings=SETTINGS)
    model.detect(IMAGE, ["mug", "key"], settings={"max_objects": 2}, tile=(1, 2))
    with contextlib.suppress(PhotonliteError):
        model.point(IMAGE, ["mug", "key"], deadline_s=1e-3)
    encoded = model.encode_image(IMAGE)
    stream = model.caption(encoded, stream=True)["caption"]
    next(iter(stream))
    del stream
    for options in ({"deadline_s": 1e-9}, {"cache_salt": 3}, {"deadline_s": 1e-9, "realtime": True}):
        with contextlib.suppress(PhotonliteError):
            model.point(make_image(1), "mug", **options)  # type: ignore[arg-type]
    with contextlib.suppress(PhotonliteError):
        model.caption(b"no image")
    model.batch([{"skill": "detect", "image": IMAGE, "object": "mug", "settings": {"max_objects": 1}}] * 3)
    run(cancelled(model))


async def cancelled(model: VisionModel) -> None:
    tasks = [asyncio.ensure_future(model.aquery(IMAGE, "why?", settings=SETTINGS)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def sizes(model: VisionModel) -> dict[str, int]:
    session = model._session
    gc.collect()
    while session.open or not session.engine._core.idle:
        time.sleep(0)  # what was cancelled leaves with the step that carries it
    return table_sizes(session)


@pytest.mark.long
def test_no_table_grows_with_ended_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_compilers(monkeypatch)
    with contextlib.ExitStack() as stack:
        model = serve()
        stack.callback(model.close, drain=False)  # draining would wait for what a table keeps
        ask_everything(model)
        before = sizes(model)
        for _ in range(5):
            ask_everything(model)

        tables = {path: size for path, size in grown(before, sizes(model)).items() if not path.endswith(BOUNDED)}
        for path in [path for path in tables if ".prefix." in path]:
            old, new = tables.pop(path)
            assert new <= old + LATE
        assert not tables
