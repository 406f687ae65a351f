"""From a language to its automaton, in one piece: what a worker does with each job.

The vocabulary is the larger part of many automata and the same in all of them: it is left out on the way back, and the
process that asked puts its own copy in.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from photonlite.grammar.automaton import Automaton, Ids, build_automaton
from photonlite.grammar.dfa import compile_dfa
from photonlite.grammar.json_schema import ANY_OBJECT, read_schema
from photonlite.grammar.language import Language
from photonlite.grammar.trie import Pieces, TokenTrie

_LEFT_OUT: Final = Pieces(())


def prepare(pieces: Sequence[bytes], ids: Ids) -> Callable[[Language], Automaton]:
    """Read a vocabulary, and give what compiles languages for it.

    Args:
        pieces: The bytes of every token by id, empty for special ones.
        ids: Those that grammars speak of.

    Returns:
        Gives the automaton of a language, without pieces; see `handover`.
    """
    trie = TokenTrie(pieces)

    def build(language: Language) -> Automaton:
        pattern, free_names = _pattern(language)
        dfa = compile_dfa(pattern, native=language.kind != "regex")
        return replace(build_automaton(dfa, trie, ids), pieces=_LEFT_OUT, free_names=free_names)

    return build


def _pattern(language: Language) -> tuple[str, bool]:
    """Return the regular expression of a language, and whether it has objects whose names are left open.

    Raises:
        SchemaError: It is no JSON Schema, or holds something that would not be enforced.
        GrammarTooLargeError: The schema is over a limit.
    """
    if language.kind == "regex":
        return language.source, False
    if language.kind == "object":
        return ANY_OBJECT, True
    return read_schema(json.loads(language.source))
