"""Python's garbage collector in a process that has to answer in time."""

import contextlib
import gc
from collections.abc import Iterator

_YOUNG = 10_000
"""Objects made and not yet freed that start a young collection, in place of 700: a decode step of a full batch makes
more than those, and reference counting frees them all."""


@contextlib.contextmanager
def short_collections() -> Iterator[None]:
    """Keep the collector of cyclic garbage from walking what is there already, for the time of a block.

    A process with a model has some 200,000 objects. A full collection walks all of them, and every thread stands still
    for a tenth of a second, which is several frames of a camera (`python -m bench.host`). What is made in the block is
    collected as ever.
    """
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not frozen:  # what a caller has frozen stays so
            gc.unfreeze()
