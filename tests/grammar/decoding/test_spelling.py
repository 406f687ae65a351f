import json
import random
from collections.abc import Iterator
from functools import cache

import pytest

from photonlite.errors import PromptError
from photonlite.grammar.automata.alphabet import BOX
from photonlite.grammar.automata.dfa import compile_dfa
from photonlite.grammar.automata.tables import SpecialIds
from photonlite.grammar.decoding import spelling
from photonlite.grammar.decoding.automaton import Automaton
from photonlite.grammar.decoding.grammars import LONGEST_RUN
from photonlite.grammar.decoding.spelling import settled
from photonlite.grammar.decoding.typed import TypedGrammar
from photonlite.grammar.spec import GrammarSpec
from photonlite.models.loading import resolve
from photonlite.models.tokenizer import Tokenizer
from photonlite.request import Token
from tests.compiling import Workshop
from tests.grammar.vocabularies import EVERYTHING
from tests.models.qwen.tiny import tokenizer as qwen_tokenizer

PIECES = [
    "a",
    "box",
    "boxes",
    "_",
    " ",
    '"',
    '":',
    '","',
    "{",
    "}",
    "[",
    "]",
    ",",
    ", ",
    ": ",
    "1",
    "20",
    "'s",
    "é",
    "…",
]


@cache
def shipped() -> Tokenizer:
    return Tokenizer(resolve(None).tokenizer, controls_to=8)


