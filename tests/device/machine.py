"""A machine whose cores are busy as a test says."""

from photonlite.device.cores import SpareCores


class Machine:
    """Cores with a clock that the test advances."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.clock = self.own = 0.0
        self.idle: float | None = 0.0
        self.spare = SpareCores(lambda: self.idle, lambda: self.own, lambda: self.clock)

    def run(self, seconds: float, *, own: float = 0.0, others: float = 0.0) -> None:
        """Advance the clock while this process and others use so many cores."""
        self.clock += seconds
        self.own += seconds * own
        if self.idle is not None:
            self.idle += seconds * (self.count - own - others)
