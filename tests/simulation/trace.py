"""Lines of a trace, and names of states."""

from photonlite.batch import Step
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import Sequence


def name(sequence: Sequence) -> str:
    """Name a sequence and its position."""
    return (
        f"{sequence.number} (row {sequence.row}, {len(sequence.tokens)} tokens, filled {sequence.num_computed_tokens})"
    )


def describe(step: Step) -> str:
    """Describe a step."""
    plan = step.plan
    rows = [f"{row.sequence.number}[{row.start}:{row.start + row.count}]" for row in plan.rows]
    groups = [f"{group.job.number}({group.job.key})[{group.first}:+{group.count}]" for group in plan.groups]
    copies = [f"copy {copy.source}>{copy.target}" for copy in plan.copies]
    saves = [f"save {copy.source}>{copy.target}" for copy in plan.saves]
    return " ".join((f"step {step.number} in slot {step.slot}: {plan.kind}", *rows, *groups, *copies, *saves))


def standing(scheduler: Scheduler) -> str:
    """List waiting and running sequences and zombies."""
    queues = {"waiting": scheduler.waiting, "running": scheduler.running, "zombies": scheduler.running.zombies}
    queues["swap"] = scheduler.running.swap
    shown = [f"{title} {sorted(one.number for one in queue)}" for title, queue in queues.items()]
    return " ".join((*shown, f"jobs {list(scheduler.encoder.jobs)}", f"free pages {scheduler.cache.pages.free}"))


def state(sequence: Sequence, scheduler: Scheduler) -> str:
    """Name a sequence's state."""
    if sequence.finalized:
        return "as a zombie" if sequence.inflight_refs else "after its end"
    swap = scheduler.running.swap
    if sequence in swap:
        return f"while {'leaving' if sequence in swap.leaving else 'swapped or returning'}"
    if sequence in scheduler.running:
        if sequence.preempting:
            return "while pre-empted"
        return "while decoding" if sequence.tokens or sequence.inflight_refs > 1 else "while prefilling"
    if sequence.times.preemptions:
        return "after pre-emption"
    missing = [span for span in sequence.images if scheduler.cache.image_state(span) == "missing"]
    if not missing:
        return "while waiting"
    if any(span.key in scheduler.encoder.jobs for span in missing):
        return "while encoding"
    return "while cutting" if any(span.image.crops is None for span in missing) else "while waiting"
