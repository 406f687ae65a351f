"""Prompts that ride with decode steps, checked independently of the scheduler: what a launch may hold, and who goes."""

from typing import TYPE_CHECKING

from photonlite.batch import Step
from tests.simulation.body import Violation
from tests.simulation.priority import could_decode

if TYPE_CHECKING:
    from tests.simulation.simulator import Simulation


class Riding:
    """Watches launches.

    Args:
        simulation: Whose.
    """

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation

    def launching(self, step: Step) -> None:
        """Check a launch that has been planned and not yet done."""
        pending = sum(row.pending for row in step.rows)
        if any(row.pending for row in step.rows[pending:]):
            raise Violation(f"step {step.number} has rows that decode behind others")
        kinds = {"encode": (False, False), "decode": (True, False), "mixed": (True, True)}
        assuming = sum(bool(row.assumed) for row in step.rows)  # these go with rows whose tokens are known
        found = pending > assuming, pending - assuming < len(step.rows)
        if found != kinds.get(step.kind, (False, True)):
            raise Violation(f"a {step.kind} step has {pending} rows that decode, of {len(step.rows)}")
        for row in step.rows:
            if row.start < row.sequence.block > row.start + row.count:
                raise Violation(f"{row.count} positions from {row.start} on cut a block of {row.sequence.block}")
            first = row.sequence.prompt_length - self._simulation.scenario.divides  # behind a prompt beside others
            if row.pending and row.start < first:
                raise Violation(f"position {row.start} of the prompt of {row.sequence.number} is not sampled")
            if (row.cut or not row.sequence.samples) != (row.index is None):
                raise Violation(f"row of {row.sequence.number} samples token {row.index}, cut: {row.cut}")
        seen = self._simulation.seen
        seen["parts of prompts"] += sum(row.cut and not row.sequence.num_committed_tokens for row in step.rows)
        seen["parts of runs"] += sum(row.cut and row.sequence.num_committed_tokens > 0 for row in step.rows)
        if not self._simulation.scheduler.policy.mixes:
            seen["launches without riders, as memory was short"] += self._simulation.scenario.mixes
            return
        if step.kind in ("mixed", "prefill"):
            self._check_order(step)
            self._check_size(step, pending)
            self._check_riders(step, pending)

    def _check_order(self, step: Step) -> None:
        """Check that prompts go on in the order of their sequences."""
        running, page_size = self._simulation.scheduler.running, self._simulation.scenario.page_size
        carried = {row.sequence: row for row in step.rows}
        last = [row.sequence for row in step.rows if not row.pending]
        for one in running:
            # A prompt has all its pages; a run that was cut, or follows what was wrongly assumed, may lack some.
            ready = one.num_tokens <= len(one.pages) * page_size and not one.preempting
            if one.cut and ready and one not in carried:
                later = [other.number for other in last if running.rank(other) > running.rank(one)]
                if later and any(other.realtime == one.realtime for other in last):
                    raise Violation(f"the prompts of {later} go on, and not that of {one.number}")

    def _check_size(self, step: Step, pending: int) -> None:
        """Check that rows which decode wait for no more than one budget, or one block."""
        scenario, policy = self._simulation.scenario, self._simulation.scheduler.policy
        known = [row for row in step.rows if not row.pending]
        positions = sum(row.count for row in known)
        if not pending:
            return
        budget = scenario.mixed_tokens
        beside_s = max(scenario.launch_budget_s, policy.run_cost.decode_s / 2)
        room = policy.prompts.within(beside_s) if budget is None else budget - pending
        block = known[0].sequence.block - known[0].start if len(known) == 1 else 0
        if positions > max(1, room, block):
            raise Violation(f"{positions} positions of prompts hold up {pending} rows that decode: {room} may")

    def _check_riders(self, step: Step, pending: int) -> None:
        """Check that no launch of prompts goes without those that decode."""
        simulation, carried = self._simulation, {row.sequence for row in step.rows}
        able = [one for one in simulation.scheduler.running if could_decode(one, simulation.scenario.page_size)]
        first = any(one.realtime for one in simulation.scheduler.running)
        left_out = [one for one in able if one not in carried and not one.is_behind and one.realtime == first]
        simulation.seen["rows that rode with prompts"] += pending
        before = len(simulation.scheduler.running) - sum(row.begins for row in step.rows)
        if left_out and before < simulation.scenario.max_batch:  # else there is no row for a prompt
            raise Violation(f"{[one.number for one in left_out]} decode, and prompts of step {step.number} go without")
