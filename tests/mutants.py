"""Seeds one bug at a time into each mechanism of the engine and shows which test turns red.

```sh
python -m tests.mutants                # all, some minutes on two cores
python -m tests.mutants mask page      # those with one of these words in their name
```

A mutant is a copy of the package with a few lines exchanged. The tests named with it run on that copy; if they all
pass, the mutant survives, and the exit code is 1: a mechanism is not guarded.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LINKED = ("assets", "bench", "README.md")
_WORKERS = 2
_SIMULATION = "tests/simulation/test_simulation.py"
_CORE = "tests/engine/test_core.py"


@dataclass(frozen=True)
class Mutant:
    """A bug to seed.

    Attributes:
        name: What goes wrong.
        path: The module, inside the package.
        old: Lines that must be there exactly once.
        new: What stands there instead.
        tests: What pytest runs, separated by spaces; the first failure ends it.
    """

    name: str
    path: str
    old: str
    new: str
    tests: str


MUTANTS = [
    # Answers that a limit cut short, and names in JSON.
    Mutant(
        "truncation: a value that was forced to end says that it stopped",
        "grammar/typed.py",
        'return "length" if self._limited else "stop"',
        'return "stop"',
        "tests/grammar/test_typed.py",
    ),
    Mutant(
        "truncation: reasoning that was closed by force says that it stopped",
        "grammar/spatial.py",
        'return "length" if self._cut and reason == "stop" else reason',
        "return reason",
        "tests/test_truncation.py",
    ),
    Mutant(
        "truncation: strict callers get a cut answer",
        "request.py",
        'if not self.strict or finish_reason == "stop":',
        "if True:",
        "tests/test_truncation.py",
    ),
    Mutant(
        "names: an object has one twice",
        "grammar/unique_names.py",
        "                    if name in names:",
        "                    if False:",
        "tests/grammar/test_unique_names.py",
    ),
    Mutant(
        "names: nothing is held back for one that is not repeated",
        "grammar/unique_names.py",
        "return left - 1 if left > self._guide.distance[self._state] else left",
        "return left",
        "tests/grammar/test_unique_names.py",
    ),
    Mutant(
        "schemas: a discriminator with a default may be left out",
        "grammar/json_schema.py",
        "inner = tags if tag is None else (*tags, tag)",
        "inner = tags",
        "tests/grammar/test_json_schema.py",
    ),
    # Hostile pictures.
    Mutant(
        "decoding: the header of a picture may take any CPU time",
        "images/decode_worker.py",
        "    limit_cpu(limits.decode_cpu_s)\n",
        "",
        "tests/images/test_decode_process.py",
    ),
    Mutant(
        "decoding: pixels may take any CPU time",
        "images/decode_worker.py",
        "            limit_cpu(max(0.001, allowed - spent))\n",
        "",
        "tests/images/test_decode_process.py",
    ),
    Mutant(
        "decoding: memory is taken before it is admitted",
        "images/decode_process.py",
        "                admit(needed)\n",
        "                pass\n",
        "tests/images/test_decode_process.py",
    ),
    Mutant(
        "decoding: a slow picture keeps its place",
        "images/decode_process.py",
        "        self._on_slow()\n",
        "",
        "tests/images/test_decode_pool.py",
    ),
    Mutant(
        "decoding: a cancelled picture keeps its worker",
        "images/decode_pool.py",
        "            if worker is not None:\n                worker.kill()\n",
        "",
        "tests/images/test_decode_pool.py",
    ),
    Mutant(
        "memory: what decoding takes is not held",
        "server/pictures.py",
        "            _call_on(loop, partial(hold.resize, needed))\n",
        "            pass\n",
        "tests/server/test_pictures.py",
    ),
    Mutant(
        "memory: a message on its way is not counted",
        "server/connections.py",
        "if not ingress.take_arriving(self._network, size, self._arriving):",
        "if False:",
        "tests/server/test_realtime_socket.py",
    ),
    # Threads of operations on the CPU.
    Mutant(
        "decode steps on all cores",
        "device/cores.py",
        "if multiplications < WORTH or self._most == 1:",
        "if self._most == 1:",
        "tests/device/test_cores.py",
    ),
    Mutant(
        "what this process uses counted as taken by others",
        "device/cores.py",
        "(idle - idle_then + used - used_then)",
        "(idle - idle_then)",
        "tests/device/test_cores.py",
    ),
    Mutant(
        "every model on all cores",
        "device/cores.py",
        "int(cores / len(self._wide))",
        "int(cores)",
        "tests/device/test_cores.py",
    ),
    Mutant(
        "the number of threads set for the whole process",
        "device/cores.py",
        "    for function in _setters:\n        function(count)",
        "    torch.set_num_threads(count)",
        "tests/device/test_cores.py",
    ),
    Mutant(
        "prompts as small as their number",
        "runner/torch_body.py",
        "self._spread_over(sum(row.count for row in plan.rows))",
        "self._spread_over(len(plan.rows))",
        "tests/runner/test_torch_body.py",
    ),
    # Typed answers.
    Mutant(
        "scores of the ids before the mask",
        "kernels/scoring.py",
        "masked(wide(logits), masks).softmax(dim=-1)",
        "wide(logits).softmax(dim=-1)",
        "tests/kernels/test_scoring.py",
    ),
    Mutant(
        "scored ids of an earlier step left in their row",
        "runner/choices.py",
        "    row[: len(scored)] = scored\n",
        "    row[: len(scored)] = row[: len(scored)]\n",
        "tests/runner/test_choices.py",
    ),
    Mutant(
        "a forced id that is scored has no mask",
        "runner/choices.py",
        "    if forced is None or allowed.scored:\n",
        "    if forced is None:\n",
        "tests/runner/test_choices.py",
    ),
    Mutant(
        "scores of one row given to all",
        "runner/runner.py",
        "tuple(slot.scores[index, :count].tolist())",
        "tuple(slot.scores[0, :count].tolist())",
        "tests/runner/test_runner.py tests/runner/test_torch_body.py",
    ),
    Mutant(
        "a scored batch leaves the masks on the host",
        "runner/choices.py",
        'WITH_IDS: frozenset[Variant] = frozenset({"text", "decide", "mixed", "scored"})',
        'WITH_IDS: frozenset[Variant] = frozenset({"text", "decide", "mixed"})',
        "tests/runner/test_torch_body.py",
    ),
    Mutant(
        "a branch left aside is taken for its likeliest choice",
        "skills/typed_choices.py",
        "        if ended or len(choices) == 1:\n            self._credit(ids, share, *choices)\n",
        "        if ended or len(choices) >= 1:\n            self._credit(ids, share, *list(choices)[:1])\n",
        "tests/skills/test_typed_choices.py",
    ),
    Mutant(
        "a branch begins with the odds of the whole",
        "skills/typed_choices.py",
        "        self._open[ids] = share\n",
        "        self._open[ids] = 1.0\n",
        "tests/skills/test_typed_choices.py tests/test_typed_answers.py",
    ),
    Mutant(
        "further requests forget the reasoning",
        "skills/typed_choices.py",
        "*(Token(token.id, token.values) for token in tokens[:thought])",
        "",
        "tests/skills/test_typed_choices.py",
    ),
    Mutant(
        "a point is spelled out before it is known to be none of a box",
        "skills/typed_reading.py",
        '            self._place.append(token)\n            return ""\n',
        "            self._place.append(token)\n            if len(self._place) == 2:\n"
        "                return self._spelled()\n",
        "tests/skills/test_typed_reading.py",
    ),
    Mutant(
        "reasoning leaves no room for its answer",
        "skills/typed.py",
        "question.room - 1 - budget",
        "question.room - 1",
        "tests/skills/test_typed.py",
    ),
    Mutant(
        "a request is handed in before its grammar is there",
        "engine/preparation.py",
        "        return self.automaton is None or self.automaton.done()\n",
        "        return True\n",
        "tests/engine/test_preparation.py",
    ),
    Mutant(
        "nothing is encoded while a grammar is compiled",
        "session.py",
        "encode.build() if encodes and self._config.prefix_caching else None",
        "None",
        "tests/test_typed_answers.py",
    ),
    Mutant(
        "a grammar that nobody waits for is compiled to its end",
        "engine/preparation.py",
        "    automaton.cancel()\n",
        "    automaton.done()\n",
        "tests/engine/test_preparation.py",
    ),
    Mutant(
        "closing does not wait for grammars",
        "session.py",
        "        while self.engine.window.settle() or self._unbound:\n",
        "        while self.engine.window.settle():\n",
        "tests/test_typed_answers.py",
    ),
    Mutant(
        "a draining engine refuses what completes an answer",
        "engine/loop.py",
        "            if self._refusal is not None and not completes:\n",
        "            if self._refusal is not None:\n",
        "tests/engine/test_loop.py",
    ),
    Mutant(
        "further requests run on when the answer is given up",
        "engine/sequel.py",
        "        for sequence in list(self._sequences):\n            self._cancel(sequence)\n",
        "        return\n",
        "tests/engine/test_sequel.py",
    ),
    # The pipeline and its commits.
    Mutant(
        "slot freed when its commit begins",
        "runner/pipeline.py",
        """        step.state = "committing"
