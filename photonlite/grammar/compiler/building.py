"""From a spec to its automaton, in one piece: what a worker does with each job.

The vocabulary is the larger part of many automata and the same in all of them: it is left out on the way back, and the
process that asked puts its own copy in.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from photonlite.grammar.automata.builder import build_automaton
from photonlite.grammar.automata.dfa import compile_dfa
from photonlite.grammar.automata.tables import Automaton, SpecialIds
from photonlite.grammar.automata.trie import TokenBytes, TokenTrie
from photonlite.grammar.json_schema.reader import ANY_OBJECT, read_schema
from photonlite.grammar.spec import GrammarSpec

_LEFT_OUT: Final = TokenBytes(())


def prepare(pieces: Sequence[bytes], ids: SpecialIds) -> Callable[[GrammarSpec], Automaton]:
    """Read a vocabulary, and give what compiles specs for it.

    Args:
        pieces: The bytes of every token by id, empty for special ones.
        ids: Those that grammars speak of.

    Returns:
        Gives the automaton of a spec, without pieces; see `handover`.
    """
    trie = TokenTrie(pieces)

    def build(spec: GrammarSpec) -> Automaton:
        pattern, free_names = _pattern(spec)
        dfa = compile_dfa(pattern, native=spec.kind != "regex")
        return replace(build_automaton(dfa, trie, ids), pieces=_LEFT_OUT, free_names=free_names)

    return build


def _pattern(spec: GrammarSpec) -> tuple[str, bool]:
    """Return the regular expression of a spec, and whether it has objects whose names are left open.

    Raises:
        SchemaError: It is no JSON Schema, or holds something that would not be enforced.
        GrammarTooLargeError: The schema is over a limit.
    """
    if spec.kind == "regex":
        return spec.source, False
    if spec.kind == "object":
        return ANY_OBJECT, True
    return read_schema(json.loads(spec.source))
