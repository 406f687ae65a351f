"""Running work on a thread that ends with it."""

import threading
from collections.abc import Callable
from typing import TypeVar

from photonlite.device.cores import WORTH, compute_threads

_T = TypeVar("_T")


def in_passing(work: Callable[[], _T]) -> _T:
    """Run work on a thread that ends with it; return or raise what it does.

    OpenMP keeps a team of threads for every live thread that has ever computed in parallel. When all teams together
    have more threads than the machine has cores, GNU's OpenMP lets them sleep between operations at once, and each
    operation takes longer. One-time work, such as loading weights, runs here, so that the engine's thread has the only
    team. It uses spare cores only, as the engine's launches do.
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
