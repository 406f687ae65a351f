import ast
from collections import Counter

import pytest

from tests.mutants.__main__ import MUTANTS, ROOT, seeded


@pytest.mark.parametrize("path", sorted({mutant.path for mutant in MUTANTS}))
def test_each_bug_of_a_module_can_be_seeded(path: str) -> None:
    for mutant in MUTANTS:
        if mutant.path == path:
            text = seeded(mutant)  # ValueError unless its lines stand there once
            assert mutant.new != mutant.old, mutant.name
            ast.parse(text)


def test_names_are_unique_and_the_tests_that_find_a_bug_are_there() -> None:
    assert Counter(mutant.name for mutant in MUTANTS).most_common(1)[0][1] == 1
    for mutant in MUTANTS:
        named = [word.partition("::")[0] for word in mutant.tests.split() if word.startswith("tests/")]
        assert named, f"{mutant.name}: no test is named"
        assert [name for name in named if not (ROOT / name).exists()] == [], mutant.name
