import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photonlite.grammar.automata.trie import Tier, TokenTrie
from photonlite.grammar.decoding.automaton import TokenBytes

PIECES = st.lists(st.lists(st.sampled_from([0, 1, 2, 65, 66, 255]), max_size=20).map(bytes), max_size=30)


def spelled(tier: Tier) -> dict[int, bytes]:
    """The bytes of each token, read off the levels."""
    found, paths = {}, [b""]
    for level in tier.levels:
        parents = [parent for parent in range(len(paths)) for _ in range(level.first[parent], level.first[parent + 1])]
        paths = [paths[parent] + bytes([letter]) for parent, letter in zip(parents, level.letter, strict=True)]
        assert len(set(paths)) == len(paths)
        for node, path in enumerate(paths):
            for position in level.tokens[level.done[node] : level.done[node + 1]]:
                found[int(tier.ids[position])] = path
    return found


@given(PIECES)
def test_every_token_that_is_text_is_in_one_tier(pieces: list[bytes]) -> None:
    trie = TokenTrie(pieces)
    found = [spelled(tier) for tier in trie.tiers]

    together = {index: path for tier in found for index, path in tier.items()}
    assert sum(map(len, found)) == len(together)
    assert together == {index: piece for index, piece in enumerate(pieces) if piece and 2 not in piece}
    heights = [len(tier.levels) for tier in trie.tiers]
    assert heights == sorted(set(heights))


def test_singles_are_the_smallest_ids_that_are_not_left_out() -> None:
    trie = TokenTrie([b"b", b"a", b"ab", b"a", b"\x04", b""])

    assert trie.singles()[ord("a")] == 1
    assert trie.singles([1])[ord("a")] == 3
    assert trie.singles([1, 3])[ord("a")] == -1
    assert [trie.singles()[byte] for byte in (4, 0, ord("b"))] == [-1, -1, 0]


@given(PIECES)
def test_pieces_are_kept_as_they_are(pieces: list[bytes]) -> None:
    packed = pickle.loads(pickle.dumps(TokenBytes(pieces)))

    assert [packed[index] for index in range(len(packed))] == pieces
    for index in (-1, len(pieces)):
        with pytest.raises(IndexError, match=f"vocabulary of {len(pieces)}"):
            packed[index]
