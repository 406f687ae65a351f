"""Bugs to seed into the router, swapping, and the copies of pages."""

from tests.mutants.mutant import SIMULATION, Mutant

ROUTER, SWAP, HOST = "tests/scheduler/test_router.py", "tests/scheduler/test_swap.py", "tests/runner/test_swap.py"

MUTANTS = [
    Mutant(
        "router: the peak forgets that sequences grow",
        "scheduler/router.py",
        "np.cumsum(held[order]) + left[order] * np.arange(1, len(order) + 1)",
        "np.cumsum(held[order])",
        ROUTER,
    ),
    Mutant(
        "router: the budget grows without end",
        "scheduler/router.py",
        "min(self.budget + GROWTH * self.allocation, MOST * self.allocation)",
        "self.budget + GROWTH * self.allocation",
        f"{ROUTER} {SIMULATION}",
    ),
    Mutant(
        "router: the budget shrinks below one longest request",
        "scheduler/router.py",
        "max(self.budget * DECREASE, self.least)",
        "self.budget * DECREASE",
        f"{ROUTER} {SIMULATION}",
    ),
    Mutant(
        "router: the budget grows while pages are short",
        "scheduler/router.py",
        " and self.used < _BUSY * self._cache.pages.usable:",
        ":",
        ROUTER,
    ),
    Mutant(
        "router: a sequence alone is held back",
        "scheduler/router.py",
        'elif self.rule == "greedy" or not running:',
        'elif self.rule == "greedy":',
        ROUTER,
    ),
    Mutant(
        "router: real-time requests need a budget",
        "scheduler/router.py",
        "self.predicted_peak <= self.budget - room or sequence.realtime",
        "self.predicted_peak <= self.budget - room",
        ROUTER,
    ),
    Mutant(
        "router: prompts that were held back start one by one",
        "scheduler/router.py",
        "room = ROOM * self.allocation if sequence.realtime in self.refused else 0.0",
        "room = 0.0",
        ROUTER,
    ),
    Mutant(
        "router: reserve forgets those that are still carried",
        "scheduler/router.py",
        "for one in (*running, *zombies))",
        "for one in running)",
        ROUTER,
    ),
    Mutant(
        "router: lengths of failed answers count",
        "scheduler/router.py",
        "if sequence.error is None and sequence.tokens:",
        "if sequence.tokens:",
        ROUTER,
    ),
    Mutant(
        "router: what is predicted is never renewed when a sequence ends",
        "scheduler/router.py",
        """        \"\"\"Note that a sequence runs no more.\"\"\"
        self._running = None
""",
        """        \"\"\"Note that a sequence runs no more.\"\"\"
""",
        "tests/scheduler/test_router.py::test_what_ended_sequences_held_is_forgotten",
    ),
    Mutant(
        "swap: pages are released before they are copied",
        "scheduler/swap.py",
        """        self._running.sequences.remove(sequence)
        self._running.router.note_change()
        sequence.times.swaps += 1
""",
        """        self._running.sequences.remove(sequence)
        self._running.router.note_change()
        sequence.times.swaps += 1
        self._cache.pages.release(sequence.pages[-1:])
""",
        f"{SWAP} {SIMULATION}",
    ),
    Mutant(
        "swap: a sequence runs before its pages are there",
        "scheduler/swap.py",
        """        places = self._places[one]
        pages = tuple(""",
        """        running.resume(one)
        places = self._places[one]
        pages = tuple(""",
        f"{SWAP} {SIMULATION}",
    ),
    Mutant(
        "swap: real-time sequences push out at once what has come back",
        "scheduler/swap.py",
        "room = 1 if not urgent else TURN if due else one.turn_room",
        "room = 1",
        SWAP,
    ),
    Mutant(
        "swap: what has come back waits for a step that has time for bulk rows",
        "scheduler/realtime.py",
        "returned[: max(0, most - len(urgent))]",
        "[]",
        SWAP,
    ),
    Mutant(
        "swap: real-time prompts take the pages of a bulk sequence that comes back at its turn",
        "scheduler/realtime.py",
        "return (self.bulk.lacks_pages or due is not None) and self._has_realtime",
        "return self.bulk.lacks_pages and self._has_realtime",
        SWAP,
    ),
    Mutant(
        "swap: what has just come back is the first to give way",
        "scheduler/running.py",
        "return next((one for one in others if self.rank(one) > self.rank(sequence)), last)",
        "return last",
        SWAP,
    ),
    Mutant(
        "swap: a sequence that has just left is decoded",
        "scheduler/running.py",
        "                or (leaving and one in leaving)\n",
        "",
        SIMULATION,
    ),
    Mutant(
        "swap: a prompt whose image failed is kept",
        "scheduler/swap.py",
        "if not 0 < sequence.num_computed_tokens == sequence.num_committed_tokens:",
        "if False:",
        SWAP,
    ),
    Mutant(
        "swap: waiting prompts overtake swapped sequences",
        "scheduler/fifo.py",
        "return self.running.has_place and not self.running.swap.has_swapped(realtime=False)",
        "return self.running.has_place",
        SIMULATION,
    ),
    Mutant(
        "swap: waiting prompts overtake swapped sequences beside real-time ones",
        "scheduler/realtime.py",
        """        if running.swap.has_swapped(realtime=queue.realtime):
            return False
""",
        "",
        SIMULATION,
    ),
    Mutant(
        "swap: host memory of a cancelled sequence is lost",
        "scheduler/running.py",
        "                self.swap.forget(sequence)\n",
        "",
        f"{SWAP} {SIMULATION}",
    ),
    Mutant(
        "swap: a copy that failed is taken for one that did not",
        "scheduler/swap.py",
        "failed = transfer.failure is not None",
        "failed = False",
        f"{SWAP} {SIMULATION}",
    ),
    Mutant(
        "swap: costs do not matter",
        "scheduler/swap.py",
        "elif swap_s > recompute_s:",
        "elif False:",
        SWAP,
    ),
    Mutant(
        "swap: a bus that was slow once is never tried again",
        "scheduler/swap.py",
        "self.page_s = (1 - _FORGOTTEN) * (self.page_s or 0.0)",
        "pass",
        SWAP,
    ),
    Mutant(
        "swap: pages that the cache has are overwritten",
        "scheduler/swap.py",
        """        pages = tuple(one.pages[shared : len(places)])
        self.returning[one] = self._transfer("in", one, pages, tuple(places[shared:]))""",
        """        pages = tuple(one.pages[: len(places)])
        self.returning[one] = self._transfer("in", one, pages, tuple(places))""",
        SIMULATION,
    ),
    Mutant(
        "swap: the page table of a row's last owner is used",
        "runner/step_executor.py",
        "            self._inputs.forget_row(transfer.row)\n",
        "            pass\n",
        SIMULATION,
    ),
    Mutant(
        "swap: what the pending table had is lost",
        "runner/swap.py",
        "            pending.copy_(rows, non_blocking=True)\n",
        "",
        HOST,
    ),
    Mutant(
        "swap: values come back as keys",
        "runner/swap.py",
        "self._values[:, page] = self._memory[place, 1]",
        "self._values[:, page] = self._memory[place, 0]",
        HOST,
    ),
    Mutant(
        "swap: chunks are taken from the wrong places",
        "runner/swap.py",
        "yield first, stop, places[first]",
        "yield first, stop, places[0] + first",
        HOST,
    ),
    Mutant(
        "swap: an engine whose pages move is idle",
        "engine/core.py",
        " and not self.transfers.open\n",
        "\n",
        "tests/scheduler/test_swap.py::test_an_engine_is_not_idle_while_pages_move",
    ),
]
