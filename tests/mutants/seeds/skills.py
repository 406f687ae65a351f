"""Bugs to seed into photonlite/skills/."""

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "a branch left aside is taken for its likeliest choice",
        "skills/typed/choices.py",
        "        if ended or len(choices) == 1:\n            self._credit(ids, share, *choices)\n",
        "        if ended or len(choices) >= 1:\n            self._credit(ids, share, *list(choices)[:1])\n",
        "tests/skills/typed/test_choices.py",
    ),
    Mutant(
        "a branch begins with the odds of the whole",
        "skills/typed/choices.py",
        "        self._open[ids] = share\n",
        "        self._open[ids] = 1.0\n",
        "tests/skills/typed/test_choices.py tests/test_typed_answers.py",
    ),
    Mutant(
        "further requests forget the reasoning",
        "skills/typed/choices.py",
        "*(Token(token.id, token.values) for token in tokens[:thought])",
        "",
        "tests/skills/typed/test_choices.py",
    ),
    Mutant(
        "a point is spelled out before it is known to be none of a box",
        "skills/typed/question.py",
        '            self._place.append(token)\n            return ""\n',
        "            self._place.append(token)\n            if len(self._place) == 2:\n"
        "                return self._spelled()\n",
        "tests/skills/typed/test_question.py",
    ),
    Mutant(
        "reasoning leaves no room for its answer",
        "skills/typed/question.py",
        "question.room - 1 - budget",
        "question.room - 1",
        "tests/skills/typed/test_question.py",
    ),
    Mutant(
        "what was removed for an overlap still removes others",
        "skills/merging.py",
        "find_near(at, kept & (labels != labels[at]))",
        "find_near(at, labels != labels[at])",
        "tests/skills/test_merging.py",
    ),
    Mutant(
        "a name with a worse score removes the better one",
        "skills/merging.py",
        'key=lambda at: -items[at]["score"]',
        'key=lambda at: items[at]["score"]',
        "tests/skills/test_merging.py",
    ),
    Mutant(
        "parts of objects count in every tile that shows them",
        "skills/merging.py",
        "strays = (parts | points) & outside",
        "strays = points & outside",
        "tests/skills/test_merging.py",
    ),
    Mutant(
        "points count in every tile that shows them",
        "skills/merging.py",
        "strays = (parts | points) & outside",
        "strays = parts & outside",
        "tests/skills/test_merging.py",
    ),
    Mutant(
        "two objects of one tile are taken for one",
        "skills/merging.py",
        "find_near(at, kept & (tile_of != tile_of[at]))",
        "find_near(at, kept)",
        "tests/skills/test_merging.py",
    ),
    Mutant(
        "tiles do not overlap",
        "skills/tiles.py",
        "math.ceil(side / (count - OVERLAP * (count - 1)))",
        "math.ceil(side / count)",
        "tests/skills/test_tiles.py",
    ),
    Mutant(
        "the self-test never looks at sizes",
        "skills/selftest.py",
        "[word, place, place, size, word]",
        "[word, place, place, word]",
        "tests/skills/test_selftest.py",
    ),
    Mutant(
        "corners of a box read across before down",
        "skills/base.py",
        "top, left, bottom, right = (token.values[0] for token in corners)",
        "left, top, right, bottom = (token.values[0] for token in corners)",
        "tests/models/paligemma/test_prompts.py",
    ),
    Mutant(
        "an answer that has begun is part of the prompt",
        "skills/typed/choices.py",
        "begun=len(prompt) - len(self._question.prompt)",
        "begun=0",
        "tests/skills/typed/test_choices.py",
    ),
    Mutant(
        "an answer may be longer than the engine allows",
        "skills/base.py",
        "min(room, limits.max_output_tokens)",
        "room",
        "tests/skills/test_base.py",
    ),
    Mutant(
        "an input may be longer than the engine allows",
        "skills/base.py",
        "limits.max_input_tokens is not None and needed > limits.max_input_tokens",
        "False",
        "tests/skills/test_base.py",
    ),
]