""",
        """        step.state = "committing"
        self._free.append(step.slot)
""",
        "tests/runner/test_pipeline.py",
    ),
    Mutant(
        "commits reordered: the newest first",
        "runner/pipeline.py",
        "return self._in_flight[0] if self._in_flight else None",
        "return self._in_flight[-1] if self._in_flight else None",
        _CORE,
    ),
    Mutant(
        "launched on top of a step that is not sampled",
        "runner/pipeline.py",
        """if self._in_flight and self._in_flight[-1].state == "launched":""",
        """if False:""",
        "tests/runner/test_pipeline.py",
    ),
    Mutant(
        "blocking at depth 2: the commit before the launch",
        "engine/core.py",
        """        self.requests.expire()
        step = self._launch()
""",
        """        self.requests.expire()
        if self.pipeline.oldest is not None:
            self._commit(self.pipeline.oldest)
        step = self._launch()
""",
        _CORE,
    ),
    # Late masks.
    Mutant(
        "stale mask: the grammar has not seen the last token",
        "engine/core.py",
        """        allowed = grammar.allowed if outstanding == 0 else grammar.ahead if outstanding == 1 else None
""",
        """        allowed = grammar.allowed
""",
        f"{_CORE} {_SIMULATION}",
    ),
    Mutant(
        "predicted mask: every batch is sampled before the commit",
        "engine/core.py",
        'if step is not None and step.state == "launched" and self._knows_masks(step):',
        'if step is not None and step.state == "launched":',
        _CORE,
    ),
    Mutant(
        "mask bits of the neighbouring row",
        "runner/runner.py",
        "write_choice(choice, slot.choices[index], slot.masks[index], self._masks)",
        "write_choice(choice, slot.choices[index], slot.masks[index - 1], self._masks)",
        _SIMULATION,
    ),
    Mutant(
        "masks are not uploaded before sampling",
        "runner/runner.py",
        "        device.compute.wait(slot.choices_uploaded)\n",
        "",
        _SIMULATION,
    ),
    Mutant(
        "one poisoned picture kills the engine",
        "engine/core.py",
        "if not pictures or pictures != self._struck:",
        "if True:",
        _CORE,
    ),
    Mutant(
        "what one picture raises is everybody's fault",
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
        "an odd mask spoils the whole batch",
        "runner/runner.py",
        "            except Exception as error:  # a grammar is a plug-in\n",
        "            except ZeroDivisionError as error:\n",
        "tests/simulation/test_hostile.py",
    ),
    Mutant(
        "prompts are hashed by the engine's thread",
        "engine/loop.py",
        """        self._core.prepare(sequence)
        with self._gate:""",
        """        with self._gate:""",
        "tests/engine/test_loop.py",
    ),
    Mutant(
        "a shortage of memory counts towards the engine's death",
        "engine/core.py",
        "        if is_shortage(error):\n            for job",
        "        if False:\n            for job",
        _CORE,
    ),
    Mutant(
        "what memory was short for together is not tried apart",
        "engine/core.py",
        'return plan.kind != "decode" and several and is_shortage(error)',
        "return False",
        _CORE,
    ),
    Mutant(
        "the self-test never looks at sizes",
        "skills/selftest.py",
        "[word, place, place, size, word]",
        "[word, place, place, word]",
        "tests/skills/test_selftest.py",
    ),
    Mutant(
        "a server whose engine has died goes on",
        "server/run.py",
        "        if self._look_at_engine() and self._draining is None:\n",
        "        if False:\n",
        "tests/server/test_run.py",
    ),
    # Zombies.
    Mutant(
        "reference dropped: a launch does not count",
        "engine/core.py",
        "            row.sequence.retain()\n",
        "",
        _CORE,
    ),
    Mutant(
        "pages of a zombie released with its result",
        "scheduler/residents.py",
        """        if sequence.inflight_refs > 0:
            return
