"""Python's garbage collector, and its threads, in a process that has to answer in time."""

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Iterator

_YOUNG = 10_000
"""Objects made and not yet freed that start a young collection, in place of 700: a decode step of a full batch makes
more than those, and reference counting frees them all."""

_RARER = 10
"""Full collections come so many times later. Each walks the tokens of all open requests, and stops every thread for
some 20 ms where these have 100,000, of which it never frees one."""


@contextlib.contextmanager
def short_collections() -> Iterator[None]:
    """Keep the collector of cyclic garbage from walking what is there already, for the time of a block.

    A process with a model has some 200,000 objects. A full collection walks all of them, and every thread stands still
    for a tenth of a second, which is several frames of a camera (`python -m bench.host`). What is made in the block is
    collected as ever, but for full collections, which come ten times more rarely.
    """
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, before[1], _RARER * before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not frozen:  # what a caller has frozen stays so
            gc.unfreeze()


_TURN_S = 5e-5
_turns = threading.Lock()
_before: list[float] = []  # intervals before each open block of `short_turns`


@contextlib.contextmanager
def short_turns() -> Iterator[None]:
    """Let Python's threads take turns of 0.05 ms, in place of five, while any block of any thread is open.

    Only one thread runs Python at a time. An engine's gives way whenever it waits for the device or calls PyTorch, many
    times in a step, and comes back once the running one gives way or its turn ends: beside busy threads that took
    several steps (`python -m bench.host`). A shorter interval that is set already stays.
    """
    with _turns:
        _before.append(sys.getswitchinterval())
        sys.setswitchinterval(min(_TURN_S, _before[-1]))
    try:
        yield
    finally:
        with _turns:
            sys.setswitchinterval(_before.pop())  # blocks may end in any order: what is left last was there first


def _end_blocks() -> None:
    """End all blocks in a forked process, whose threads stayed in the parent, one of them perhaps with the lock."""
    global _turns
    _turns = threading.Lock()
    if _before:
        sys.setswitchinterval(_before[0])
        _before.clear()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_end_blocks)
