import pytest
from hypothesis import given
from hypothesis import strategies as st

from photonlite.results.drawing.labels import wrap_text
from photonlite.results.drawing.style import load_font

FONT = load_font(14, None)


def test_breaks_between_words():
    lines = list(wrap_text("a mug and a lamp on a desk", FONT, 80))
    assert len(lines) > 1
    assert " ".join(lines) == "a mug and a lamp on a desk"


def test_breaks_a_word_that_is_wider_than_the_strip():
    lines = list(wrap_text("so " + "long" * 30 + " indeed", FONT, 100))
    assert all(FONT.getlength(line) <= 100 for line in lines)
    assert "".join(lines).replace(" ", "") == "so" + "long" * 30 + "indeed"


def test_keeps_line_breaks_of_the_text():
    assert list(wrap_text("one\ntwo\n\nthree", FONT, 500)) == ["one", "two", "", "three"]
    assert list(wrap_text("", FONT, 500)) == [""]


@given(st.text(max_size=60), st.integers(5, 300))
def test_no_character_is_lost_and_no_line_too_wide(text, width):
    lines = list(wrap_text(text, FONT, width))
    assert all(FONT.getlength(line) <= width or len(line) == 1 for line in lines)
    kept = [c for c in text if c.isprintable() and not c.isspace()]
    assert [c for line in lines for c in line if not c.isspace()] == kept


@pytest.mark.parametrize("control", ["\x00", "\x1b", "\t", "\u202e"])
def test_control_characters_become_spaces(control):
    assert list(wrap_text(f"a{control}b", FONT, 500)) == ["a b"]
