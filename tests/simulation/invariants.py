"""What must hold after every tick, and at the end.

Tokens and ends are compared where they come out (`simulator.Watch`), launches and commits where they happen
(`simulator.WatchedRunner`); this module checks the state between ticks.
"""

from collections import Counter
from typing import TYPE_CHECKING

from photonlite.batch import BatchItem, Step
from photonlite.grammar.decoding.grammars import CACHED_ROWS
from photonlite.sequence import MAX_INFLIGHT, Sequence
from tests.cache.sequences import check_pool
from tests.growth import grown
from tests.simulation.body import Violation

if TYPE_CHECKING:
    from tests.simulation.simulator import Simulation

_BOUNDED = {"_rows": CACHED_ROWS, "_hashed[]": 64, "_deadlines": 64, "_lengths": 8, "_slots": 8, "_late": 16}
"""Tables that may keep entries of ended requests, and how many at most."""

_THOROUGH = 8
"""Ticks between counts of all page owners and of all sequences that may be admitted."""


def check(simulation: "Simulation") -> None:
    """Check all state between two ticks.

    Raises:
        Violation: An invariant is broken.
        AssertionError: Pages have other owners than their counts say.
    """
    core, scheduler = simulation.core, simulation.scheduler
    steps = core.pipeline.in_flight
    if len(steps) > simulation.scenario.depth or (len(steps) == MAX_INFLIGHT and steps[0].slot == steps[1].slot):
        raise Violation(f"steps {[step.number for step in steps]} share {simulation.scenario.depth} slots")
    carried: dict[Sequence, int] = {}
    for step in core.in_flight:
        if step.rows:
            _check_step(simulation, step, carried)
    swap = scheduler.running.swap
    moving = [*swap.leaving, *swap.returning]
    live = [*scheduler.running, *scheduler.running.zombies, *moving]
    for sequence in live:
        references = carried.pop(sequence, 0)
        if sequence.inflight_refs != references:
            raise Violation(f"{references} steps carry sequence {sequence.number}, not {sequence.inflight_refs}")
    if carried:
        raise Violation(f"steps carry {[one.number for one in carried]}, which neither run nor are zombies")
    rows = {sequence.row for sequence in live}
    rows.update(scheduler.running.free_rows)
    if len(rows) != simulation.scenario.pending_rows or len(live) + len(scheduler.running.free_rows) != len(rows):
        raise Violation(f"rows {sorted(map(str, rows))} are shared or lost among {len(live)} sequences")
    waiting = scheduler.waiting
    swapped = [one for one in swap if not one.finalized]
    if len(core.open) != len(waiting) + len(scheduler.running) + len(swapped):
        raise Violation(f"{len(core.open)} requests are open, but not all of them wait, run or are swapped")
    for sequence in swap.swapped:
        if sequence.finalized or sequence.pages or sequence.row is not None or not sequence.num_computed_tokens:
            raise Violation(f"sequence {sequence.number} is swapped, and holds {sequence.pages}")
    unknown = Counter(row.sequence for step in steps for row in step.rows if _samples_unknown(step, row))
    for sequence in scheduler.running:
        _check_running(simulation, sequence, unknown[sequence])
    for sequence in scheduler.running.zombies:
        if not sequence.finalized or sequence.inflight_refs == 0:
            raise Violation(f"zombie {sequence.number} is open, or no step carries it")
        if sequence.num_computed_tokens > sequence.longest:
            raise Violation(
                f"zombie {sequence.number} fills {sequence.num_computed_tokens} positions of {sequence.longest}"
            )
        _check_ended(sequence)
    for sequence in core.open:
        if sequence.deadline is not None and sequence.deadline < simulation.now - 1:
            raise Violation(f"sequence {sequence.number} is open after its deadline")
    for sequence in waiting:
        if sequence.finalized or sequence.inflight_refs or sequence.pages or sequence.row is not None:
            raise Violation(f"sequence {sequence.number} waits, and holds {sequence.pages} and row {sequence.row}")
        if sequence.num_handed_out and not sequence.times.preemptions:
            raise Violation(f"sequence {sequence.number} has handed out tokens, and nothing has run for it")
        if sequence.num_computed_tokens or sequence.preempting:
            raise Violation(f"sequence {sequence.number} waits with {sequence.num_computed_tokens} positions filled")
    _check_budget(simulation)
    check_adapters(simulation, live)
    places = [job.pages.place for job in scheduler.encoder.jobs.values() if job.pages is not None]
    if sum(place.stop - place.first for place in places) > simulation.scenario.staged_pages:
        raise Violation(f"stored pages {places} are on the device, but only {simulation.scenario.staged_pages} may be")
    for sequence in simulation.doomed:
        if not sequence.finalized:
            raise Violation(f"sequence {sequence.number} goes on, though its step has failed")
    simulation.doomed.clear()
    simulation.priority.check()
    simulation.beside.check()
    if simulation.ticks % _THOROUGH == 0:
        check_pages(simulation)
        _check_candidates(simulation)


