"""The calls that are open, from the question to the end of the answer: whether their images are prepared or not."""

import threading

from photonlite.engine.delivery import Delivery
from photonlite.errors import DeadlineError


class Calls:
    """Counts calls.

    Attributes:
        open: Calls that have not ended.
        late: Calls whose deadlines passed before they were handed to the engine.
    """

    def __init__(self) -> None:
        self.open = 0
        self.late = 0
        self._lock = threading.RLock()  # a collection of garbage in the middle of anything may end a call

    def watch(self, delivery: Delivery) -> None:
        """Count a call that begins, and its end when that comes."""
        with self._lock:
            self.open += 1
        delivery.on_end = self._end

    def _end(self, delivery: Delivery) -> None:
        late = not delivery.handed_in and isinstance(delivery.future.exception(), DeadlineError)
        with self._lock:
            self.open -= 1
            self.late += late
