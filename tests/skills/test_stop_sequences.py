"""Text ends before a stop sequence, however it is cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photonlite.skills.base import StopSequences


def passed(sequences: list[str], pieces: list[str]) -> str:
    stop = StopSequences(sequences)
    return "".join(map(stop.feed, pieces)) + stop.flush()


@pytest.mark.parametrize(
    ("sequences", "text", "expected"),
    [
        ([], "all of it", "all of it"),
        (["END"], "two mugs END and more", "two mugs "),
        (["END"], "two mugs EN", "two mugs EN"),
        (["\n", "mugs"], "two mugs\nmore", "two "),
        (["abc", "b"], "abc", "a"),
        (["b", "ab"], "xab", "x"),
        (["aab"], "aaab", "a"),
    ],
)
def test_text_before_the_first_stop_sequence_is_passed_on(sequences: list[str], text: str, expected: str) -> None:
    assert passed(sequences, [text]) == expected
    assert passed(sequences, list(text)) == expected


WORDS = st.text("ab", max_size=12)


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.lists(WORDS, max_size=5))
def test_pieces_give_the_same_text_as_the_whole(sequences: list[str], pieces: list[str]) -> None:
    whole = passed(sequences, ["".join(pieces)])

    assert passed(sequences, pieces) == whole
    assert not any(sequence in whole for sequence in sequences)


def test_text_is_passed_on_as_soon_as_it_is_certain() -> None:
    stop = StopSequences(["END"])

    assert [stop.feed(piece) for piece in ("two E", "N", "x", "E", "ND", "more")] == ["two ", "", "ENx", "", "", ""]
    assert stop.met
