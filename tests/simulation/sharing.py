"""What launches share: pages only among requests of one tenant, and the buffer that uncut images are copied to."""

from typing import TYPE_CHECKING

from photonlite.batch import Step, Transfer
from tests.simulation.body import Violation

if TYPE_CHECKING:
    from tests.simulation.simulator import Simulation


class Sharing:
    """Watches launches.

    Args:
        simulation: Whose.
    """

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._salts: dict[int, str] = {}  # for each page, whose keys and values were last written to it

    def launching(self, step: Step) -> None:
        """Check a launch that has been planned and not yet done."""
        self._check_pages(step)
        self._check_image_bytes(step)

    def transferring(self, transfer: Transfer) -> None:
        """Note for whom pages come back from host memory."""
        if transfer.direction == "in":
            self._salts.update(dict.fromkeys(transfer.pages, transfer.sequence.request.cache_salt))

    def _check_pages(self, step: Step) -> None:
        size, seen, salts = self._simulation.scenario.page_size, self._simulation.seen, self._salts
        copied = {copy.target: copy.source for copy in step.plan.copies}
        for row in step.rows:
            number, cache_salt, pages = row.sequence.number, row.sequence.request.cache_salt, row.sequence.pages
            first = min((page * size for _, _, page in row.restored), default=row.start)
            for page in pages[: -(-first // size)]:
                source = copied.get(page, page)
                if (owner := salts.get(source, cache_salt)) != cache_salt:
                    raise Violation(f"sequence {number} of {cache_salt!r} reads page {source}, written for {owner!r}")
            for page in pages[first // size : -(-(row.start + row.count) // size)]:
                salts[page] = cache_salt
            seen["prefix hits of tenants"] += first > 0 and row.begins and bool(cache_salt)
        for save in step.plan.saves:
            salts[save.target] = salts[save.source]

    def _check_image_bytes(self, step: Step) -> None:
        begun = [group.job.image_bytes for group in step.plan.groups if group.first == 0]
        copied = [size for size in begun if size]
        self._simulation.seen["uncut images together in a launch"] += len(copied) > 1
        if len(copied) > 1 and sum(copied) > self._simulation.scenario.max_image_bytes:
            raise Violation(f"step {step.number} copies images of {copied} bytes together")
