"""photonlite's grammars and those of other libraries behind one face, each as its own documentation uses it.

The others are optional: xgrammar (which wants transformers at its import, though nothing here uses it) and llguidance.
All write JSON without spaces, so that the same text belongs to the spec of each.
"""

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np

from bench.grammar.samples import Vocabulary
from photonlite.grammar.automata.tables import words
from photonlite.grammar.compiler.worker import compile_with
from photonlite.grammar.decoding.automaton import Automaton, TokenBytes
from photonlite.grammar.decoding.grammars import MaskCache
from photonlite.grammar.decoding.typed import TypedGrammar
from photonlite.grammar.spec import GrammarSpec
from photonlite.request import Token

BUDGET = 4096
"""Tokens: more than any sample takes, so that no answer is closed early."""


class Answer(ABC):
    """One answer on its way."""

    @abstractmethod
    def fill(self) -> None:
        """Write the mask of the next position into a row."""

    @abstractmethod
    def accept(self, token_id: int) -> None:
        """Take the next token.

        Raises:
            AssertionError: It is not allowed.
        """


class Library(ABC):
    """Compiles specs for one vocabulary.

    Attributes:
        name: For the report.
    """

    name: str

    @abstractmethod
    def compile(self, spec: GrammarSpec) -> Any:
        """Compile a spec from the start: nothing is remembered."""

    @abstractmethod
    def begin(self, compiled: Any) -> Answer:
        """Begin an answer."""


class Own(Library):
    """photonlite's, in this process."""

    name = "photonlite"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._build = compile_with(vocabulary.pieces, vocabulary.ids)
        self._pieces = TokenBytes(vocabulary.pieces)
        self._masks = MaskCache(vocabulary.ids.vocab_size)

    def compile(self, spec: GrammarSpec) -> Any:
        """Return the automaton."""
        return Automaton(self._build(spec), self._pieces)

    def begin(self, compiled: Any) -> Answer:
        """Begin an answer."""
        return _OwnAnswer(TypedGrammar(compiled, BUDGET), self._masks)


class _OwnAnswer(Answer):
    def __init__(self, grammar: TypedGrammar, masks: MaskCache) -> None:
        self._grammar, self._masks = grammar, masks
        self._row = np.zeros(words(masks.vocab_size), np.int32)

    def fill(self) -> None:
        self._masks.fill(self._grammar.allowed, self._row)

    def accept(self, token_id: int) -> None:
        self._grammar.accept(Token(token_id))


class XGrammar(Library):
    """The library xgrammar."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._module: Any = importlib.import_module("xgrammar")
        self.name = f"xgrammar {version('xgrammar')}"
        info = self._module.TokenizerInfo(
            vocabulary.pieces, vocab_size=len(vocabulary.pieces), stop_token_ids=[vocabulary.ids.end]
        )
        self._compiler = self._module.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._size = len(vocabulary.pieces)

    def compile(self, spec: GrammarSpec) -> Any:
        """Return the compiled grammar."""
        if spec.kind == "regex":
            return self._compiler.compile_regex(spec.source)
        return self._compiler.compile_json_schema(spec.source, any_whitespace=False, separators=(",", ":"))

    def begin(self, compiled: Any) -> Answer:
        """Begin an answer."""
        return _XGrammarAnswer(self._module, compiled, self._size)


class _XGrammarAnswer(Answer):
    def __init__(self, module: Any, compiled: Any, size: int) -> None:
        self._matcher = module.GrammarMatcher(compiled)
        self._row = module.allocate_token_bitmask(1, size)

    def fill(self) -> None:
        self._matcher.fill_next_token_bitmask(self._row, 0)

    def accept(self, token_id: int) -> None:
        if not self._matcher.accept_token(token_id):
            raise AssertionError(f"token {token_id} is not allowed")


class LLGuidance(Library):
    """The library llguidance."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._module: Any = importlib.import_module("llguidance")
        self._numpy: Any = importlib.import_module("llguidance.numpy")
        self.name = f"llguidance {version('llguidance')}"
        self._size = len(vocabulary.pieces)
        self._tokenizer = self._module.LLTokenizer(
            str(vocabulary.path), n_vocab=self._size, eos_token=vocabulary.ids.end
        )

    def compile(self, spec: GrammarSpec) -> Any:
        """Return the grammar, checked; its tables are made as answers need them."""
        matcher = self._module.LLMatcher
        if spec.kind == "regex":
            return matcher(self._tokenizer, matcher.grammar_from_regex(spec.source))
        options = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
        schema = json.dumps({**json.loads(spec.source), "x-guidance": options})
        return matcher(self._tokenizer, matcher.grammar_from_json_schema(schema))

    def begin(self, compiled: Any) -> Answer:
        """Begin an answer."""
        return _LLGuidanceAnswer(self._numpy, compiled.deep_copy(), self._size)


class _LLGuidanceAnswer(Answer):
    def __init__(self, module: Any, matcher: Any, size: int) -> None:
        self._module, self._matcher = module, matcher
        self._row = module.allocate_token_bitmask(1, size)
        if matcher.is_error():
            raise AssertionError(matcher.get_error())

    def fill(self) -> None:
        self._module.fill_next_token_bitmask(self._matcher, self._row, 0)

    def accept(self, token_id: int) -> None:
        if not self._matcher.consume_token(token_id):
            raise AssertionError(f"token {token_id} is not allowed: {self._matcher.get_error()}")


def libraries(vocabulary: Vocabulary) -> Iterator[Library]:
    """Return photonlite, and the others that are installed."""
    yield Own(vocabulary)
    for kind in (XGrammar, LLGuidance):
        try:
            yield kind(vocabulary)
        except ImportError:
            continue
