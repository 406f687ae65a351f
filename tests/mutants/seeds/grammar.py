"""Bugs to seed into photonlite/grammar/."""

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "truncation: a value that was forced to end says that it stopped",
        "grammar/decoding/typed.py",
        'return "length" if self._limited else "stop"',
        'return "stop"',
        "tests/grammar/decoding/test_typed.py",
    ),
    Mutant(
        "truncation: reasoning that was closed by force says that it stopped",
        "grammar/decoding/grammars.py",
        'return "length" if self._cut and reason == "stop" else reason',
        "return reason",
        "tests/test_truncation.py",
    ),
    Mutant(
        "names: an object has one twice",
        "grammar/decoding/typed.py",
        "                    if name in names:",
        "                    if False:",
        "tests/grammar/decoding/test_typed_unique_names.py",
    ),
    Mutant(
        "names: nothing is held back for one that is not repeated",
        "grammar/decoding/typed.py",
        "return left - 1 if left > self._automaton.distance(self._state) else left",
        "return left",
        "tests/grammar/decoding/test_typed_unique_names.py",
    ),
    Mutant(
        "schemas: a discriminator with a default may be left out",
        "grammar/json_schema/reader.py",
        "inner = tags if tag is None else (*tags, tag)",
        "inner = tags",
        "tests/grammar/json_schema/test_reader.py",
    ),
    Mutant(
        "schemas: what stands in itself is read as deep as it was the first time",
        "grammar/json_schema/reader.py",
        "if all(self._open[each] == times for each, times in one.opened)",
        "if True",
        "tests/grammar/json_schema/test_reader.py",
    ),
    Mutant(
        "schemas: an item comes twice in a list of unique ones",
        "grammar/json_schema/unique.py",
        "left[:place] + left[place + 1 :]",
        "left",
        "tests/grammar/json_schema/test_reader.py",
    ),
    Mutant(
        "schemas: multiples of small numbers begin with a zero",
        "grammar/json_schema/multiples.py",
        "first, final = max(1, ",
        "first, final = max(0, ",
        "tests/grammar/json_schema/test_multiples.py",
    ),
    Mutant(
        "typed answers: a refused one is accepted",
        "skills/typed/question.py",
        "        if tries > self._retries:\n",
        "        if True:\n",
        "tests/skills/typed/test_question.py",
    ),
    Mutant(
        "grammars: one caller has all workers",
        "processes/jobs.py",
        "running[job.caller] < self._workers:",
        "running[job.caller] <= self._workers:",
        "tests/processes/test_jobs.py",
    ),
    Mutant(
        "grammars: turns in the order of arrival",
        "processes/jobs.py",
        "            self._used[job.caller] += self._clock() - job.begun\n",
        "            pass\n",
        "tests/processes/test_jobs.py",
    ),
    Mutant(
        "grammars: what one tenant compiled is found by another",
        "grammar/compiler/cache.py",
        "            own = self._automata.get(cache_salt)\n",
        "            own = next(iter(self._automata.values()), None)\n",
        "tests/grammar/compiler/test_cache.py",
    ),
    Mutant(
        "grammars: a worker killed from outside is the job's fault",
        "grammar/compiler/client.py",
        '"killed" if killed else "crashed"',
        '"crashed"',
        "tests/grammar/compiler/test_client.py -m long",
    ),
    Mutant(
        "a box has the score of its separator, not of its label",
        "grammar/decoding/corners.py",
        "                parts, sure = [], 1.0\n",
        "                parts = []\n",
        "tests/grammar/decoding/test_corners.py",
    ),
]