""",
        "",
        _CORE,
    ),
    Mutant(
        "a zombie gets another token",
        "engine/core.py",
        """        if sequence.finalized:
            self._accounts.zombie()
            return
""",
        """        if sequence.finalized:
            self._accounts.zombie()
""",
        _CORE,
    ),
    Mutant(
        "a request ends twice",
        "engine/requests.py",
        """        if sequence.finalized:
            return
        self._finalize(sequence, None if error is None else _reported(sequence, error))
""",
        """        self._finalize(sequence, None if error is None else _reported(sequence, error))
""",
        _CORE,
    ),
    # Rows, carry-over and pages on the device.
    Mutant(
        "carry-over from the wrong row",
        "runner/runner.py",
        "        target[:count, PENDING_ROW] = rows\n",
        "        target[:count, PENDING_ROW] = rows[::-1]\n",
        _SIMULATION,
    ),
    Mutant(
        "unused rows write to a live page",
        "runner/runner.py",
        "            target[count:padded, WRITE_SLOT] = SCRATCH_PAGE * self._page_size\n",
        "            target[count:padded, WRITE_SLOT] = target[0, WRITE_SLOT]\n",
        _SIMULATION,
    ),
    Mutant(
        "unused rows write to a live row of the pending table",
        "runner/runner.py",
        "            target[count:padded, PENDING_ROW] = self._scratch_row\n",
        "            target[count:padded, PENDING_ROW] = rows[0]\n",
        _SIMULATION,
    ),
    Mutant(
        "a new page is missing from the page table",
        "runner/runner.py",
        "if (written := self._written[row]) < len(pages):",
        "if (written := self._written[row]) < len(pages) - 1:",
        _SIMULATION,
    ),
    Mutant(
        "a row is reused while a zombie holds it",
        "scheduler/residents.py",
        "        self.zombies.add(sequence)\n",
        "        self.zombies.add(sequence)\n        self.free_rows.append(sequence.row)\n",
        f"{_CORE} {_SIMULATION}",
    ),
    # Streams and events.
    Mutant(
        "the forward pass does not wait for its rows",
        "runner/runner.py",
        "        device.compute.wait(slot.uploaded)\n",
        "",
        _SIMULATION,
    ),
    Mutant(
        "results are copied before they are there",
        "runner/runner.py",
        "        device.download.wait(slot.finalize_ended)\n",
        "",
        _SIMULATION,
    ),
    Mutant(
        "the host reads results before they have come",
        "runner/runner.py",
        '(slot.forward_ended if step.kind == "encode" else slot.copied).wait()',
        "slot.forward_ended.wait()",
        _SIMULATION,
    ),
    # Pages and prefixes.
    Mutant(
        "page leaked: the last one stays",
        "cache/manager.py",
        "        self.pages.release_all(sequence.pages)\n",
        "        self.pages.release_all(sequence.pages[:-1])\n",
        "tests/cache",
    ),
    Mutant(
        "the image's last page is shared instead of copied",
        "scheduler/scheduler.py",
        "            copies += admission.copies\n",
        "",
        _SIMULATION,
    ),
    Mutant(
        "the image's last page is not saved",
        "scheduler/scheduler.py",
        "            saves += admission.saves\n",
        "",
        _SIMULATION,
    ),
    Mutant(
        "the source of a copy is not held",
        "cache/manager.py",
        "            self.pages.retain(source)\n",
        "",
        "tests/cache",
    ),
    Mutant(
        "a prefix whose step failed is handed out",
        "scheduler/scheduler.py",
        "(self.cache.withdraw if lost else self.cache.confirm)(row.sequence)",
        "self.cache.confirm(row.sequence)",
        f"{_CORE} {_SIMULATION}",
    ),
    Mutant(
        "a prefix is used before its step has committed",
        "scheduler/readiness.py",
        """        return state == "ready"
