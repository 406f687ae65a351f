import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.grammar.reference import LETTERS, PATTERNS, RESERVED, Matcher, text

TEXTS = st.text(LETTERS + "x\n" + RESERVED, max_size=6)


@given(PATTERNS, TEXTS)
def test_the_reference_matches_what_python_matches(pattern: Any, given: str) -> None:
    wanted = re.fullmatch(text(pattern), given) is not None and not set(given) & set(RESERVED)
    # A few separators of lines that Python's dot takes are no part of ours; none of them is drawn here.
    assert Matcher(pattern).accepts(given.encode()) == wanted


@given(PATTERNS, TEXTS)
def test_what_is_accepted_is_permitted_at_every_byte(pattern: Any, given: str) -> None:
    matcher, letters = Matcher(pattern), given.encode()
    if matcher.accepts(letters):
        assert all(matcher.permits(letters[:end]) for end in range(len(letters) + 1))
