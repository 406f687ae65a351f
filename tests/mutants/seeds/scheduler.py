"""Bugs to seed into photonlite/scheduler/."""

from tests.mutants.mutant import CORE, SIMULATION, Mutant

MUTANTS = [
    Mutant(
        "what one image raises is everybody's fault",
        "scheduler/encoding.py",
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
        "scheduler/residents.py",
        """        if sequence.inflight_refs > 0:
            return
""",
        "",
        CORE,
    ),
    Mutant(
        "a row is reused while a zombie holds it",
        "scheduler/residents.py",
        "        self.zombies.add(sequence)\n",
        "        self.zombies.add(sequence)\n        self.free_rows.append(sequence.row)\n",
        f"{CORE} {SIMULATION}",
    ),
    Mutant(
        "the image's last page is shared instead of copied",
        "scheduler/scheduler.py",
        "            copies += admission.copies\n",
        "",
        SIMULATION,
    ),
    Mutant(
        "the image's last page is not saved",
        "scheduler/scheduler.py",
        "            saves += admission.saves\n",
        "",
        SIMULATION,
    ),
    Mutant(
        "a prefix whose step failed is handed out",
        "scheduler/scheduler.py",
        "(self.cache.withdraw if lost else self.cache.confirm)(row.sequence)",
        "self.cache.confirm(row.sequence)",
        f"{CORE} {SIMULATION}",
    ),
    Mutant(
        "a prefix is used before its step has committed",
        "scheduler/readiness.py",
        """        return state == "ready"
""",
        """        return True
""",
        f"{CORE} {SIMULATION}",
    ),
    Mutant(
        "room is made one position too late",
        "scheduler/residents.py",
        "while not self._cache.grow(sequence, sequence.num_computed_tokens + 1):",
        "while not self._cache.grow(sequence, sequence.num_computed_tokens):",
        SIMULATION,
    ),
    Mutant(
        "a victim gives its pages back while a step writes them",
        "scheduler/residents.py",
        """            self._gave_pages.add(victim.realtime)
            self.settle(victim)
""",
        """            self._gave_pages.add(victim.realtime)
            self._preempt(victim)
""",
        f"tests/scheduler {SIMULATION}",
    ),
    Mutant(
        "somebody overtakes a request that waits for pages",
        "scheduler/scheduler.py",
        """                self._bulk_lacks_pages = not realtime
                break
""",
        """                self._bulk_lacks_pages = not realtime
                continue
""",
        "tests/scheduler",
    ),
    Mutant(
        "the length cap is not known: one token too many",
        "scheduler/residents.py",
        "len(sequence.tokens) + sequence.inflight_refs < sequence.budget",
        "len(sequence.tokens) < sequence.budget",
        CORE,
    ),
    Mutant(
        "crops are encoded twice",
        "scheduler/encoding.py",
        "            group.job.launched += group.count\n",
        "            group.job.launched += max(1, group.count - 1)\n",
        f"tests/scheduler {SIMULATION}",
    ),
    Mutant(
        "encoding ignores its time budget",
        "scheduler/scheduler.py",
        "crops = min(crops, self.rates.crops_within(room.left_s))",
        "pass",
        "tests/scheduler",
    ),
    Mutant(
        "a pause never ends while there is other work",
        "scheduler/policy.py",
        'self._held_s = 0.0 if plan.kind == "decode" else self._held_s + self._rates.cost(plan)',
        "self._held_s = 0.0",
        "tests/scheduler",
    ),
    Mutant(
        "each launch of a pause may take all of it",
        "scheduler/policy.py",
        "return Room(allowed_s if over else allowed_s - self._held_s, over or",
        "return Room(allowed_s, over or",
        "tests/scheduler",
    ),
    Mutant(
        "launches stay small however many wait",
        "scheduler/policy.py",
        "min(self.max_pause_s, self.launch_budget_s * waiting / decoding))",
        "0.0)",
        "tests/scheduler tests/policy",
    ),
    Mutant(
        "prompts keep images from being encoded",
        "scheduler/scheduler.py",
        """        self._prefilled_last[realtime] = plan.kind == "prefill"\n""",
        """        self._prefilled_last[realtime] = False\n""",
        "tests/scheduler/test_scheduler.py",
    ),
    Mutant(
        "priority: nobody comes first",
        "scheduler/priority.py",
        "return self._realtime if realtime else self._bulk",
        "return self._bulk",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "a line that was closed stays closed",
        "scheduler/waiting.py",
        "            if (line := lines.get(key)) is not None:\n                self._open_line(line, realtime)\n",
        "            pass\n",
        "tests/scheduler/test_waiting.py",
    ),
    Mutant(
        "nobody looks at those whose image has been encoded",
        "scheduler/scheduler.py",
        "                self.waiting.open(group.job.key)\n",
        "                pass\n",
        "tests/scheduler/test_scheduler.py",
    ),
    Mutant(
        "nobody looks at those whose image has come into the cache",
        "scheduler/scheduler.py",
        "                    self.waiting.open(row.job.key)\n",
        "                    pass\n",
        SIMULATION,
    ),
    Mutant(
        "those who are not ready are looked at again at every tick",
        "scheduler/scheduler.py",
        "                self.waiting.close(sequence)\n",
        "                pass\n",
        "tests/engine/test_requests.py",
    ),
    Mutant(
        "priority: bulk has no turn",
        "scheduler/priority.py",
        "return self.overtaken >= self._patience",
        "return False",
        SIMULATION,
    ),
    Mutant(
        "priority: bulk has every turn",
        "scheduler/priority.py",
        "return self.overtaken >= self._patience",
        "return True",
        SIMULATION,
    ),
    Mutant(
        "priority: what bulk waits for is not counted",
        "scheduler/scheduler.py",
        "self._turns.book(overtakes=realtime and self.waiting.bulk > ends)",
        "self._turns.book(overtakes=False)",
        SIMULATION,
    ),
    Mutant(
        "priority: bulk prompts take what a ready real-time request lacks",
        "scheduler/scheduler.py",
        "return not self._bulk_is_due and any(",
        "return False and any(",
        SIMULATION,
    ),
    Mutant(
        "priority: bulk that lacks pages at its turn never gets them",
        "scheduler/scheduler.py",
        "return self._bulk_lacks_pages and self._residents.any_realtime",
        "return False",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: bulk that lacks pages keeps real-time requests out of an engine full of bulk",
        "scheduler/scheduler.py",
        "return self._bulk_lacks_pages and self._residents.any_realtime",
        "return self._bulk_lacks_pages",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: crops of both classes are in one launch",
        "scheduler/encoding.py",
        "job.leader.realtime) == realtime]",
        "job.leader.realtime) in (True, False)]",
        SIMULATION,
    ),
    Mutant(
        "priority: an image that bulk waits for stays bulk's",
        "scheduler/encoding.py",
        "            job.leader = sequence\n        return True",
        "            pass\n        return True",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: bulk takes all places for images",
        "scheduler/encoding.py",
        "return realtime or len(self._led(realtime=False)) < self._max_jobs",
        "return True",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: a full batch keeps real-time requests waiting",
        "scheduler/residents.py",
        "running = self.running.realtime if realtime else len(self.running)",
        "running = len(self.running)",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: decode steps leave the same sequence out for ever",
        "scheduler/residents.py",
        "self._turns.book(overtakes=not bulk_first)",
        "self._turns.book(overtakes=False)",
        f"tests/scheduler/test_priority.py {SIMULATION}",
    ),
    Mutant(
        "priority: a decode step has more rows than a batch",
        "scheduler/residents.py",
        "sorted(able[: self._max_batch], key=rank)",
        "sorted(able, key=rank)",
        SIMULATION,
    ),
    Mutant(
        "priority: real-time work waits until the pause of bulk is over",
        "scheduler/policy.py",
        "short if load.realtime_decoding else max(short, self._limits.max_pause_s)",
        "short",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: pauses of bulk grow beside real-time requests",
        "scheduler/policy.py",
        "self._room(short if load.realtime_near else grown)",
        "self._room(grown)",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: bulk launches are long while nobody is decoded",
        "scheduler/policy.py",
        "Room(short if load.realtime_near else math.inf)",
        "Room(math.inf)",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: bulk rows ride along in every step of a real-time answer",
        "scheduler/residents.py",
        "        if not bulk_first:\n            return realtime[: self._max_batch]\n",
        "",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: bulk launches come between the steps of a real-time answer",
        "scheduler/policy.py",
        "            self.bulk = Room(short, over=True)\n",
        "            self.bulk = self._room(short)\n",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: bulk gets no launch while a real-time answer is decoded",
        "scheduler/scheduler.py",
        " and not (self._realtime_decoding and self._steps.due)",
        "",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: time that the device is kept free is no turn",
        "scheduler/scheduler.py",
        "        if kept_free and not self._kept_free:",
        "        if False:",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "deadline: a request is given up in the middle of its work",
        "scheduler/readiness.py",
        "if sequence.times.admitted or self._encodings.begun(sequence):",
        "if False:",
        "tests/engine/test_requests.py",
    ),
    Mutant(
        "tables: encoded images are kept by the runner's device",
        "scheduler/encoding.py",
        "                    idle.append(self.jobs.pop(job.key))\n",
        "                    idle.append(job)\n",
        SIMULATION,
    ),
    Mutant(
        "uncut images: more bytes in a launch than there is room for",
        "scheduler/encoding.py",
        "                if groups and copied > self._max_image_bytes:\n",
        "                if groups and copied < 0:\n",
        SIMULATION,
    ),
]
