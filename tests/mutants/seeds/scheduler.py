"""Bugs to seed into photonlite/scheduler/."""

from tests.mutants.mutant import CORE, RUNS, SIMULATION, Mutant

MUTANTS = [
    Mutant(
        "what one image raises is everybody's fault",
        "scheduler/queues.py",
        """    except Exception as error:
        return None, error
""",
        """    except ZeroDivisionError as error:
        return None, error
""",
        "tests/simulation/test_hostile.py",
    ),
    Mutant(
        "pages of a zombie released with its result",
        "scheduler/running.py",
        """        if sequence.inflight_refs > 0:
            return
""",
        "",
        CORE,
    ),
    Mutant(
        "a row is reused while a zombie holds it",
        "scheduler/running.py",
        """        self.zombies.add(sequence)
""",
        """        self.zombies.add(sequence)
        self.free_rows.append(sequence.row)
""",
        f"{CORE} {SIMULATION}",
    ),
    Mutant(
        "the image's last page is shared instead of copied",
        "scheduler/fifo.py",
        """            copies += copied
""",
        "",
        SIMULATION,
    ),
    Mutant(
        "the image's last page is not saved",
        "scheduler/fifo.py",
        """            saves += done
""",
        "",
        SIMULATION,
    ),
    Mutant(
        "a prefix whose step failed is handed out",
        "scheduler/scheduler.py",
        """                self.cache.withdraw(row.sequence)
            elif row.cut:""",
        """                self.cache.confirm(row.sequence)
            elif row.cut:""",
        f"{CORE} {SIMULATION}",
    ),
    Mutant(
        "a prefix is used before its step has committed",
        "scheduler/fifo.py",
        """            if state != "ready" and (job is None or not job.encoded):
""",
        """            if state == "missing" and (job is None or not job.encoded):
""",
        f"{CORE} {SIMULATION}",
    ),
    Mutant(
        "room is made one position too late",
        "scheduler/running.py",
        "end > len(one.pages) * size",
        "end > len(one.pages) * size + 1",
        SIMULATION,
    ),
    Mutant(
        "a victim gives its pages back while a step writes them",
        "scheduler/running.py",
        """            self.release_if_unused(victim)
""",
        """            self.put_back(victim)
            victim.preempting = False
""",
        f"tests/scheduler {SIMULATION}",
    ),
    Mutant(
        "somebody overtakes a request that waits for pages",
        "scheduler/fifo.py",
        """                queue.lacks_pages = True
                break
""",
        """                queue.lacks_pages = True
                continue
""",
        "tests/scheduler",
    ),
    Mutant(
        "the length cap is not known: one token too many",
        "scheduler/running.py",
        "one.num_computed_tokens < one.longest and len",
        "len",
        CORE,
    ),
    Mutant(
        "crops are encoded twice",
        "scheduler/images.py",
        """            group.job.launched += group.count
""",
        """            group.job.launched += max(1, group.count - 1)
""",
        f"tests/scheduler {SIMULATION}",
    ),
    Mutant(
        "encoding ignores its time budget",
        "scheduler/images.py",
        "crops = min(crops, self.crops.within(budget.left_s))",
        "pass",
        "tests/scheduler",
    ),
    Mutant(
        "a pause never ends while there is other work",
        "scheduler/fifo.py",
        "self._held_s += self.model_of(batch).cost(batch.size)",
        "pass",
        "tests/scheduler",
    ),
    Mutant(
        "each launch of a pause may take all of it",
        "scheduler/fifo.py",
        "return PauseBudget(allowed_s if over else allowed_s - held_s, over or",
        "return PauseBudget(allowed_s, over or",
        "tests/scheduler",
    ),
    Mutant(
        "launches stay small however many wait",
        "scheduler/fifo.py",
        "min(self.limits.max_pause_s, budget_s * waiting / decoding))",
        "0.0)",
        "tests/scheduler tests/policy",
    ),
    Mutant(
        "prompts keep images from being encoded",
        "scheduler/fifo.py",
        """        queue.prefilled_last = batch.kind != "encode"
""",
        """        queue.prefilled_last = False
""",
        "tests/scheduler/test_scheduler.py",
    ),
    Mutant(
        "priority: the first real-time request changes nothing",
        "scheduler/scheduler.py",
        """        if sequence.realtime:
            self.prioritise()
""",
        "",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: sequences that were running when it began are ranked and put back as before",
        "scheduler/realtime.py",
        """        self.running.rank, self.running.requeue = self.rank, self.requeue
""",
        "",
        f"tests/scheduler/test_priority.py {SIMULATION}",
    ),
    Mutant(
        "priority: nobody comes first",
        "scheduler/realtime.py",
        "return self.urgent if sequence.realtime else self.bulk",
        "return self.bulk",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "a sequence that was blocked stays blocked",
        "scheduler/queues.py",
        """            if sequence not in self._candidates:
""",
        """            if False:
""",
        "tests/scheduler/test_waiting.py",
    ),
    Mutant(
        "runs: prompts wait until an answer has ended whose every launch is one",
        "scheduler/fifo.py",
        'if batch is not None and (batch.kind in ("decode", "mixed") or not steady):',
        'if batch is not None and batch.kind in ("decode", "mixed"):',
        "tests/scheduler/test_scheduler.py",
    ),
    Mutant(
        "nobody looks at those whose image has been encoded",
        "scheduler/scheduler.py",
        """            if group.job.encoded:
                self._unblock(group.job.key)
""",
        """            pass
""",
        "tests/scheduler/test_scheduler.py",
    ),
    Mutant(
        "nobody looks at those whose image has come into the cache",
        "scheduler/scheduler.py",
        """            for job in row.jobs:
                self._unblock(job.key)
""",
        "",
        SIMULATION,
    ),
    Mutant(
        "nobody looks at those who waited for the image of a prompt that is given up",
        "scheduler/running.py",
        """            self.on_prompt_given_up(sequence)
""",
        """            pass
""",
        "tests/scheduler/test_chunks.py",
    ),
    Mutant(
        "who lacks pages for what it may assume is left out",
        "scheduler/running.py",
        "if assumed > room or (assumed and not self._may_advance(one, 1 + assumed)):",
        "if assumed > room:",
        "tests/scheduler/test_chunks.py",
    ),
    Mutant(
        "a launch that fails starts a request again that has ended",
        "scheduler/scheduler.py",
        "            if one.finalized:  # between the plan of this launch and its failure\n",
        "            if False:\n",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "those who are not ready are looked at again at every tick",
        "scheduler/fifo.py",
        """                queue.block(sequence)
""",
        """                pass
""",
        "tests/engine/test_requests.py",
    ),
    Mutant(
        "priority: bulk has no turn",
        "scheduler/realtime.py",
        "return self._overtaking_launches >= BULK_TURN and len(self.urgent) > 0",
        "return False",
        SIMULATION,
    ),
    Mutant(
        "priority: bulk has every turn",
        "scheduler/realtime.py",
        "return self._overtaking_launches >= BULK_TURN and len(self.urgent) > 0",
        "return len(self.urgent) > 0",
        SIMULATION,
    ),
    Mutant(
        "priority: what bulk waits for is not counted",
        "scheduler/realtime.py",
        "self._overtaking_launches + 1 if realtime and len(self.bulk) else 0",
        "0",
        SIMULATION,
    ),
    Mutant(
        "priority: bulk prompts take what a ready real-time request lacks",
        "scheduler/realtime.py",
        "return swapped or any(",
        "return False and any(",
        SIMULATION,
    ),
    Mutant(
        "priority: bulk that lacks pages at its turn never gets them",
        "scheduler/realtime.py",
        "return (self.bulk.lacks_pages or due is not None) and self._has_realtime",
        "return False",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: bulk that lacks pages keeps real-time requests out of an engine full of bulk",
        "scheduler/realtime.py",
        "return (self.bulk.lacks_pages or due is not None) and self._has_realtime",
        "return self.bulk.lacks_pages or due is not None",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: crops of both classes are in one launch",
        "scheduler/queues.py",
        " if one.leader.realtime == queue.realtime]",
        "]",
        SIMULATION,
    ),
    Mutant(
        "priority: an image that bulk waits for stays bulk's",
        "scheduler/queues.py",
        "            job.leader = sequence\n        return True",
        "            pass\n        return True",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: bulk takes all places for images",
        "scheduler/queues.py",
        " and len(self.jobs_of(queue)) < queue.max_jobs\n",
        "\n",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: a full batch keeps real-time requests waiting",
        "scheduler/realtime.py",
        "return taken < running.max_batch and",
        "return len(running) < running.max_batch and",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: decode steps leave the same sequence out for ever",
        "scheduler/realtime.py",
        "self._steps_without_bulk = 0 if has_bulk else self._steps_without_bulk + 1",
        "self._steps_without_bulk = 0",
        f"tests/scheduler/test_priority.py {SIMULATION}",
    ),
    Mutant(
        "priority: a decode step has more rows than a batch",
        "scheduler/realtime.py",
        "sorted((able[len(urgent) :] + urgent)[:most], key=self.rank)",
        "sorted(able[len(urgent) :] + urgent, key=self.rank)",
        SIMULATION,
    ),
    Mutant(
        "priority: real-time work waits until the pause of bulk is over",
        "scheduler/realtime.py",
        "short if urgent_decodes else max(short, limits.max_pause_s)",
        "short",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: pauses of bulk grow beside real-time requests",
        "scheduler/realtime.py",
        "self.pause(short if near else self.pause_s(waiting, decoding))",
        "self.pause(self.pause_s(waiting, decoding))",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: bulk launches are long while nobody is decoded",
        "scheduler/realtime.py",
        "PauseBudget(short if near else math.inf)",
        "PauseBudget(math.inf)",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: bulk rows ride along in every step of a real-time answer",
        "scheduler/realtime.py",
        "if self._steps_without_bulk < BULK_STEP:",
        "if False:",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: bulk launches come between the steps of a real-time answer",
        "scheduler/realtime.py",
        """            bulk = PauseBudget(short, over=True)
""",
        """            bulk = self.pause(short)
""",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: bulk gets no launch while a real-time answer is decoded",
        "scheduler/realtime.py",
        " and not (urgent_decodes and self._overtaking_steps >= BULK_STEP)",
        "",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: time that the device is kept free is no turn",
        "scheduler/realtime.py",
        "        self._overtaking_launches += idle and not self._was_idle\n",
        "",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "deadline: a request is given up in the middle of its work",
        "scheduler/realtime.py",
        "sequence.deadline is None or sequence.times.admitted or self.encoder.is_begun(sequence)",
        "sequence.deadline is None",
        "tests/engine/test_requests.py",
    ),
    Mutant(
        "tables: encoded images are kept by the runner's device",
        "scheduler/queues.py",
        "                    idle.append(self.jobs.pop(job.key))\n",
        "                    idle.append(job)\n",
        SIMULATION,
    ),
    Mutant(
        "uncut images: more bytes in a launch than there is room for",
        "scheduler/queues.py",
        "                if groups and copied > self._max_image_bytes:\n",
        "                if groups and copied < 0:\n",
        SIMULATION,
    ),
    Mutant(
        "runs: decode steps wait for all of them",
        "scheduler/running.py",
        "        elif self.ran_last and alone:\n",
        "        elif False:\n",
        f"{RUNS} {SIMULATION}",
    ),
    Mutant(
        "runs: decode steps carry sequences that were given some",
        "scheduler/running.py",
        "one for one in sequences if one.cut or one.prompt_length + len(one.tokens) > one.num_computed_tokens + 1",
        "one for one in sequences if one.cut",
        f"{RUNS} {SIMULATION}",
    ),
    Mutant(
        "runs: they are taken whatever they cost",
        "scheduler/fifo.py",
        "        if saved >= self.run_cost.steps * decoding:\n",
        "        if runs:\n",
        RUNS,
    ),
    Mutant(
        "runs: they are taken as if they cost a decode step",
        "scheduler/fifo.py",
        "if saved >= self.run_cost.steps * decoding",
        "if saved >= decoding",
        "tests/scheduler/test_policy.py",
    ),
    Mutant(
        "runs: they are assumed whatever they cost",
        "scheduler/fifo.py",
        "return frozenset() if sum(found.values()) < self.run_cost.steps * decoding else frozenset(found)",
        "return frozenset(found)",
        RUNS,
    ),
    Mutant(
        "runs: what bulk sequences expect holds real-time ones up",
        "scheduler/realtime.py",
        "super().choose_expecting(urgent or chosen, len(urgent) or decoding)",
        "super().choose_expecting(chosen, decoding)",
        "tests/scheduler/test_policy.py",
    ),
    Mutant(
        "runs: more is assumed than the budget has room for",
        "sequence.py",
        "min(MOST_ASSUMED, self.longest - self.num_computed_tokens - 1)",
        "MOST_ASSUMED",
        f"{RUNS} {SIMULATION}",
    ),
    Mutant(
        "runs: rows whose tokens are known stand before those that decode",
        "scheduler/running.py",
        "        rows.sort(key=lambda row: not row.pending)\n",
        "",
        f"{RUNS} {SIMULATION}",
    ),
    Mutant(
        "runs: an expected run is launched before it is its turn",
        "scheduler/running.py",
        "alone = [one for one in steady if one not in expecting] if expecting else steady",
        "alone = [one for one in steady if one not in expecting][:0] if expecting else steady",
        f"{RUNS} {SIMULATION}",
    ),
    Mutant(
        "runs: numbers are expected to exceed their bounds",
        "grammar/decoding/items.py",
        "if 10 * value > bound:",
        "if False:",
        "tests/grammar/decoding/test_items.py",
    ),
    Mutant(
        "runs: numbers may have as many digits as their bound, whatever these are",
        "grammar/decoding/items.py",
        "OVERSHOOT = 2  #",
        "OVERSHOOT = 20  #",
        "tests/grammar/decoding/test_items.py",
    ),
    Mutant(
        "threads: turns are long again while another engine runs",
        "pauses.py",
        "sys.setswitchinterval(_before.pop())",
        "sys.setswitchinterval(_before.pop(0))",
        "tests/test_pauses.py",
    ),
    Mutant(
        "runs: once they were slow, they are never tried again",
        "scheduler/fifo.py",
        "        self.run_cost.refuse()\n",
        "",
        "tests/scheduler/test_policy.py",
    ),
    Mutant(
        "what is copied from the host counts as the time of crops",
        "scheduler/fifo.py",
        "elif not failed and not batch.stored_images and not",
        "elif not failed and not",
        "tests/engine/test_core.py",
    ),
    Mutant(
        "a prompt that is computed beside others decodes meanwhile",
        "scheduler/running.py",
        ") and not one.beside",
        ")",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "a block that needs a prompt's last position is cached before that is computed",
        "cache/manager.py",
        "if whole or link.end < sequence.num_tokens",
        "if whole or link.end <= sequence.num_tokens",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "what waits for its images is no reason to encode them on the whole card",
        "scheduler/parts.py",
        "shared = rows / (rows + later) * (weights + rows + later) / (weights + rows)",
        "shared = 1.0",
        "tests/scheduler/test_parts.py",
    ),
    Mutant(
        "speeds in parts are those beside 32 rows, however many decode",
        "scheduler/parts.py",
        "speeds, weights = table.at(rows), table.weights",
        "speeds, weights = table.at(32), table.weights",
        "tests/scheduler/test_parts.py",
    ),
    Mutant(
        "a prompt begins behind its image though no pages are stored",
        "scheduler/fifo.py",
        "stored = {job.pages.place: job for job in jobs if job.pages is not None}",
        "stored = {span.pages: job for span in sequence.images for job in jobs if job.is_stored}",
        "tests/scheduler/test_stored_prefixes.py",
    ),
    Mutant(
        "a prompt begins behind stored pages though those before them are missing",
        "scheduler/fifo.py",
        "place.start <= start < place.end",
        "start < place.end",
        "tests/scheduler/test_stored_prefixes.py",
    ),
    Mutant(
        "stored pages of an image are taken for another prompt about it",
        "scheduler/fifo.py",
        "stored = {job.pages.place: job for job in jobs if job.pages is not None}",
        "stored = {span.pages: job for job in jobs for span in sequence.images if job.pages and span.key == job.key}",
        "tests/scheduler/test_stored_prefixes.py",
    ),
    Mutant(
        "stored pages are written to those that others share",
        "scheduler/fifo.py",
        "max(place.first, sequence.shared_pages)",
        "place.first",
        "tests/scheduler/test_stored_prefixes.py",
    ),
    Mutant(
        "stored pages fill the device while their prompts wait",
        "scheduler/queues.py",
        "return pages if sum(place.stop - place.first for place in places) <= self._staged_pages else None",
        "return pages",
        "tests/scheduler/test_stored_prefixes.py",
    ),
    Mutant(
        "later requests about several images keep the place of the first one's image",
        "scheduler/queues.py",
        "(self._has_room(queue) or place == 0)",
        "self._has_room(queue)",
        "tests/scheduler/test_stored_prefixes.py",
    ),
    Mutant(
        "adapters: zombies give their slots back at once",
        "scheduler/running.py",
        "        self.zombies.add(sequence)\n        self.release_if_unused",
        "        self.zombies.add(sequence)\n        self._adapters.release(sequence)\n        self.release_if_unused",
        "tests/simulation",
    ),
    Mutant(
        "adapters: a slot is taken from those that wait with it",
        "scheduler/adapters.py",
        "if slot.ready and not slot.held), None)",
        "if slot.ready and not slot.steps), None)",
        "tests/scheduler/test_adapters.py",
    ),
    Mutant(
        "adapters: a slot that is being written is written again",
        "scheduler/adapters.py",
        "if slot.ready and not slot.held), None)",
        "if not slot.held), None)",
        "tests/scheduler/test_adapters.py",
    ),
    Mutant(
        "adapters: encode steps do not hold what they read",
        "scheduler/adapters.py",
        "                self._at(group.adapter_slot).steps += 1\n",
        "                pass\n",
        "tests/scheduler/test_adapters.py",
    ),
    Mutant(
        "adapters: a request runs before its adapter is there",
        "scheduler/adapters.py",
        "if slot is None or not slot.ready:",
        "if slot is None:",
        "tests/scheduler/test_adapters.py",
    ),
    Mutant(
        "adapters: who waits for a slot is not asked again",
        "scheduler/adapters.py",
        "            self._slots.move_to_end(slot.key)\n            self._changed = True\n",
        "            self._slots.move_to_end(slot.key)\n",
        "tests/scheduler/test_adapters.py",
    ),
    Mutant(
        "adapters: later requests keep a slot from one that waits",
        "scheduler/adapters.py",
        "if behind and (slot is None or slot is draining):",
        "if behind and slot is None:",
        "tests/scheduler/test_adapters.py",
    ),
    Mutant(
        "adapters: later requests take the slot that has come free for one that waits",
        "scheduler/adapters.py",
        "if behind and (slot is None or slot is draining):",
        "if behind and slot is not None and slot is draining:",
        "tests/scheduler/test_adapters.py",
    ),
    Mutant(
        "adapters: who waited behind one that is gone is not asked again",
        "scheduler/adapters.py",
        "            self._changed |= self._waiting[0] is sequence",
        "            pass",
        "tests/scheduler/test_adapters.py",
    ),
    Mutant(
        "adapters: those that hold slots behind a long queue are forgotten",
        "scheduler/queues.py",
        "for sequence in (*first, *held):",
        "for sequence in first:",
        "tests/simulation",
    ),
    Mutant(
        "a prompt reads features that are still encoded beside it",
        "scheduler/scheduler.py",
        "        if not batch.beside:",
        "        if True:",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "bulk images that are encoded beside other steps get no turn",
        "scheduler/realtime.py",
        "due, reserved = self._overtaking_encodings >= BULK_TURN, ",
        "due, reserved = False, ",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "a real-time image waits for a long launch of bulk ones",
        "scheduler/realtime.py",
        "PauseBudget(self.limits.launch_budget_s if short else math.inf)",
        "PauseBudget()",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "bulk images are launched in the moments before a real-time one",
        "scheduler/realtime.py",
        "if self.kept_idle_until is None or due or reserved:",
        "if True:",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "priority: real-time runs wait at turn after turn that bulk lacks pages for",
        "scheduler/realtime.py",
        "if turn and (self._steps_without_bulk - BULK_STEP) % 2 == 0:",
        "if turn:",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "an image's later crops are encoded on another stream than its first ones",
        "scheduler/images.py",
        "return job.beside == beside if job.launched else begins",
        "return begins",
        f"tests/engine/test_beside.py {SIMULATION}",
    ),
    Mutant(
        "a prompt runs beside the image that takes a turn in front of it",
        "scheduler/images.py",
        "job.is_stored or not job.beside",
        "job.is_stored",
        SIMULATION,
    ),
    Mutant(
        "bulk images take turns though real-time requests have a part of the card",
        "scheduler/realtime.py",
        "self.images.reserve(reserved=self.limits.realtime_part)",
        "self.images.reserve(reserved=False)",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "real-time images are encoded in the part of bulk ones",
        "scheduler/images.py",
        "return self.divided and not queue.realtime",
        "return self.divided",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "a bulk prompt at its turn leaves its part to real-time requests",
        "scheduler/realtime.py",
        "(self.images.reserved or not self._bulk_is_due)",
        "not self._bulk_is_due",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "bulk prompts in their part take the turns of others",
        "scheduler/realtime.py",
        "if batch.rows and all(map(self.runs_beside, self.ready(self.bulk))):",
        "if batch.rows:",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "a bulk prompt takes a turn where nothing decodes though it has a part",
        "scheduler/images.py",
        "if not self.reserved and all(",
        "if all(",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "beside: bulk prompts come between a real-time image and its prompt",
        "scheduler/realtime.py",
        " or self._encodes_urgent",
        "",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "adapters: the leader of an image takes a slot again though it has ended",
        "scheduler/queues.py",
        "or job.leader.finalized or",
        "or",
        "tests/scheduler/test_adapters.py",
    ),
]
