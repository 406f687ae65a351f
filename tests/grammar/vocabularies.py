"""Small vocabularies with all that makes large ones hard, and what may stand in one, worked out token by token."""

from hypothesis import strategies as st

from photonlite.grammar.automata.alphabet import RESERVED
from photonlite.grammar.automata.builder import build_automaton
from photonlite.grammar.automata.dfa import Dfa
from photonlite.grammar.automata.tables import SpecialIds
from photonlite.grammar.automata.trie import TokenTrie
from photonlite.grammar.decoding.automaton import Automaton, TokenBytes

END, COORDINATE, SIZE = 0, 1, 2
SPECIAL = (b"", b"", b"")
SINGLES = tuple(bytes([byte]) for byte in range(256))
MERGED = (b'{"', b'":', b'": "', b'","', b'"}', b'"},{"', b"]}", b"[[", b"\\n", b"\\u00", b", ", b"tru", b"null", b"e}")
PARTS = (
    *MERGED,
    b"a",
    b"b",
    b"ab",
    b"7",
    b".",
    b"-",
    b" ",
    b"\xc3",
    b"\xa9",
    b"\xf0\x9f",
    b"\x98\x80",
    b"\xe2\x82",
    b"\x04",
)


class Vocabulary:
    """Tokens with ids; the first three are the end, a coordinate and a size."""

    def __init__(self, pieces: tuple[bytes, ...]) -> None:
        self.pieces = (*SPECIAL, *pieces)
        self.ids = SpecialIds(END, COORDINATE, SIZE, len(self.pieces))
        self.trie = TokenTrie(self.pieces)

    def automaton(self, dfa: Dfa) -> Automaton:
        return Automaton(build_automaton(dfa, self.trie, self.ids), TokenBytes(self.pieces))

    def letters(self, token_id: int) -> bytes:
        return {END: b"", COORDINATE: b"\x04", SIZE: b"\x05"}.get(token_id, self.pieces[token_id])

    def spelled(self) -> list[int]:
        """SpecialIds that text may be made of."""
        return [
            index
            for index, piece in enumerate(self.pieces)
            if piece and not any(letter in piece for letter in RESERVED)
        ]

    def permitted(self, dfa: Dfa, state: int) -> set[int]:
        """SpecialIds that may stand in a state, each followed byte by byte."""
        found = {index for index in self.spelled() if follow(dfa, state, self.pieces[index]) >= 0}
        found |= {index for index in (COORDINATE, SIZE) if follow(dfa, state, self.letters(index)) >= 0}
        return found | ({END} if dfa.accepts[state] else set())


def follow(dfa: Dfa, state: int, letters: bytes) -> int:
    for letter in letters:
        if state >= 0:
            state = int(dfa.delta[state, letter])
    return state


def accepts(dfa: Dfa, letters: bytes) -> bool:
    state = follow(dfa, dfa.start, letters)
    return state >= 0 and bool(dfa.accepts[state])


WORDS = st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map(b"".join)
LONG = st.tuples(st.sampled_from(PARTS), st.integers(1, 40)).map(lambda drawn: drawn[0] * drawn[1])
VOCABULARIES = st.lists(WORDS | LONG, max_size=40).map(lambda merges: Vocabulary((*SINGLES, *merges)))
EVERYTHING = Vocabulary((*SINGLES, *MERGED, *PARTS, b"a" * 70))
"""All single bytes and merges across the punctuation of JSON, some of them twice."""
