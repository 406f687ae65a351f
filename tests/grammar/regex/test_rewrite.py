import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.automata.dfa import compile_dfa
from photonlite.grammar.json_schema.text import matching
from photonlite.grammar.regex.fragment import MAX_SIZE
from photonlite.grammar.regex.parser import MAX_COUNT, MAX_GROUPS, MAX_LENGTH, parse_regex
from photonlite.grammar.regex.rewrite import Lengths, lengths, rewritten, whole
from tests.grammar.reference import LETTERS, PATTERNS, text
from tests.grammar.vocabularies import accepts

TEXTS = (
    "",
    "a",
    "b",
    "ab",
    "7.5",
    "AB-1234",
    "]",
    "[",
    "a]",
    "^",
    "-",
    "{a}",
    "a{,3}",
    "é",
    "é1",
    "٣",
    " ",
    "\t",
    "²",
    "x\ny",
)
SHARED = [
    r"^[A-Z]{2}-\d{4}$",
    r"\d+(\.\d+)?",
    r"(a|b)*",
    r"(?:a)(b)?",
    r"(?P<name>a)b?",
    r"a+?",
    r"[\]\[]",
    r"[a\-^]",
    r"[-a]",
    r"{a}",
    r"\x61|\u00e9",
    r"\Aa\Z",
    r"(^a$|^b$)",
    r"a||b",
    r"[\d\s]",
    r"\.|\-|\^",
    "é?",
]


@pytest.mark.parametrize("pattern", SHARED)
def test_patterns_mean_what_they_mean_in_python(pattern: str) -> None:
    dfa = compile_dfa(pattern, native=False)

    assert [accepts(dfa, each.encode()) for each in TEXTS if each != "٣"] == [
        re.fullmatch(pattern, each) is not None for each in TEXTS if each != "٣"
    ]


@pytest.mark.parametrize(
    "pattern", [r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r".", r"[^\d]", r"[^\W]", r"[^\s]", r"[\D\w]"]
)
def test_shorthands_take_what_every_dialect_takes(pattern: str) -> None:
    dfa = compile_dfa(pattern, native=False)

    for number in (*range(0x250), 0x660, 0x2028, 0x2460, 0x3000, 0x180E, 0xFEFF, 0x4E00, 0x1D7CE, 0x1F600):
        letter = chr(number)
        if accepts(dfa, letter.encode()):
            assert re.fullmatch(pattern, letter), f"{number:#x}"
        elif letter.isascii() and number not in (2, 3, 4, 5):
            # Python alone takes four separators for spaces; they are in neither set.
            assert not re.fullmatch(pattern, letter) or 0x1C <= number <= 0x1F or letter == "\r"


@pytest.mark.long
@settings(max_examples=150, derandomize=True, database=None)
@given(PATTERNS, st.text(LETTERS + 'x"\\', max_size=5), st.integers(0, 4), st.none() | st.integers(0, 4))
def test_a_pattern_in_a_string_of_json_is_searched_for(pattern: Any, given: str, low: int, more: int | None) -> None:
    high = None if more is None else low + more
    found = matching(text(pattern), Lengths(low, high), search=True)
    if found is None:
        return
    spelled = '"' + given.replace("\\", "\\\\").replace('"', '\\"') + '"'
    try:
        dfa = compile_dfa(found.text, native=True)
    except GrammarError:  # it matches no text at all
        dfa = None
    wanted = re.search(text(pattern), given) is not None and low <= len(given) and (high is None or len(given) <= high)
    assert (dfa is not None and accepts(dfa, spelled.encode())) == wanted


@given(PATTERNS, st.text(LETTERS, max_size=6))
def test_lengths_bound_what_matches(pattern: Any, given: str) -> None:
    known = lengths(whole(parse_regex(text(pattern))))

    if re.fullmatch(text(pattern), given):
        assert known.low <= len(given)
        assert known.high is None or len(given) <= known.high


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "group is not closed"),
        ("a)", "closes no group"),
        ("[a", "set is not closed"),
        ("[]a]", "set is empty"),
        ("*a", "nothing to repeat"),
        ("a|*", "nothing to repeat"),
        ("{2}", "nothing to repeat"),
        ("a**", "repeat a repetition"),
        ("a{2}{3}", "repeat a repetition"),
        ("a++", "possessive"),
        ("^*", "cannot be repeated"),
        ("a{,3}", "needs a lower bound"),
        ("a{3,2}", "wrong order"),
        (r"\b", "not supported"),
        (r"(a)\1", "not supported"),
        (r"\q", "not supported"),
        (r"\01", "not supported"),
        ("\\", "not supported"),
        ("(?=a)", "look-around"),
        ("(?<!a)", "look-around"),
        ("(?i)a", r"flags are not supported: .*\[aA\]"),
        ("(?s:a.)", "flags"),
        ("(?#a)", "not supported"),
        ("[z-a]", "two characters in order"),
        (r"[\d-z]", "two characters in order"),
        ("[[:alpha:]]", "named sets"),
        ("\ud800", "surrogate"),
        (r"\ud83d\ude00", "surrogate"),
        (r"\x{110000}", "no character"),
        ("a^b", "in the middle"),
        ("(a$|b)c", "in the middle"),
    ],
)
def test_malformed_or_unsupported_patterns_are_refused_with_their_position(pattern: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        rewritten(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "a" * (MAX_LENGTH + 1),
        "(" * (MAX_GROUPS + 1) + ")" * (MAX_GROUPS + 1),
        f"a{{{MAX_COUNT + 1}}}",
        "a{99999999999999999999}",
        "(((a{100}){100}){100}){100}",
        "(" * 5000,
        f"(?:){{{MAX_COUNT}}}" * (MAX_SIZE // MAX_COUNT + 1),
    ],
)
def test_what_is_too_large_is_refused_before_it_is_compiled(pattern: str) -> None:
    with pytest.raises(GrammarTooLargeError):
        rewritten(pattern)


def test_nested_repetitions_are_no_trouble() -> None:
    dfa = compile_dfa("(((a*)*)+)*(a|aa)+", native=False)

    assert len(dfa.delta) == 2
    assert accepts(dfa, b"a" * 1000)


def test_a_pattern_is_a_text() -> None:
    with pytest.raises(GrammarError, match="of type int"):
        rewritten(3)  # type: ignore[arg-type]
