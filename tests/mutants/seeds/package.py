"""Bugs to seed into photonlite/*.py."""

from tests.mutants.mutant import SIMULATION, Mutant

MUTANTS = [
    Mutant(
        "truncation: strict callers get a cut answer",
        "request.py",
        'if not self.strict or finish_reason == "stop":',
        "if True:",
        "tests/test_truncation.py",
    ),
    Mutant(
        "nothing is encoded while a grammar is compiled",
        "session.py",
        "encode.build() if encodes and self._config.prefix_caching else None",
        "None",
        "tests/test_typed_answers.py",
    ),
    Mutant(
        "closing does not wait for grammars",
        "session.py",
        "        while self.engine.window.settle() or self._unbound:\n",
        "        while self.engine.window.settle():\n",
        "tests/test_typed_answers.py",
    ),
    Mutant(
        "a recomputed sequence forgets its last token",
        "sequence.py",
        "        return self.prompt_length + len(self.tokens)\n",
        "        return self.prompt_length + max(0, len(self.tokens) - 1)\n",
        f"tests/scheduler {SIMULATION}",
    ),
    Mutant(
        "numbers of NumPy are kept as they are",
        "settings.py",
        "        object.__setattr__(settings, field.name, plain(getattr(settings, field.name)))\n",
        "        pass\n",
        "tests/test_numeric.py",
    ),
    Mutant(
        "tables: questions whose grammars came are kept",
        "session.py",
        "        started.add_done_callback(self._unbound.discard)\n",
        "",
        "tests/test_growth.py",
    ),
    Mutant(
        "window: closing forgets who waits in front of it",
        "session.py",
        "        while self.engine.window.settle() or self._unbound:\n",
        "        while self._unbound:\n",
        "tests/test_session.py",
    ),
]
