"""Which adapter is in which slot of the device, and who holds it. No torch.

```
           hold                    note_loaded                    last holder and step let go
empty ───────────> loading ─────────────────────────> held ─────────────────────────────────────> idle
  ^                   └── failed: its sequences end ──> empty        ^── hold: it is still there ───┘
  └─────────────────── least recently used, when another adapter needs a slot ─────────────────────┘
```

A sequence holds its slot from when it could first run until it is released, so that neither its zombie nor a
pre-emption loses it; an encode step holds it until its commit, also where it runs beside the others.

Adapters that need a slot get one in the order of their sequences, real-time ones first. While all slots are in use, one
slot is drained for the first sequence that waits: later sequences with the adapter in that slot wait too, those with
adapters in other slots do not.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from sortedcontainers import SortedKeyList

from photonlite.batch import ScheduledBatch
from photonlite.request import AdapterRef
from photonlite.sequence import Sequence


@dataclass(eq=False, slots=True)
class _Slot:
    number: int
    key: str
    holders: set[Sequence] = field(default_factory=set)
    steps: int = 0  # encode steps in flight that use it
    ready: bool = False

    @property
    def held(self) -> bool:
        return bool(self.holders) or self.steps > 0

    @property
    def has_realtime(self) -> bool:
        return any(one.realtime and not one.finalized for one in self.holders)  # zombies leave at once


class AdapterLoad(NamedTuple):
    """An adapter to write to a slot that no step uses."""

    slot: int
    adapter: AdapterRef


class AdapterSlots:
    """Slots 1 to `count`; slot 0 stands for no adapter."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._empty = list(range(count, 0, -1))
        self._slots: OrderedDict[str, _Slot] = OrderedDict()  # by key, least recently used first
        self._loads: list[AdapterLoad] = []
        self._blocked: dict[Sequence, None] = {}  # wait for a slot, or for their adapter to be loaded
        # Asked, and have no slot. They keep their turn when they leave `_blocked` to ask again.
        self._waiting: SortedKeyList[Sequence, tuple[bool, int]] = SortedKeyList(key=_rank)
        self._changed = False  # one of these may be able to go on

    @property
    def used(self) -> int:
        """Slots with an adapter that is there, or on its way."""
        return len(self._slots)

    @property
    def held(self) -> int:
        return sum(slot.held for slot in self._slots.values())

    def hold(self, sequence: Sequence) -> bool:
        """Assign the slot of its adapter to a sequence; return False while it waits for a slot or for the loading."""
        if not sequence.adapter_key:
            return True
        slot = self._slots[sequence.adapter_key] if sequence.adapter_slot else self._give(sequence)
        if slot is None or not slot.ready:
            self._blocked[sequence] = None
            return False
        return True

    def has_slot(self, sequence: Sequence) -> bool:
        """Assign a slot to a sequence if one is free; return whether it has one, loaded or not, or needs none."""
        return self.hold(sequence) or sequence.adapter_slot > 0

    def release(self, sequence: Sequence) -> None:
        """Release the slot of a sequence that has ended and that no step carries."""
        self._blocked.pop(sequence, None)
        self._stop_waiting(sequence)
        if sequence.adapter_slot:
            slot = self._slots[sequence.adapter_key]
            slot.holders.remove(sequence)
            sequence.adapter_slot = 0
            self._note_use(slot)

    def hold_for_step(self, batch: ScheduledBatch) -> None:
        """Keep the slots with which a launch encodes images until `release_step`."""
        for group in batch.groups:
            if group.adapter_slot:
                self._at(group.adapter_slot).steps += 1

    def release_step(self, batch: ScheduledBatch) -> None:
        for group in batch.groups:
            if group.adapter_slot:
                slot = self._at(group.adapter_slot)
                if slot.steps <= 0:
                    raise AssertionError(f"slot {slot.number} is let go by a step that does not hold it")
                slot.steps -= 1
                self._note_use(slot)

    def waiting_holders(self) -> list[Sequence]:
        """Return the oldest sequence that holds each slot and has not begun to run."""
        # Swapped sequences have no row either, but have computed some positions.
        waiting = (
            [one for one in slot.holders if one.row is None and not one.num_computed_tokens]
            for slot in self._slots.values()
        )
        return [min(found, key=lambda one: one.number) for found in waiting if found]

    def is_blocked(self, sequence: Sequence) -> bool:
        """Whether a sequence that asked for its slot waits for it."""
        return sequence in self._blocked

    def take_loads(self) -> tuple[AdapterLoad, ...]:
        """Return the adapters that must be loaded now, each once."""
        loads, self._loads = tuple(self._loads), []
        return loads

    def note_loaded(self, load: AdapterLoad, *, failed: bool = False) -> list[Sequence]:
        """Note that an adapter is in its slot; where that failed, return the sequences that wait for it, in order."""
        slot = self._at(load.slot)
        if slot.ready or slot.key != load.adapter.key:
            raise AssertionError(f"slot {load.slot} was loaded with what it did not wait for")
        if not failed:
            slot.ready = self._changed = True
            return []
        holders = sorted(slot.holders, key=lambda one: one.number)
        for sequence in holders:
            self.release(sequence)
        del self._slots[slot.key]
        self._empty.append(slot.number)
        self._changed = True
        return holders

    def take_unblocked(self) -> list[Sequence]:
        """Return the sequences that may be able to go on since the last call: they must ask again."""
        if not self._changed:
            return []
        self._changed = False
        found = [one for one in self._blocked if not one.adapter_slot or self._slots[one.adapter_key].ready]
        for sequence in found:
            del self._blocked[sequence]
        return found

    def _give(self, sequence: Sequence) -> _Slot | None:
        """Make a sequence without a slot a holder of its adapter's; None if it must wait for a slot."""
        slot = self._slots.get(sequence.adapter_key)
        draining = self._draining() if self._waiting else None
        behind = len(self._waiting) > 0 and _rank(self._waiting[0]) < _rank(sequence)
        if behind and (slot is None or slot is draining):
            slot = None
        elif slot is None:
            slot = self._begin(sequence)
        if slot is None:
            if sequence not in self._waiting:
                self._waiting.add(sequence)
            return None
        self._stop_waiting(sequence)
        slot.holders.add(sequence)
        sequence.adapter_slot = slot.number
        if slot is not draining:  # which stays the one that is drained, though an earlier request may use it once more
            self._slots.move_to_end(slot.key)
        return slot

    def _draining(self) -> _Slot | None:
        """Return the slot that the first waiting sequence will get; None if it can have one at once.

        An idle slot, else the least recently used one, if possible of bulk sequences alone.
        """
        if self._empty or self._waiting[0].adapter_key in self._slots:
            return None
        return min(self._slots.values(), key=lambda slot: (slot.held, slot.has_realtime))

    def _stop_waiting(self, sequence: Sequence) -> None:
        if sequence in self._waiting:
            self._changed |= self._waiting[0] is sequence  # those behind it were kept from the slot that it waited for
            self._waiting.remove(sequence)

    def _begin(self, sequence: Sequence) -> _Slot | None:
        """Begin to load an adapter into an empty slot, or one whose adapter is unused; None if there is none."""
        if sequence.adapter is None:
            raise AssertionError(f"sequence {sequence.number} has the key of an adapter, and no adapter")
        if not self._empty:
            idle = next((slot for slot in self._slots.values() if slot.ready and not slot.held), None)
            if idle is None:
                return None
            del self._slots[idle.key]
            self._empty.append(idle.number)
        slot = _Slot(self._empty.pop(), sequence.adapter_key)
        self._slots[slot.key] = slot
        self._loads.append(AdapterLoad(slot.number, sequence.adapter))
        return slot

    def _note_use(self, slot: _Slot) -> None:
        if not slot.held:
            self._slots.move_to_end(slot.key)
            self._changed = True

    def _at(self, number: int) -> _Slot:
        return next(slot for slot in self._slots.values() if slot.number == number)


def _rank(sequence: Sequence) -> tuple[bool, int]:
    return not sequence.realtime, sequence.number