def _check_budget(simulation: "Simulation") -> None:
    router, pages = simulation.scheduler.running.router, simulation.pages
    most, longest = 1.5 * pages.usable * pages.page_size, simulation.scheduler.limits.max_positions
    if not min(longest, pages.usable * pages.page_size) <= router.budget <= most:
        raise Violation(f"the router's budget is {router.budget}, with requests of up to {longest} and at most {most}")
    simulation.seen["budgets above the allocation"] += router.budget > most / 1.5
    simulation.seen["budgets below the allocation"] += router.budget < most / 1.5
    if simulation.scenario.router == "reserve" and simulation.scheduler.running.victims:
        raise Violation(f"{[one.number for one in simulation.scheduler.running.victims]} give way, but all had pages")


def check_adapters(simulation: "Simulation", live: list[Sequence]) -> None:
    """Check that what runs has the slot of its own adapter, with that in it, and that others hold none."""
    adapters, bank = simulation.scheduler.adapters, simulation.body.bank
    for sequence in live:
        found = f"adapter {bank.get(sequence.adapter_slot)}" if sequence.adapter_slot else ""
        if found != sequence.adapter_key:
            raise Violation(f"sequence {sequence.number} has {found!r} in its slot, not {sequence.adapter_key!r}")
    away = simulation.scheduler.running.swap  # with their slots
    keepers = [one for one in (*live, *away, *simulation.scheduler.waiting) if one.adapter_slot]
    held = {one.adapter_slot: one.adapter_key for one in keepers}
    if len(set(held.values())) != len(held) or any(number > adapters.count for number in held):
        raise Violation(f"slots are shared or unknown: {held}")
    slots = {group.adapter_slot for step in simulation.core.in_flight for group in step.plan.groups} - {0}
    if adapters.held != len({*held, *slots}):
        raise Violation(f"{adapters.held} slots are held, but {held} and {slots} are in use")


def _check_candidates(simulation: "Simulation") -> None:
    """Check that every sequence that could run is a candidate, in the order of numbers."""
    scheduler = simulation.scheduler
    for queue in scheduler.policy.queues:
        found = list(queue.candidates())
        if [one.number for one in found] != sorted({one.number for one in found}):
            raise Violation(f"candidates come in the order {[one.number for one in found]}")
        ready = {one for one in queue if scheduler.policy.is_ready(one) and not scheduler.adapters.is_blocked(one)}
        missed = ready - set(found)
        if missed or not set(found) <= set(queue):
            raise Violation(f"{[one.number for one in missed]} could run, and are no candidates")


