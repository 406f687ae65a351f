"""Bugs to seed into photonlite/grammar/."""

from tests.mutants.mutant import Mutant

MUTANTS = [
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
        "            own = self._automata.get(cache_salt)\n",
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
]