""",
        """        return True
""",
        f"{_CORE} {_SIMULATION}",
    ),
    Mutant(
        "pictures are told apart by nothing",
        "cache/prefix.py",
        "return blake2b(_bytes(picture), digest_size",
        "return blake2b(_bytes(picture[:0]), digest_size",
        "tests/cache",
    ),
    # Admission, growth and pre-emption.
    Mutant(
        "room is made one position too late",
        "scheduler/residents.py",
        "while not self._cache.grow(sequence, sequence.filled + 1):",
        "while not self._cache.grow(sequence, sequence.filled):",
        _SIMULATION,
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
        f"tests/scheduler {_SIMULATION}",
    ),
    Mutant(
        "a recomputed sequence forgets its last token",
        "sequence.py",
        "        return self.prompt_length + len(self.tokens)\n",
        "        return self.prompt_length + max(0, len(self.tokens) - 1)\n",
        f"tests/scheduler {_SIMULATION}",
    ),
    Mutant(
        "a launch that raised keeps its pages",
        "engine/core.py",
        "        self.scheduler.abandon(plan)\n",
        "",
        _CORE,
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
        _CORE,
    ),
    # Encoding.
    Mutant(
        "crops are encoded twice",
        "scheduler/encoding.py",
        "            group.job.launched += group.count\n",
        "            group.job.launched += max(1, group.count - 1)\n",
        f"tests/scheduler {_SIMULATION}",
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
        "one request's encode failure spares it and hits nobody",
        "engine/core.py",
        """                if error is not None and not spared:
                    self.requests.end(leader, error)
""",
        "",
        f"{_CORE} {_SIMULATION}",
    ),
    # Faces.
    Mutant(
        "a cancelled request goes on",
        "engine/core.py",
        """        self.requests.end(sequence, RequestCancelledError("the request was cancelled"))
""",
        "        return\n",
        _CORE,
    ),
    Mutant(
        "a deadline passes unnoticed",
        "engine/core.py",
        "        self.requests.expire()\n",
        "",
        "tests/engine/test_loop.py",
    ),
    Mutant(
        "a failed launch leaves its slot while the device still reads it",
        "runner/runner.py",
        "        slot.forward_ended.wait()\n",
        "",
        "tests/runner/test_runner.py",
    ),
    Mutant(
        "prompts keep pictures from being encoded",
        "scheduler/scheduler.py",
        """        self._prefilled_last[realtime] = plan.kind == "prefill"\n""",
        """        self._prefilled_last[realtime] = False\n""",
        "tests/scheduler/test_scheduler.py",
    ),
    Mutant(
        "a dead engine leaves requests waiting",
        "engine/loop.py",
        "        self._core.bury(error)\n",
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
        "numbers drawn from the wrong token's stream",
        "runner/choices.py",
        "_mix(_start(seed) + (index * _LANES + lane) * _WEYL)",
        "_mix(_start(seed) + lane * _WEYL)",
        "tests/runner/test_choices.py",
    ),
    Mutant(
        "a masked id can be chosen",
        "kernels/reference_choosing.py",
        "return torch.where(allowed, logits, -math.inf)",
        "return torch.where(allowed, logits, logits - 1)",
        "tests/runner/test_sampling.py",
    ),
    Mutant(
        "carry-over to the wrong row of the pending table",
        "runner/torch_body.py",
        "self._pending, buffers.rows[:count, PENDING_ROW])",
        "self._pending, buffers.rows[:count, PENDING_ROW].flip(0))",
        "tests/runner/test_torch_body.py",
    ),
    Mutant(
        "a carried coordinate is embedded as a word",
        "runner/inputs.py",
        "return _select(bins >= 0, text, coordinate, size)",
        "return _select(bins >= len(self._sizes), text, coordinate, size)",
        "tests/runner/test_inputs.py tests/runner/test_torch_body.py",
    ),
    Mutant(
        "the picture's block is causal where prompts are packed",
        "runner/packed_prefill.py",
        "starts[row] + first, blocks[row]), axis=1)",
        "starts[row] + first, 0 * blocks[row]), axis=1)",
        "tests/runner/test_torch_body.py",
    ),
    Mutant(
        "padding of packed prompts is written to a live page",
        "runner/packed_prefill.py",
        "    places[total:] = (0, SCRATCH_PAGE * page, 0)\n",
        "    places[total:] = places[total - 1]\n",
        "tests/runner/test_packed_prefill.py tests/runner/test_torch_body.py",
    ),
    Mutant(
        "packed prompts read the input of the launch before",
        "runner/packed_prefill.py",
        "x = torch.where((words != EMBEDDED)[:, None], embedded, self._x[:size])",
        "x = torch.where((words != EMBEDDED)[:, None], embedded, self._x[:size].roll(1, 0))",
        "tests/runner/test_torch_body.py",
    ),
    Mutant(
        "a resumed prompt begins at position 0",
        "runner/packed_prefill.py",
        "row), starts[row] + within",
        "row), within",
        "tests/runner/test_packed_prefill.py tests/runner/test_torch_body.py",
    ),
    Mutant(
        "the last block keeps its keys to itself",
        "models/moondream/fused_prefill.py",
        "self._last_kv(rows), prompts.positions, prompts.slots, self._rotary",
        "self._last_kv(rows), prompts.positions, None, self._rotary",
        "tests/models/moondream/test_fused_prefill.py",
    ),
    Mutant(
        "the picture's block is causal",
        "runner/attention.py",
        "first = attend(q[:, :block], k[:, :block], v[:, :block], None)",
        "first = attend(q[:, :block], k[:, :block], v[:, :block], torch.ones(block, block).bool().tril())",
        "tests/runner/test_attention.py tests/runner/test_torch_body.py",
    ),
    Mutant(
        "NaN of foreign pages reaches a result",
        "kernels/reference.py",
        "return dequantise(found, dtype, scale).masked_fill(unseen[..., None, None], 0.0)",
        "return dequantise(found, dtype, scale)",
        "tests/runner/test_attention.py tests/runner/test_torch_body.py",
    ),
    Mutant(
        "a prefill sees its own keys and values as they were before FP8",
        "runner/attention.py",
        "own = dequantise(quantise(own, pages.dtype, scale), own.dtype, scale)",
        "own = own",
        "tests/runner/test_attention.py",
    ),
    Mutant(
        "FP8 wraps where it should saturate",
        "kernels/reference.py",
        "(x / scale).clamp(-largest, largest).to(FP8)",
        "(x / scale).fmod(largest).to(FP8)",
        "tests/kernels/test_paged_attention.py",
    ),
    Mutant(
        "the last block waits for a count that the next step clears",
        "models/moondream/fused_decode.py",
        "x, stats, None if last else handshake)",
        "x, stats, handshake)",
        "tests/models/moondream/test_fused_decode.py",
    ),
    Mutant(
        "a step that failed leaves its counts to the next one",
        "models/moondream/fused_decode.py",
        "            self._ready.zero_()  #",
        "            pass  #",
        "tests/models/moondream/test_fused_decode.py",
    ),
    Mutant(
        "a packed model keeps its weights twice",
        "models/moondream/packed.py",
        "_share(fc1, w_in[rows:], b_in[rows:])",
        "_share(fc1, w_in[rows:].clone(), b_in[rows:])",
        "tests/models/moondream/test_packed.py",
    ),
    Mutant(
        "engines on one card count arrivals together",
        "kernels/skinny.py",
        "    token = _counters.set(counters)\n",
        "    token = _counters.set(_shared)\n",
        "tests/kernels/test_skinny.py",
    ),
    Mutant(
        "a new position does not see itself",
        "kernels/reference_decode.py",
        "q, cos, sin), keys, values, page_table, positions + 1,",
        "q, cos, sin), keys, values, page_table, positions,",
        "tests/kernels/test_decode_attention.py",
    ),
    Mutant(
        "without fused kernels pictures are encoded by them all the same",
        "models/views.py",
        """        \"\"\"The plain one.\"\"\"
        return self._model.vision
