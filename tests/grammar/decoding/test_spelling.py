import itertools
import json
import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers

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
from tests.grammar.vocabularies import EVERYTHING, SINGLES, Vocabulary
from tests.models.paligemma.tiny import tokenizer as gemma_tokenizer
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


def test_texts_that_are_encoded_when_they_are_asked_for_are_spelled_as_a_whole_too(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spelling, "_AHEAD", 1)
    text, automaton = next(long_texts(tokenizer))
    counted = Counted(tokenizer)
    automaton.spell_with(counted.spell)
    assert counted.calls == 1

    first, again = (runs_of(TypedGrammar(automaton, 4000)) for _ in range(2))

    assert [index for run in first for index in run] == tokenizer.spell(text)
    assert first == again
    assert counted.calls <= len(text.encode()) / 100


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


OBJECTS = {
    "type": "object",
    "properties": {
        "state": {"enum": ["ok", "ok.", "a!", "don't stop", "(x)", "café", "e\u0301", "東京", "😀!", '"q"', "\\"]},
        'a"b': {"type": "array", "items": {"enum": ["yes", "yes please", "...", 12.5, -1]}, "maxItems": 3},
        "naïve 😀": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": -20, "maximum": 120}]},
        "it's": {"type": "string", "maxLength": 8},
        "last": {"type": "array", "prefixItems": [{"type": "boolean"}, {"enum": ["red", "..."]}], "minItems": 2},
    },
    "required": ["state"],
}
ENDINGS = ["", "red", "red.", "...", "é", "e\u0301", "東京", "!😀", '"', "\\", " ", "a ", "-", "9", "(", "\n"]


def random_objects(dice: random.Random) -> Iterator[str]:
    """Write random answers of `OBJECTS`, with spaces and without."""
    properties: dict[str, Any] = OBJECTS["properties"]
    items: list[Any] = properties['a"b']["items"]["enum"]
    while True:
        value = {
            "state": dice.choice(properties["state"]["enum"]),
            'a"b': dice.choices(items, k=dice.randint(0, 3)),
            "naïve 😀": dice.choice([*ENDINGS, 7, 119, -3]),
            "it's": dice.choice(ENDINGS),
            "last": [dice.random() < 0.5, dice.choice(["red", "..."])],
        }
        kept = {name: each for name, each in value.items() if name == "state" or dice.random() < 0.6}
        yield json.dumps(kept, ensure_ascii=False, separators=dice.choice([(",", ":"), (", ", ": ")]))


def unsplit_tokenizer() -> tokenizers.Tokenizer:
    """Train a tokenizer that never splits text, so that tokens hold any signs, letters and several words."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=letters, show_progress=False, max_token_length=8
    )
    made.train_from_iterator(itertools.islice(random_objects(random.Random(1)), 200), trainer)
    return made


@pytest.mark.parametrize("kind", ["shipped", "byte-level", "byte fallback", "unsplit"])
def test_the_tokenizers_own_spelling_of_an_answer_is_allowed_whatever_stands_before_forced_text(
    kind: str, tmp_path: Path
) -> None:
    if kind == "shipped":
        tokens = shipped()
    else:
        make = {"byte-level": qwen_tokenizer, "byte fallback": gemma_tokenizer, "unsplit": unsplit_tokenizer}[kind]
        make().save(str(tmp_path / "tokenizer.json"))
        tokens = Tokenizer(tmp_path / "tokenizer.json")
    pieces = [*tokens.pieces(2320), b""]
    automaton = Workshop(pieces, SpecialIds(len(pieces) - 1, None, None, len(pieces))).automaton(
        GrammarSpec("schema", json.dumps(OBJECTS))
    )
    automaton.spell_with(tokens.spell)
    count = forced = 0
    for text in itertools.islice(random_objects(random.Random(2)), 150):
        grammar = TypedGrammar(automaton, 10**6)
        for index in tokens.spell(text):
            assert grammar.allowed.permits(index), (text, tokens.decode([index]), grammar.allowed)
            count, forced = count + 1, forced + (grammar.allowed.certain is not None)
            grammar.accept(Token(index))
    assert forced > count / (20 if kind == "unsplit" else 5)  # names and punctuation


def after(automaton: Automaton, text: bytes) -> TypedGrammar:
    """Return a grammar that has taken a text byte by byte."""
    grammar = TypedGrammar(automaton, 200)
    for byte in text:
        grammar.accept(Token(EVERYTHING.pieces.index(bytes((byte,)))))
    return grammar


def test_nothing_is_forced_after_a_longer_piece_than_is_kept_of_a_text() -> None:
    one, _ = spelled(r'"\.{0,80}!\{"b', Greedy)  # type: ignore[arg-type]

    assert after(one, b'"' + 40 * b"." + b"!").run == tuple(greedy('{"b'))
    assert after(one, b'"' + 70 * b"." + b"!").run == ()
    assert after(one, b'"' + 70 * b"." + b"!").allowed.permits(EVERYTHING.pieces.index(b'{"'))


def test_few_spellings_are_kept_and_others_are_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spelling, "_KEPT", 50)
    asked: list[str] = []

    class Listed:
        @staticmethod
        def spell(text: str) -> list[int]:
            asked.append(text)
            return greedy(text)

    one, _ = spelled(r'"[.?]{0,8}!\{"b', Listed)  # type: ignore[arg-type]
    texts = [b'"' + bytes(signs) + b"!" for signs in itertools.product(b".?", repeat=7)]

    runs = [after(one, text).run for text in texts]
    before = len(asked)

    assert [after(one, text).run for text in texts] == runs == [tuple(greedy('{"b'))] * len(texts)
    assert len(asked) >= before + len(texts)


def test_one_state_has_the_spelling_of_each_text_before_it() -> None:
    vocabulary = Vocabulary((*SINGLES, b'"}'))

    def spell(text: str) -> list[int]:
        """Spell all signs between two words with one token if there is one, else with single bytes."""
        found: list[bytes] = []
        for part in re.findall(r"\w+|\W+", text):
            found += [part.encode()] if part == '"}' else [bytes((byte,)) for byte in part.encode()]
        return [vocabulary.pieces.index(piece) for piece in found]

    automaton = vocabulary.automaton(compile_dfa('(?:a!|b)"\\}', native=True))
    automaton.spell_with(spell)

    for text in ('a!"}', 'b"}'):
        grammar = TypedGrammar(automaton, 10)
        grammar.accept(Token(spell(text)[0]))
        assert grammar.run == tuple(spell(text)[1:])
