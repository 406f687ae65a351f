"""Threads that computing leaves behind, and how to leave none."""

import threading
from collections.abc import Callable
from typing import TypeVar

from photonlite.device.cores import WORTH, compute_threads

_T = TypeVar("_T")


def in_passing(work: Callable[[], _T]) -> _T:
    """Do work on a thread that ends with it, and give what it gives, or raise what it raises.

    OpenMP keeps a team of threads for every thread that has ever computed in parallel, as long as that lives. When all
    teams together have more threads than the machine has cores, GNU's OpenMP lets them sleep between operations at
    once, and each operation takes longer. What is done once, such as loading weights, is done here, so that the
    engine's own thread has the only team. It is spread over spare cores alone, as the engine's launches are.
    """
    outcome: list[_T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            with compute_threads().spread(WORTH):
                outcome.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="photonlite-start", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