""",
        """        \"\"\"The plain one.\"\"\"
        return self._model.crop_encoder(fp8=fp8)
""",
        "tests/models/test_views.py",
    ),
    # Real-time requests beside bulk ones.
    Mutant(
        "priority: nobody comes first",
        "scheduler/priority.py",
        "return self._realtime if realtime else self._bulk",
        "return self._bulk",
        "tests/scheduler/test_priority.py",
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
        "engine/generation.py",
        "    if os.getpid() == process:\n",
        "    if True:\n",
        "tests/engine/test_loop.py",
    ),
    Mutant(
        "what follows a request goes on though nothing is drained",
        "engine/loop.py",
        "completes = self._drains and threading",
        "completes = threading",
        "tests/engine/test_loop.py",
    ),
    Mutant(
        "numbers of NumPy are kept as they are",
        "numeric.py",
        "        object.__setattr__(settings, field.name, plain(getattr(settings, field.name)))\n",
        "        pass\n",
        "tests/test_numeric.py",
    ),
    # Crowds.
    Mutant(
        "a call that has left the queue keeps its picture",
        "engine/window.py",
        "            place.forget()\n            self._uncount(place)\n",
        "            self._uncount(place)\n",
        "tests/engine/test_window.py",
    ),
    Mutant(
        "a line that was closed stays closed",
        "scheduler/waiting.py",
        "            if (line := lines.get(key)) is not None:\n                self._open_line(line, realtime)\n",
        "            pass\n",
        "tests/scheduler/test_waiting.py",
    ),
    Mutant(
        "nobody looks at those whose picture has been encoded",
        "scheduler/scheduler.py",
        "                self.waiting.open(group.job.key)\n",
        "                pass\n",
        "tests/scheduler/test_scheduler.py",
    ),
    Mutant(
        "nobody looks at those whose picture has come into the cache",
        "scheduler/scheduler.py",
        "                    self.waiting.open(row.job.key)\n",
        "                    pass\n",
        _SIMULATION,
    ),
    Mutant(
        "those who are not ready are looked at again at every tick",
        "scheduler/scheduler.py",
        "                self.waiting.close(sequence)\n",
        "                pass\n",
        "tests/engine/test_requests.py",
    ),
    Mutant(
        "requests that have ended are kept until their deadlines",
        "engine/requests.py",
        "            self._deadlines.discard(sequence)\n",
        "            pass\n",
        "tests/engine/test_core.py tests/engine/test_requests.py",
    ),
    Mutant(
        "work is spent on the expired while others of them are ended",
        "engine/requests.py",
        "self._scheduler.admits = not self._expired(now)",
        "self._scheduler.admits = True",
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
        "priority: bulk has no turn",
        "scheduler/priority.py",
        "return self.overtaken >= self._patience",
        "return False",
        _SIMULATION,
    ),
    Mutant(
        "priority: bulk has every turn",
        "scheduler/priority.py",
        "return self.overtaken >= self._patience",
        "return True",
        _SIMULATION,
    ),
    Mutant(
        "priority: what bulk waits for is not counted",
        "scheduler/scheduler.py",
        "self._turns.book(overtakes=realtime and self.waiting.bulk > ends)",
        "self._turns.book(overtakes=False)",
        _SIMULATION,
    ),
    Mutant(
        "priority: bulk prompts take what a ready real-time request lacks",
        "scheduler/scheduler.py",
        "return not self._bulk_is_due and any(",
        "return False and any(",
        _SIMULATION,
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
        _SIMULATION,
    ),
    Mutant(
        "priority: a picture that bulk waits for stays bulk's",
        "scheduler/encoding.py",
        "            job.leader = sequence\n        return True",
        "            pass\n        return True",
        "tests/scheduler/test_priority.py",
    ),
    Mutant(
        "priority: bulk takes all places for pictures",
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
        f"tests/scheduler/test_priority.py {_SIMULATION}",
    ),
    Mutant(
        "priority: a decode step has more rows than a batch",
        "scheduler/residents.py",
        "sorted(able[: self._max_batch], key=rank)",
        "sorted(able, key=rank)",
        _SIMULATION,
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
        "priority: the device is not kept free for the next frame",
        "engine/core.py",
        "self.requests.realtime_soon()",
        "False",
        "tests/engine/test_requests.py",
    ),
    Mutant(
        "priority: nobody looks again when the frame did not come",
        "engine/requests.py",
        "            times.append(self.kept_free_until)\n",
        "            pass\n",
        "tests/engine/test_requests.py",
    ),
    Mutant(
        "priority: the next frame is not expected",
        "engine/requests.py",
        "self._realtime_until = sequence.times.finished + _NEAR_S",
        "pass",
        "tests/engine/test_requests.py",
    ),
    Mutant(
        "priority: the device is kept free for ever for those who are never ready",
        "engine/rhythm.py",
        "now + self._limit - self._spent",
        "now + self._limit",
        "tests/engine/test_rhythm.py",
    ),
    Mutant(
        "priority: each bulk launch pays for time in which nobody came",
        "engine/rhythm.py",
        "elif self._served:",
        "else:",
        "tests/engine/test_rhythm.py",
    ),
    Mutant(
        "priority: no launch pays for time that the device was kept free",
        "engine/core.py",
        "self.requests.rhythm.launched(realtime=plan.realtime)",
        "pass",
        "tests/engine/test_requests.py tests/policy",
    ),
    Mutant(
        "priority: time that the device is kept free is no turn",
        "scheduler/scheduler.py",
        "        if kept_free and not self._kept_free:",
        "        if False:",
        "tests/scheduler/test_priority.py",
    ),
    # Deadlines.
    Mutant(
        "deadline: a hopeless request is worked for",
        "engine/requests.py",
        "            self._give_up(now)\n",
        "            pass\n",
        "tests/engine/test_requests.py",
    ),
    Mutant(
        "deadline: a request is given up in the middle of its work",
        "scheduler/readiness.py",
        "if sequence.times.admitted or self._encodings.begun(sequence):",
        "if False:",
        "tests/engine/test_requests.py",
    ),
    Mutant(
        "deadline: old rates are believed for ever",
        "engine/trust.py",
        "        self._left -= 1\n",
        "",
        "tests/engine/test_requests.py",
    ),
    Mutant(
        "deadline: a picture is decoded for nobody",
        "engine/delivery.py",
        """        if self.has_ended():
            return False
        try:
