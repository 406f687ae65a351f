"""Bugs to seed into photonlite/engine/."""

from tests.mutants.mutant import CORE, RUNS, SIMULATION, Mutant

MUTANTS = [
    Mutant(
        "images are encoded beside other steps where the tuned schedule takes turns",
        "engine/build.py",
        "if split.source and not split.encode_sms:",
        "if False:",
        "tests/api/test_tuned.py",
    ),
    Mutant(
        "a request is submitted before its grammar is there",
        "api/session.py",
        "                yield compiling\n",
        "                pass\n",
        "tests/api/test_session_steps.py",
    ),
    Mutant(
        "a grammar that nobody waits for is compiled to its end",
        "api/session.py",
        "handle.when_computed(compiling.cancel)",
        "handle.when_computed(compiling.done)",
        "tests/api/test_session_steps.py",
    ),
    Mutant(
        "follow-ups run on when the answer is cancelled",
        "engine/handle.py",
        "        self.future.add_done_callback(lambda _: child.cancel())\n",
        "",
        "tests/api/test_session_steps.py",
    ),
    Mutant(
        "a step in front of an encoding does not know that it overlaps with it",
        "engine/core.py",
        "for one in (*queued, encoding) if one is not None",
        "for one in queued",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "images that are encoded in turn take no place of the pipeline",
        "engine/core.py",
        "if step.plan.in_turn]",
        "if False]",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "a step does not know that a prompt is computed beside it",
        "engine/core.py",
        "any(one.in_part or one.beside for one",
        "any(one.in_part for one",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "a prompt beside others ends its request, as it asks for no token",
        "engine/answers.py",
        "(row.cut or step.plan.beside)",
        "row.cut",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "blocking at depth 2: the commit before the launch",
        "engine/core.py",
        """        step = self._launch(batch, beside=beside)
""",
        """        self._commit(None)
        step = self._launch(batch, beside=beside)
""",
        CORE,
    ),
    Mutant(
        "stale mask: the grammar has not seen the last token",
        "engine/answers.py",
        """        allowed = grammar.allowed if outstanding == 0 else grammar.ahead if knows else None
""",
        """        allowed = grammar.allowed
""",
        f"{CORE} {SIMULATION}",
    ),
    Mutant(
        "predicted mask: every batch is sampled before the commit",
        "engine/answers.py",
        """            if ahead and outstanding:
                return None""",
        """            if False:
                return None""",
        CORE,
    ),
    Mutant(
        "one poisoned image kills the engine",
        "engine/core.py",
        "if not images or images != self._failed_images:",
        "if True:",
        CORE,
    ),
    Mutant(
        "prompts are hashed by the engine's thread",
        "engine/loop.py",
        """        self._core.scheduler.prepare(sequence)
        with self._gate:""",
        """        with self._gate:""",
        "tests/engine/test_loop.py",
    ),
    Mutant(
        "a shortage of memory counts towards the engine's death",
        "engine/core.py",
        """        if is_shortage(error):
""",
        """        if False:
""",
        CORE,
    ),
    Mutant(
        "what memory was short for together is not tried apart",
        "engine/faults.py",
        'return batch.kind != "decode" and several and is_shortage(error)',
        "return False",
        CORE,
    ),
    Mutant(
        "reference dropped: a launch does not count",
        "engine/core.py",
        """            row.sequence.retain()
""",
        """            pass
""",
        CORE,
    ),
    Mutant(
        "a zombie gets another token",
        "engine/answers.py",
        """            if sequence.finalized:
                zombies += 1
            elif not row.is_void:""",
        "            if not row.is_void:",
        CORE,
    ),
    Mutant(
        "a request ends twice",
        "engine/core.py",
        """        if sequence in self.open:
""",
        """        if True:
""",
        CORE,
    ),
    Mutant(
        "a launch that raised keeps its pages",
        "engine/core.py",
        """        self.scheduler.abandon(batch)
""",
        "",
        CORE,
    ),
    Mutant(
        "one request's encode failure spares it and hits nobody",
        "engine/core.py",
        """                if error is not None and not split:
                    self.end(leader, error)
                elif""",
        "                if",
        f"{CORE} {SIMULATION}",
    ),
    Mutant(
        "a cancelled request goes on",
        "engine/core.py",
        """        self.end(sequence, RequestCancelledError("the request was cancelled"))
""",
        "        return\n",
        CORE,
    ),
    Mutant(
        "a deadline passes unnoticed",
        "scheduler/scheduler.py",
        """        ended = self._expired(now) if self._next_deadline <= now else []
""",
        """        ended = []
""",
        "tests/engine/test_loop.py",
    ),
    Mutant(
        "a dead engine leaves requests waiting",
        "engine/loop.py",
        """        self._core.end_all_after_fault(error)
""",
        "",
        "tests/engine/test_loop.py",
    ),
    Mutant(
        "closing drops what is in flight",
        "engine/loop.py",
        "if self._stopping and core.idle and not self._inbox:",
        "if self._stopping:",
        "tests/engine/test_loop.py",
    ),
    Mutant(
        "a forked process waits for a lock that nobody releases",
        "engine/loop.py",
        "        self._gate = threading.RLock()\n        self._wake = queue.SimpleQueue()\n",
        "        self._wake = queue.SimpleQueue()\n",
        "tests/engine/test_loop.py",
    ),
    Mutant(
        "a forked process cancels a request of another one",
        "engine/handle.py",
        "    if os.getpid() == process:",
        "    if True:",
        "tests/engine/test_loop.py",
    ),
    Mutant(
        "memory gate: a call that has left the queue keeps its image",
        "engine/memory_gate.py",
        "            self.granted = None  #",
        "            pass  #",
        "tests/engine/test_memory_gate.py",
    ),
    Mutant(
        "requests that have ended are kept until their deadlines",
        "scheduler/scheduler.py",
        """            self._deadlines.discard(sequence)
""",
        """            pass
""",
        "tests/engine/test_core.py tests/engine/test_requests.py",
    ),
    Mutant(
        "work is spent on the expired while others of them are ended",
        "scheduler/scheduler.py",
        "admit = not ended or self._next_deadline > now",
        "admit = True",
        "tests/engine/test_requests.py",
    ),
    Mutant(
        "all notes are read before a step",
        "engine/loop.py",
        "min(_NOTES, len(self._inbox))",
        "len(self._inbox)",
        "tests/engine/test_loop.py",
    ),
    Mutant(
        "the engine sleeps over notes that it has not read",
        "engine/loop.py",
        "if core.tick() or self._inbox:",
        "if core.tick():",
        "tests/engine/test_loop.py",
    ),
    Mutant(
        "priority: the device is not kept free for the next frame",
        "scheduler/realtime.py",
        "soon = self.kept_idle_until is not None or",
        "soon =",
        "tests/engine/test_requests.py",
    ),
    Mutant(
        "priority: nobody looks again when the frame did not come",
        "scheduler/scheduler.py",
        """            wake_at = min(wake_at, self.policy.kept_idle_until)
""",
        """            pass
""",
        "tests/engine/test_requests.py",
    ),
    Mutant(
        "priority: the next frame is not expected",
        "scheduler/realtime.py",
        """            self.arrivals.note_end(now)
""",
        """            pass
""",
        "tests/engine/test_requests.py",
    ),
    Mutant(
        "priority: the device is kept free for ever for those who are never ready",
        "scheduler/arrivals.py",
        "now + _MOST_S * self._second - self._spent",
        "now + _MOST_S * self._second",
        "tests/scheduler/test_arrivals.py",
    ),
    Mutant(
        "priority: each bulk launch pays for time in which nobody came",
        "scheduler/arrivals.py",
        "elif self._served:",
        "else:",
        "tests/scheduler/test_arrivals.py",
    ),
    Mutant(
        "priority: no launch pays for time that the device was kept free",
        "scheduler/realtime.py",
        "= 0\n        self.arrivals.note_launch(realtime=realtime)\n",
        "= 0\n",
        "tests/engine/test_requests.py tests/policy",
    ),
    Mutant(
        "deadline: a hopeless request is worked for",
        "scheduler/scheduler.py",
        "hopeless = self.policy.give_up(now)",
        "hopeless = []",
        "tests/engine/test_requests.py",
    ),
    Mutant(
        "deadline: old rates are believed for ever",
        "scheduler/realtime.py",
        """        self._may_give_up -= 1
""",
        "",
        "tests/engine/test_requests.py",
    ),
    Mutant(
        "deadline: an image is decoded for nobody",
        "api/session.py",
        "    return None if handle.ended() else next(steps, None)\n",
        "    return None if handle.future.done() else next(steps, None)\n",
        "tests/api/test_session_steps.py",
    ),
    Mutant(
        "shortage of memory: a prompt in flight speaks of an image that is not there",
        "batch.py",
        "        return self.sequence.preempting and any(job.failed for job in self.jobs)\n",
        "        return False\n",
        "tests/engine/test_core.py",
    ),
    Mutant(
        "tenants: follow-ups forget whose they are",
        "engine/handle.py",
        "request = replace(request, cache_salt=own.cache_salt, realtime=own.realtime, adapter=own.adapter)",
        "request = replace(request, realtime=own.realtime, adapter=own.adapter)",
        "tests/api/test_session_steps.py",
    ),
    Mutant(
        "tenants: follow-ups are bulk work",
        "engine/handle.py",
        "request = replace(request, cache_salt=own.cache_salt, realtime=own.realtime, adapter=own.adapter)",
        "request = replace(request, cache_salt=own.cache_salt, adapter=own.adapter)",
        "tests/api/test_session_steps.py",
    ),
    Mutant(
        "deadline: counted from the hand-in",
        "api/session.py",
        "            submitted=handle.begun,\n",
        "            submitted=None,\n",
        "tests/engine/test_handle.py",
    ),
    Mutant(
        "deadline: counted from the engine's side of the hand-in",
        "engine/engine.py",
        "deadline=None if deadline_s is None else begun + deadline_s,",
        "deadline=None if deadline_s is None else time.perf_counter() + deadline_s,",
        "tests/engine/test_engine.py",
    ),
    Mutant(
        "follow-ups: a failed one leaves the answer waiting",
        "api/session.py",
        "                handle.fail(error)\n                return\n",
        "                return\n",
        "tests/api/test_session_steps.py",
    ),
    Mutant(
        "sampling: top_p is lost on its way",
        "runner/slot_inputs.py",
        "one.temperature, one.top_p, one.seed",
        "one.temperature, 1.0, one.seed",
        SIMULATION,
    ),
    Mutant(
        "sampling: top_k is lost on its way",
        "runner/slot_inputs.py",
        "row.index, one.top_k",
        "row.index, 0",
        "tests/api/test_model.py",
    ),
    Mutant(
        "sampling: a penalty does not wait for the token before",
        "engine/answers.py",
        "            knows = outstanding == 1 and sequence.repetition_penalty == 1  #",
        "            knows = outstanding == 1  #",
        SIMULATION,
    ),
    Mutant(
        "sampling: a penalty holds for what a grammar lists",
        "runner/slot_inputs.py",
        "one.repetition_penalty if wanted.free else 1.0",
        "one.repetition_penalty",
        "tests/test_equality.py",
    ),
    Mutant(
        "sampling: a new sequence inherits what the last one in its row has seen",
        "runner/seen_ids.py",
        "if known is None or known.number != sequence.number:",
        "if known is None:",
        "tests/runner/test_seen_ids.py",
    ),
    Mutant(
        "threads: requests are submitted without the gate",
        "engine/loop.py",
        "        with self._gate:  # a note is either refused here or read",
        "        with contextlib.nullcontext():  # a note is either refused here or read",
        "tests/engine/test_interleavings.py",
    ),
    Mutant(
        "threads: a cancel is dropped while the engine drains",
        "engine/loop.py",
        "            if self._refusal is None or self._thread.is_alive():\n",
        "            if self._refusal is None:\n",
        "tests/engine/test_interleavings.py",
    ),
    Mutant(
        "threads: a request cancelled while it is submitted goes on",
        "engine/handle.py",
        "        if self.future.done():  # it ended while it was submitted\n",
        "        if False:\n",
        "tests/engine/test_interleavings.py",
    ),
    Mutant(
        "threads: a cancelled call waits for room",
        "engine/handle.py",
        "[self.future] if future is None else [self.future, future]",
        "[self.future] if future is None else [future]",
        "tests/engine/test_interleavings.py",
    ),
    Mutant(
        "threads: the granting thread is not woken by a release",
        "engine/memory_gate.py",
        "            self.leave()\n        self._lane.wake()\n",
        "            self.leave()\n",
        "tests/engine/test_interleavings.py",
    ),
    Mutant(
        "memory gate: everybody enters",
        "engine/memory_gate.py",
        "return not self.held or self.held + permit.size <= self._limit",
        "return True",
        "tests/engine/test_memory_gate.py",
    ),
    Mutant(
        "memory gate: a large image waits for ever",
        "engine/memory_gate.py",
        "return not self.held or self.held",
        "return self.held",
        "tests/engine/test_memory_gate.py",
    ),
    Mutant(
        "memory gate: small images overtake",
        "engine/memory_gate.py",
        "if not self._queue and self._fits(permit):",
        "if self._fits(permit):",
        "tests/engine/test_memory_gate.py",
    ),
    Mutant(
        "memory gate: a released permit is granted",
        "engine/memory_gate.py",
        "        if self.released:  # while",
        "        if False:  # while",
        "tests/engine/test_memory_gate.py",
    ),
    Mutant(
        "memory gate: room is not given back at the first token",
        "engine/handle.py",
        "        if self._releases:\n            self.release()\n",
        "",
        "tests/api/test_session_steps.py",
    ),
    Mutant(
        "an idle engine gives no sign of life",
        "engine/loop.py",
        "            self._last_tick = time.perf_counter()\n            while",
        "            while",
        "tests/engine/test_loop.py",
    ),
    Mutant(
        "runs: a token that was known is taken a second time",
        "engine/answers.py",
        "                    if row.index == len(sequence.tokens):  # else",
        "                    if True:  # else",
        RUNS,
    ),
    Mutant(
        "runs: what an answer begins with is handed out before its image was read",
        "sequence.py",
        "        if self.num_committed_tokens:\n            self.hand_out(now)\n",
        "        self.hand_out(now)\n",
        f"{RUNS} {SIMULATION}",
    ),
    Mutant(
        "runs: an answer without any choice does not ask for its image",
        "engine/answers.py",
        "                        sequence.answered = True\n",
        "                        self._end(sequence, None)\n",
        RUNS,
    ),
    Mutant(
        "runs: the step in flight leaves another token for the next one",
        "engine/answers.py",
        "found.append(Allowed((sequence.tokens[index].id,)))",
        "found.append(None)",
        SIMULATION,
    ),
    Mutant(
        "runs: ids that are in no vocabulary reach the device",
        "request.py",
        "    if ids and not 0 <= min(ids)",
        "    if False and not 0 <= min(ids)",
        RUNS,
    ),
    Mutant(
        "decode steps wait for images that are encoded beside them",
        "engine/core.py",
        "moved |= self._commit_encodings(wait=False)",
        "moved |= self._commit_encodings(wait=True)",
        "tests/engine/test_beside.py",
    ),
    Mutant(
        "an engine is idle while images are encoded beside nothing",
        "engine/core.py",
        "return self.pipeline.in_flight + beside",
        "return self.pipeline.in_flight",
        "tests/engine/test_beside.py",
    ),
]