def _check_step(simulation: "Simulation", step: Step, carried: dict[Sequence, int]) -> None:
    """Count the sequences that a step carries, and check that no other sequence owns the pages that it writes."""
    size, counts = simulation.scenario.page_size, simulation.pages
    for row in step.rows:
        sequence = row.sequence
        carried[sequence] = carried.get(sequence, 0) + 1
        last = (row.start + row.count - 1) // size
        if last >= len(sequence.pages):
            raise Violation(
                f"step {step.number} writes up to page {last} of sequence {sequence.number}, which has only "
                f"{sequence.pages} left"
            )
        alone = row.pending or (sequence.num_committed_tokens > 0 and not row.begins)
        written = sequence.pages[row.start // size : last + 1] if alone else []
        if any(counts.refcount(page) != 1 for page in written):
            raise Violation(f"step {step.number} writes to pages {written}, which are shared or free")


def _samples_unknown(step: Step, row: BatchItem) -> bool:
    """Whether a row in flight samples a token that has not been committed, and counts."""
    sequence = row.sequence
    return row.index is not None and row.index >= len(sequence.tokens) and sequence not in step.dropped


def _check_running(simulation: "Simulation", sequence: Sequence, unknown: int) -> None:
    """Check a running sequence, `unknown` of whose tokens are in flight."""
    if sequence.finalized:
        raise Violation(f"sequence {sequence.number} has ended and still runs")
    behind = sequence.num_tokens + unknown - 1 - sequence.num_computed_tokens
    cut = sequence.cut and behind > 0
    known = behind < 0 or unknown or not simulation.scenario.forced_runs
    if sequence.samples and behind and not cut and known:
        raise Violation(
            f"sequence {sequence.number} has {sequence.num_computed_tokens} computed tokens of {sequence.num_tokens} "
            f"known ones, with {unknown} more in flight"
        )
    if (
        sequence.num_computed_tokens > len(sequence.pages) * simulation.scenario.page_size
        or sequence.num_computed_tokens > sequence.longest
    ):
        raise Violation(
            f"sequence {sequence.number} fills {sequence.num_computed_tokens} positions of {sequence.longest}"
        )


def _check_ended(sequence: Sequence) -> None:
    sink = sequence.sink
    if (len(sequence.tokens), sequence.error) != sink.end:  # type: ignore[attr-defined]
        raise Violation(f"sequence {sequence.number} has ended, and changes nevertheless")


def check_pages(simulation: "Simulation") -> None:
    """Count the owners of all pages."""
    owners = simulation.cache.prefix.owners()
    running = simulation.scheduler.running
    swap = running.swap
    for queue in (running, running.zombies, swap.leaving, swap.returning):
        for sequence in queue:
            owners.update(sequence.pages)
    check_pool(simulation.pages, owners)


def check_end(simulation: "Simulation") -> None:
    """Check what is left when everything has ended."""
    core, scheduler, body = simulation.core, simulation.scheduler, simulation.body
    for family in simulation.families:
        family.check()
    for sequence in simulation.sequences:
        if not sequence.finalized:
            raise Violation(f"sequence {sequence.number} has never ended")
        _check_ended(sequence)
    metrics = core.metrics
    ended = metrics.requests_finished + metrics.requests_failed + metrics.requests_cancelled
    if (ended, metrics.requests_submitted) != (len(simulation.sequences),) * 2:
        raise Violation(f"{len(simulation.sequences)} requests have ended, but {ended} were counted")
    dropped = metrics.dropped_waiting + metrics.dropped_hopeless + metrics.dropped_running
    if dropped != simulation.seen["ended by DeadlineError"] or core.open_realtime:
        raise Violation(f"{dropped} requests were dropped, and {core.open_realtime} real-time ones are left")
    if not simulation.dead:
        running = scheduler.running
        left = [list(running), scheduler.waiting, running.zombies, scheduler.encoder.jobs, core.open]
        left += [list(running.swap), core.transfers.open, simulation.moving]
        if running.swap.places is not None and running.swap.places.free != simulation.scenario.swap_pages:
            raise Violation(f"of host memory only {running.swap.places.free} places came back")
        if any(left) or core.in_flight or scheduler.adapters.held:
            raise Violation(f"these are left behind: {left}, {core.in_flight}")
        check(simulation)
        check_pages(simulation)
    core.runner.close()
    if simulation.dead:
        return
    if body.features or body.embeddings or body.uncut:
        raise Violation(f"the device keeps features of images: {body.features} {body.embeddings} {body.uncut}")
    _check_waste(simulation)
    simulation.cache.prefix.evict(simulation.cache.prefix.idle_pages)
    if simulation.pages.free != simulation.pages.usable:
        raise Violation(f"{simulation.pages.usable - simulation.pages.free} pages never came back")
    _check_tables(simulation)


def _check_tables(simulation: "Simulation") -> None:
    """Check that no table of the engine keeps requests that have ended."""
    tables = grown(simulation.tables, simulation.table_sizes())
    tables = {path: sizes for path, sizes in tables.items() if sizes[1] > _BOUNDED.get(path.rpartition(".")[2], 0)}
    if tables:
        raise Violation(f"tables have grown, before and after: {tables}")


def _check_waste(simulation: "Simulation") -> None:
    """Check that each image was encoded once for each prefix, if nothing happened that loses its prefix."""
    seen, scenario = simulation.seen, simulation.scenario
    troubles = ("RequestCancelledError", "DeadlineError", "NumericalError", "StepError", "ValueError", "HostileFault")
    short = seen["launches without a free page"] or seen["memory was short"]
    if short or any(seen[f"ended by {trouble}"] for trouble in troubles):
        return
    # Where prompts attend in both directions, an image is encoded for each of them.
    if scenario.prefix_caching and not scenario.prefix_lm and simulation.cache.prefix.evictions == 0:
        seen["calm runs with a cache"] += 1
        crops, encoded = sum(simulation.crops.values()), simulation.core.metrics.crops_encoded
        if encoded > crops:
            raise Violation(f"{encoded} crops were encoded, though the images have only {crops}")