""",
        """        if self.future.done():
            return False
        try:
""",
        "tests/engine/test_generation.py",
    ),
    Mutant(
        "deadline: a header is read for nobody",
        "engine/preparation.py",
        "if self._measure is None or delivery.has_ended():",
        "if self._measure is None:",
        "tests/engine/test_preparation.py",
    ),
    Mutant(
        "deadline: decoding goes on after it",
        "images/pool.py",
        "        check()\n        pixels",
        "        pixels",
        "tests/images/test_pool.py",
    ),
    Mutant(
        "shortage of memory: a prompt in flight speaks of a picture that is not there",
        "engine/core.py",
        "    return row.job is not None and row.job.failed and row.sequence.preempting\n",
        "    return False\n",
        "tests/engine/test_core.py",
    ),
    # What tenants, follow-ups and tables must keep apart.
    Mutant(
        "tenants: prompts without a picture are shared",
        "cache/manager.py",
        "text_root(sequence.salt)",
        "text_root()",
        _SIMULATION,
    ),
    Mutant(
        "tenants: further requests forget whose they are",
        "engine/delivery.py",
        "dataclasses.replace(request, salt=self.request.salt, realtime=self.request.realtime)",
        "dataclasses.replace(request, realtime=self.request.realtime)",
        "tests/engine/test_generation.py",
    ),
    Mutant(
        "tenants: further requests are bulk work",
        "engine/delivery.py",
        "dataclasses.replace(request, salt=self.request.salt, realtime=self.request.realtime)",
        "dataclasses.replace(request, salt=self.request.salt)",
        "tests/engine/test_generation.py",
    ),
    Mutant(
        "deadline: counted from the hand-in",
        "engine/delivery.py",
        "            submitted=self._begun,\n",
        "",
        "tests/engine/test_generation.py",
    ),
    Mutant(
        "deadline: counted from the engine's side of the hand-in",
        "engine/engine.py",
        "deadline=None if deadline_s is None else begun + deadline_s,",
        "deadline=None if deadline_s is None else time.perf_counter() + deadline_s,",
        "tests/engine/test_engine.py",
    ),
    Mutant(
        "follow-ups: a failed one leaves the others running",
        "engine/sequel.py",
        "        self._end(error)\n        self.cancel()\n",
        "        self._end(error)\n",
        "tests/engine/test_sequel.py",
    ),
    Mutant(
        "tables: the times of last tokens are kept for ever",
        "engine/accounting.py",
        "        self._last_token.pop(sequence, None)\n",
        "",
        _SIMULATION,
    ),
    Mutant(
        "tables: encoded pictures are kept by the runner's device",
        "scheduler/encoding.py",
        "                    idle.append(self.jobs.pop(job.key))\n",
        "                    idle.append(job)\n",
        _SIMULATION,
    ),
    Mutant(
        "tables: questions whose grammars came are kept",
        "session.py",
        "        started.add_done_callback(self._unbound.discard)\n",
        "",
        "tests/test_growth.py",
    ),
    Mutant(
        "tables: jobs of the pool that are done are kept",
        "images/pool.py",
        "        future.add_done_callback(self._jobs.discard)\n",
        "",
        "tests/test_growth.py",
    ),
    Mutant(
        "uncut pictures: more bytes in a launch than there is room for",
        "scheduler/encoding.py",
        "                if groups and copied > self._max_picture_bytes:\n",
        "                if groups and copied < 0:\n",
        _SIMULATION,
    ),
    Mutant(
        "sampling: top_p is lost on its way",
        "engine/core.py",
        "sequence.temperature, sequence.top_p, sequence.seed",
        "sequence.temperature, 1.0, sequence.seed",
        _SIMULATION,
    ),
    # Threads in every order.
    Mutant(
        "threads: wake-ups are forgotten after the inbox was read",
        "engine/loop.py",
        "            self._forget_wakes()\n            self._read_inbox()\n",
        "            self._read_inbox()\n            self._forget_wakes()\n",
        "tests/engine/test_interleavings.py",
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
        "threads: a request cancelled while it is handed in goes on",
        "engine/delivery.py",
        "            if self.future.done():  # it was cancelled while it was handed in\n",
        "            if False:\n",
        "tests/engine/test_interleavings.py",
    ),
    Mutant(
        "threads: a cancelled call waits for room",
        "engine/preparation.py",
        "                delivery.when_computed(room.set)",
        "                delivery.when_computed(room.is_set)",
        "tests/engine/test_interleavings.py",
    ),
    Mutant(
        "threads: the usher is not woken by those who leave",
        "engine/window.py",
        "            self._uncount(place)\n        if self._ushered:\n            self._wakes.put(None)\n",
        "            self._uncount(place)\n",
        "tests/engine/test_interleavings.py",
    ),
    Mutant(
        "threads: an urgent job is left where every thread is busy",
        "images/pool.py",
        "        self.submit(_nothing)\n",
        "",
        "tests/engine/test_interleavings.py",
    ),
    # Compiling grammars for several callers.
    Mutant(
        "grammars: one caller has all workers",
        "grammar/fair_queue.py",
        "        return self._workers - 1 - len(line.running)\n",
        "        return self._workers - len(line.running)\n",
        "tests/grammar/test_fair_queue.py",
    ),
    Mutant(
        "grammars: turns in the order of arrival",
        "grammar/fair_queue.py",
        "        line.time += self._clock() - line.running.pop(job)\n",
        "        del line.running[job]\n",
        "tests/grammar/test_fair_queue.py",
    ),
    Mutant(
        "grammars: what one tenant compiled is found by another",
        "grammar/compiled.py",
        "            own = self._automata.get(salt)\n",
        "            own = next(iter(self._automata.values()), None)\n",
        "tests/grammar/test_compiled.py",
    ),
    Mutant(
        "grammars: a worker killed from outside is the job's fault",
        "grammar/process.py",
        "KilledError if self.exit_code in _FROM_OUTSIDE else CrashedError",
        "CrashedError",
        "tests/grammar/test_compiler.py",
    ),
    # Shares of callers.
    Mutant(
        "a greedy caller may hold what is free for others",
        "server/shares.py",
        "return held <= _GREED * weight * free",
        "return free >= 0",
        "tests/server/test_shares.py",
    ),
    Mutant(
        "turns are not charged with what was used",
        "server/turns.py",
        "turn.line.charge(had - turn.charged)",
        "turn.line.charge(-turn.charged)",
        "tests/server/test_turns.py",
    ),
    Mutant(
        "a pause saves turns up",
        "server/turns.py",
        "_Line(caller, max(had, self._least))",
        "_Line(caller, had)",
        "tests/server/test_turns.py",
    ),
    Mutant(
        "an engine that one caller fills while others are there",
        "server/turns.py",
        "return inside + reserved + 1 <= crowding.room(1 + (len(others) or 1))",
        "return True",
        "tests/server/test_fairness.py tests/server/test_turns.py",
    ),
    Mutant(
        "what waits is not counted where a deadline is judged",
        "server/turns.py",
        "return (before + cost.scaled(self._inside.total() + 1)).most",
        "return cost.scaled(self._inside.total() + 1).most",
        "tests/server/test_turns.py",
    ),
    Mutant(
        "a request is refused though its caller has nothing open",
        "server/turns.py",
        "        if line is None:\n            return 0.0\n        self._advance()",
        "        line = line or _Line(caller, 0.0)\n        self._advance()",
        "tests/server/test_turns.py",
    ),
    Mutant(
        "uploads keep their place while they are answered",
        "server/places.py",
        "            places.uploads.give(self.caller)\n",
        "",
        "tests/server/test_ingress.py",
    ),
    Mutant(
        "a socket without frames stays",
        "server/realtime_socket.py",
        "while not (self._ingress.draining or self._is_idle):",
        "while not self._ingress.draining:",
        "tests/server/test_realtime_socket.py",
    ),
    Mutant(
        "server: the same name twice in JSON is let through",
        "server/asking.py",
        ", object_pairs_hook=_object",
        "",
        "tests/server/test_ingress.py",
    ),
    Mutant(
        "server: wrong keys cost no time",
        "server/wrong_keys.py",
        "        if tried <= _FREE:\n",
        "        if tried:\n",
        "tests/server/test_wrong_keys.py",
    ),
    Mutant(
        "server: a silent crowd keeps probes out",
        "server/reserve.py",
        "        if len(self._members) > _MOST:\n",
        "        if len(self._members) > 10 * _MOST:\n",
        "tests/server/test_reserve.py",
    ),
    Mutant(
        "server: the reserve is for everybody",
        "server/reserve.py",
        'if scope.get("path") in PROBES:',
        'if scope.get("path"):',
        "tests/server/test_connections.py",
    ),
    Mutant(
        "server: a failed reload takes the keys away",
        "server/run.py",
        "            self._limits.take_keys(self._read_again())\n",
        "            self._limits.take_keys(ServerConfig())\n            self._limits.take_keys(self._read_again())\n",
        "tests/server/test_run.py",
    ),
    Mutant(
        "server: nobody ends a process whose thread is stuck",
        "server/run.py",
        "        if self._guard is not None:\n",
        "        if self._guard is None:\n",
        "tests/server/test_run.py",
    ),
    # Room for decoded pictures.
    Mutant(
        "window: everybody enters",
        "engine/window.py",
        "return not self.held or self.held + place.size <= self._limit",
        "return True",
        "tests/engine/test_window.py",
    ),
    Mutant(
        "window: a large picture waits for ever",
        "engine/window.py",
        "return not self.held or self.held",
        "return self.held",
        "tests/engine/test_window.py",
    ),
    Mutant(
        "window: small pictures overtake",
        "engine/window.py",
        "if not self._queue and self._fits(place):",
        "if self._fits(place):",
        "tests/engine/test_window.py",
    ),
    Mutant(
        "window: who left is let in",
        "engine/window.py",
        """                if not place.left:
                    self._take(place)
