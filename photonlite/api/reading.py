"""Reading the images of a request: fetch, room, decode; each step names the image that fails.

```
sources ── fetch URLs ── sizes from headers ──> do they fit the context? ── room for all ── decode each source once
```
"""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from photonlite.api.tasks import EncodedImage, Task
from photonlite.engine.handle import RequestHandle
from photonlite.engine.memory_gate import MemoryPermit
from photonlite.images.pool import ImagePool
from photonlite.images.source import named_image, source_key

Enter = Callable[..., Generator["Future[Any]", None, MemoryPermit]]
"""Waits for so many bytes, of so many `images`; returns the permit."""

FETCHED_BYTES: Final = 16 * 2**20
"""Reserved for an image file while it is fetched; a larger one takes more as it grows."""


def read_images(handle: RequestHandle, task: Task[Any], pool: ImagePool, enter: Enter) -> Iterator["Future[Any]"]:
    """Prepare the images of a request; yields the futures that it waits for.

    Room is taken for all at once: no two requests then wait for each other's second image. A source that stands in
    several places is prepared once. May raise an ImageError, or a CapacityError before anything is decoded.
    """
    sources: list[Any] = list(task.images)
    firsts: dict[Any, int] = {}
    origins = [firsts.setdefault(source_key(source), place) for place, source in enumerate(sources)]
    new = [place for place in firsts.values() if not isinstance(sources[place], EncodedImage)]
    if urls := [place for place in new if pool.fetches(sources[place])]:
        yield from _fetch(handle, sources, urls, pool, enter)
    headers = {place: pool.image_size(sources[place]) for place in new}
    sizes = [headers[place] if place in headers else sources[place].picture_size for place in origins]
    if known := None not in sizes:
        task.check_sizes(sizes)
    permit = None
    if new:
        expected = sum(3 * size[0] * size[1] for size in headers.values() if size is not None)
        permit = yield from enter(expected, images=len(new))
    _prepare(handle, sources, origins, pool, permit)
    if not known:
        task.check_sizes([image.size for image in handle.images])


def _prepare(
    handle: RequestHandle, sources: list[Any], origins: list[int], pool: ImagePool, permit: MemoryPermit | None
) -> None:
    """Prepare each source once, and put it in all its places; `origins` are the first ones."""
    cache_salt, adapter_key, room = handle.request.cache_salt, handle.request.adapter_key, 0
    for place, origin in enumerate(origins):
        source = sources[origin]
        with named_image(place + 1, len(sources)):
            if origin < place:
                handle.images = (*handle.images, handle.images[origin])
                continue
            if isinstance(source, EncodedImage):
                handle.prepare(partial(source.prepared_for, pool, cache_salt, adapter_key))
                continue
            salts = {"cache_salt": cache_salt, "adapter_key": adapter_key}
            handle.prepare(partial(pool.prepare, source, **salts, checkpoint=handle.check))
        width, height = handle.images[-1].size
        room += 3 * width * height
        if permit is not None and room > permit.size:  # some headers cannot be read ahead
            permit.resize(room)
    if permit is not None:
        permit.resize(room)


def _fetch(
    handle: RequestHandle, sources: list[Any], places: list[int], pool: ImagePool, enter: Enter
) -> Iterator["Future[Any]"]:
    """Put the files in the places of their URLs."""
    permit = yield from enter(FETCHED_BYTES * len(places))
    held = dict.fromkeys(places, FETCHED_BYTES)
    fetches = [pool.fetch(sources[place], partial(_grow, permit, held, place)) for place in places]
    for fetched in fetches:
        handle.when_computed(fetched.cancel)
    for place, fetched in zip(places, fetches, strict=True):
        yield fetched
        with named_image(place + 1, len(sources)):
            sources[place] = fetched.result(timeout=0)
    permit.release()


def _grow(permit: MemoryPermit, held: dict[int, int], place: int, size: int) -> None:
    """Note the bytes of one of the files that are being fetched."""
    held[place] = max(held[place], size)
    if (whole := sum(held.values())) > permit.size:
        permit.resize(whole)