@pytest.fixture(params=["shipped", "qwen"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if request.param == "shipped":
        return shipped()
    path = tmp_path_factory.mktemp("qwen") / "tokenizer.json"
    qwen_tokenizer().save(str(path))
    return Tokenizer(path)


def test_settled_tokens_stay_whatever_follows(tokenizer: Tokenizer) -> None:
    dice = random.Random(3)
    kept = 0
    for _ in range(2_000):
        text = "".join(dice.choices(PIECES, k=dice.randint(1, 6)))
        further = "".join(dice.choices(PIECES, k=dice.randint(1, 3)))
        if not text.strip():
            continue
        whole, alone = tokenizer.spell(text + further), tokenizer.spell(text)
        left = settled(text.encode(), further.encode()[:1])
        assert 0 <= left <= len(text.encode())
        for one, two in zip(alone, whole, strict=False):
            left -= len(tokenizer.piece(one))
            if left < 0:
                break
            assert one == two, (text, further)
            kept += 1
    assert kept > 1_500


@pytest.mark.parametrize(
    ("text", "following", "where"),
    [
        (b'{"box":', b"", 7),  # the end, or a coordinate token
        (b'{"box":', b'" ', 5),  # punctuation may go on, and the word before it may not
        (b'{"box":', b"0123456789", 7),
        (b'{"box":', b"ab", 7),  # several signs keep together
        (b'"', b"ab", 0),  # a single one may join the word
        (b": ", b"0123456789", 1),  # a space may, too
        (b'{"bo', b'x"', 2),
        (b'"bo', b"xy", 0),
        (b"box", b'"', 3),
    ],
)
def test_what_is_settled(text: bytes, following: bytes, where: int) -> None:
    assert settled(text, following) == where


def spelled(pattern: str, tokenizer: Tokenizer) -> tuple[Automaton, Automaton]:
    """Compile a pattern twice over everything that a test vocabulary has: with one spelling of forced text, and with
    all."""
    dfa = compile_dfa(pattern, native=True)
    one, every = EVERYTHING.automaton(dfa), EVERYTHING.automaton(dfa)
    one.spell_with(tokenizer.spell)
    return one, every


def greedy(text: str) -> list[int]:
    """Spell with the longest token at each place."""
    if not text.strip():
        raise PromptError("blank")
    data, ids = text.encode(), []
    while data:
        longest = max((piece for piece in EVERYTHING.pieces if piece and data.startswith(piece)), key=len)
        ids.append(EVERYTHING.pieces.index(longest))
        data = data[len(longest) :]
    return ids


class Greedy:
    spell = staticmethod(greedy)


def test_forced_text_has_one_spelling_up_to_where_there_is_a_choice() -> None:
    one, every = spelled("a b,ab, ?(?:a|b)!", Greedy)  # type: ignore[arg-type]
    grammar, free = TypedGrammar(one, 30), TypedGrammar(every, 30)

    assert grammar.run == tuple(greedy("a b,ab"))
    assert EVERYTHING.pieces.index(b"ab") in grammar.run
    assert grammar.allowed.forced == greedy("a")[0]  # reading a run does not move the grammar
    for index in grammar.run:
        grammar.accept(Token(index))
        free.accept(Token(index))
    assert grammar.run == ()
    assert grammar.allowed == free.allowed
    assert grammar.allowed.permits(EVERYTHING.pieces.index(b", "))
    assert grammar.finish_reason is None


def test_a_place_settles_all_text_before_it_and_is_in_no_run() -> None:
    one, _ = spelled(f"ab: ab{BOX}!", Greedy)  # type: ignore[arg-type]

    assert TypedGrammar(one, 30).run == tuple(greedy("ab: ab"))


def test_a_run_goes_to_the_end_of_an_answer() -> None:
    one, _ = spelled("ab!", Greedy)  # type: ignore[arg-type]
    grammar = TypedGrammar(one, 30)

    assert grammar.run == tuple(greedy("ab!"))
    for index in grammar.run:
        grammar.accept(Token(index))
    assert grammar.finish_reason == "stop"


def test_text_that_is_not_spelled_is_left_to_the_model() -> None:
    one, every = spelled("  (?:a|b)", Greedy)  # type: ignore[arg-type]

    assert one.allowed(one.start, 30) == every.allowed(every.start, 30)


SCHEMA = (
    '{"type":"object","properties":{"bounding_box":{"type":"object","format":"box"},"n_found":{"type":"integer"},'
    '"kind":{"enum":["banana","bandana","pear"]},"é":{"type":"boolean"}},'
    '"required":["bounding_box","n_found","kind","é"]}'
)


def test_random_answers_of_a_schema_are_those_of_the_grammar_alone_in_the_tokenizers_spelling() -> None:
    tokens = shipped()
    pieces = tokens.pieces(2320)
    workshop = Workshop(pieces, EVERYTHING.ids.__class__(0, 5, 6, 2320))
    spec = GrammarSpec("schema", SCHEMA)
    one, every = workshop.automaton(spec), workshop.automaton(spec)
    one.spell_with(tokens.spell)
    dice, appended = random.Random(5), 0
    for _ in range(8):
        grammar, free = TypedGrammar(one, 60), TypedGrammar(every, 60)
        while not grammar.finished:
            run = grammar.run
            appended += len(run)
            ids = run or (dice.choice([index for index in range(2320) if grammar.allowed.permits(index)]),)
            for index in ids:
                values = (0.5,) if index == 5 else (0.5, 0.5) if index == 6 else ()
                assert not run or grammar.allowed.forced == index
                grammar.accept(Token(index, values))
                free.accept(Token(index, values))  # raises for what the grammar alone does not allow
        assert grammar.finish_reason == free.finish_reason
    assert appended > 8 * 8


WORDS = [
    "robot",
    "picks",
    "9",
    "mugs",
    "quart's",
    "a_b",
    "-",
    "größe",
    "東京都",
    "🍌🍌",
    "e\u0301",
    "...",
    "  ",
    "\t",
    "x",
]


class Counted:
    """Counts what a tokenizer encodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.calls = tokenizer, 0

    def spell(self, text: str) -> list[int]:
        self.calls += 1
        return self.tokenizer.spell(text)


def long_texts(tokenizer: Tokenizer) -> Iterator[tuple[str, Automaton]]:
    """Compile long texts of all kinds of characters, each with its automaton."""
    dice, pieces = random.Random(8), [*tokenizer.pieces(2320), b""]
    workshop = Workshop(pieces, SpecialIds(len(pieces) - 1, None, None, len(pieces)))
    for _ in range(2):
        text = json.dumps("".join(dice.choice(WORDS) + dice.choice(["", " "]) for _ in range(180)), ensure_ascii=False)
        yield text, workshop.automaton(GrammarSpec("schema", f'{{"const":{text}}}'))


def runs_of(grammar: TypedGrammar) -> list[tuple[int, ...]]:
    found = []
    while not grammar.finished:
        found.append(grammar.run)
        assert found[-1]
        for index in found[-1]:
            grammar.accept(Token(index))
    return found


def test_a_long_text_is_spelled_as_a_whole_and_encoded_in_few_pieces_before_any_answer(tokenizer: Tokenizer) -> None:
    for text, automaton in long_texts(tokenizer):
        counted = Counted(tokenizer)
        automaton.spell_with(counted.spell)
        ahead = counted.calls
        runs = runs_of(TypedGrammar(automaton, 4000))

        assert [index for run in runs for index in run] == tokenizer.spell(text)
        assert max(map(len, runs)) == LONGEST_RUN < len(tokenizer.spell(text))
        assert counted.calls == ahead <= len(text.encode()) / 200 + 2


def test_texts_that_are_worked_out_when_they_are_asked_for_are_forced_as_well(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spelling, "_AHEAD", 1)
    text, automaton = next(long_texts(tokenizer))
    counted = Counted(tokenizer)
    automaton.spell_with(counted.spell)
    assert counted.calls == 1

    first, again = (runs_of(TypedGrammar(automaton, 4000)) for _ in range(2))

    # In the middle of a word the tokens may be others than those of the whole word.
    assert tokenizer.decode(index for run in first for index in run) == text
    assert first == again
    assert counted.calls > len(text) / 10


def test_a_text_may_end_inside_a_character() -> None:
    one, _ = spelled("ab ab(?:é|ê)!", Greedy)  # type: ignore[arg-type]
    grammar = TypedGrammar(one, 30)

    assert grammar.run == tuple(greedy("ab"))


def test_a_spelling_with_ids_that_are_no_text_is_not_forced() -> None:
    class Controls:
        @staticmethod
        def spell(text: str) -> list[int]:
            return [EVERYTHING.ids.end, *greedy(text)]

    one, every = spelled("ab!", Controls)  # type: ignore[arg-type]

    assert TypedGrammar(one, 30).run == ()
    assert one.allowed(one.start, 30) == every.allowed(every.start, 30)