""",
        """                if True:
                    self._take(place)
""",
        "tests/engine/test_window.py",
    ),
    Mutant(
        "window: room is not given back at the first token",
        "engine/delivery.py",
        """        if self._computed:
            _ring(self._computed)
        _ring(self.bells)

    def on_finish""",
        """        _ring(self.bells)

    def on_finish""",
        "tests/engine/test_preparation.py",
    ),
    Mutant(
        "window: closing forgets who waits in front of it",
        "session.py",
        "        while self.engine.window.settle() or self._unbound:\n",
        "        while self._unbound:\n",
        "tests/test_session.py",
    ),
    Mutant(
        "an idle engine gives no sign of life",
        "engine/loop.py",
        "            self._last_tick = time.perf_counter()\n            self._forget",
        "            self._forget",
        "tests/engine/test_loop.py",
    ),
]


def seeded(mutant: Mutant) -> str:
    """Give the module's text with the bug in it."""
    text = (ROOT / "photonlite" / mutant.path).read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(
            f"mutant {mutant.name!r}: its lines stand {text.count(mutant.old)} times in photonlite/{mutant.path}; "
            "bring it up to date"
        )
    return text.replace(mutant.old, mutant.new)


def killers(mutant: Mutant) -> list[str]:
    """Run the mutant's tests on a copy of the package; returns those that failed."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch)
        for folder in ("photonlite", "tests"):
            shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "golden"))
        (copy / "tests" / "golden").symlink_to(ROOT / "tests" / "golden")
        for name in _LINKED:
            (copy / name).symlink_to(ROOT / name)
        shutil.copy(ROOT / "pyproject.toml", copy)
        (copy / "photonlite" / mutant.path).write_text(seeded(mutant))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests.split()]
        environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"mutant {mutant.name!r}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}")
    lines = done.stdout.splitlines()
    return [line.split()[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]


def main() -> int:
    """Run the mutants that were asked for and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="run only mutants with one of these words in their name")
    words = parser.parse_args().words
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    survivors = 0
    begun = time.perf_counter()
    with ThreadPoolExecutor(_WORKERS) as pool:
        for mutant, found in zip(chosen, pool.map(killers, chosen), strict=True):
            survivors += not found
            print(
                f"{'killed  ' if found else 'SURVIVES'}  {mutant.name:<62} {found[0] if found else mutant.tests}",
                flush=True,
            )
    print(f"{len(chosen) - survivors} of {len(chosen)} killed in {time.perf_counter() - begun:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
