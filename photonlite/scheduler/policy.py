"""How much work one launch may hold: fixed limits, and a time budget that measured rates turn into counts."""

from dataclasses import dataclass

from photonlite.batch import Step

# The share of the newest measurement in the running mean: follows a clock change within some ten launches.
_NEWEST = 0.2


@dataclass(frozen=True, slots=True)
class Limits:
    """What launches may hold.

    Attributes:
        max_batch: Sequences that run at a time, and rows of a launch.
        pending_rows: Sequences that may have a row of the pending table, zombies among them.
        max_prefill_tokens: Positions of a prefill launch; a single longer prompt goes alone.
        max_crops: Crops of an encode launch.
        max_jobs: Pictures whose features are on the device at a time.
        launch_budget_s: Seconds that an encode or prefill launch may take while sequences are decoded.
    """

    max_batch: int
    pending_rows: int
    max_prefill_tokens: int
    max_crops: int
    max_jobs: int = 8
    launch_budget_s: float = 0.004


class Rates:
    """Seconds that a crop and a prefilled position take on this device, as running means of what was measured."""

    def __init__(self) -> None:
        self.per_crop: float | None = None
        self.per_position: float | None = None

    def observe(self, step: Step) -> None:
        """Learn from a collected step."""
        if step.kind == "encode":
            crops = sum(group.count for group in step.plan.groups)
            self.per_crop = _mean(self.per_crop, step.device_s / crops)
        elif step.kind == "prefill":
            positions = sum(row.count for row in step.rows)
            self.per_position = _mean(self.per_position, step.device_s / positions)

    def crops_within(self, seconds: float) -> int:
        """Give the crops that can be encoded in a time: at least one, and one as long as nothing was measured."""
        return max(1, int(seconds / self.per_crop)) if self.per_crop else 1

    def positions_within(self, seconds: float) -> int:
        """Give the positions that can be prefilled in a time; 1 lets a single sequence through."""
        return max(1, int(seconds / self.per_position)) if self.per_position else 1


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + _NEWEST * (new - old)
