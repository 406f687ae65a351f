"""Questions about a marked place."""

import random

import pytest

from bench.nano.questions.text import language


@pytest.mark.parametrize(("kind", "other"), [("point", "box"), ("box", "point")])
def test_questions_do_not_speak_of_the_other_kind_of_reference(kind, other):
    rng = random.Random(1)
    asked = {language.ask(rng, language.REFERENCE_QUESTIONS[kind]).lower() for _ in range(500)}
    assert "what is this?" in asked
    assert any(kind in text for text in asked)
    assert not any(other in text or "{" in text for text in asked)
