"""The tokenizer of the nano checkpoint: byte-level BPE whose frequent words and whole numbers are single tokens.

`python -m bench.nano.questions.tokenizer` writes `assets/nano/tokenizer.json` from the corpus of `questions.text`. Ids:
0..20 control, 21..981 the integers 0..960, then the bytes that are no digit, words, what BPE merged, and last what
typed answers are made of: runs of JSON's punctuation, and the commonest names of properties. A piece of text that is in
the vocabulary as a whole is one token without merges ("ignore_merges"); merges spell the rest, bytes at worst. The
ending of a plural is a piece of its own, so that a word has one embedding whether one is asked for or many, and is in
the vocabulary twice instead of four times: after a space, and at the start.

The normaliser lower-cases what users type, takes runs of white space for one space, and begins the text with one: none
of it means anything to the model, and each would cost it a spelling of every word. Answers have capitals and begin
without a space; their tokens come from the same vocabulary without the normaliser.
"""

import collections
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, pre_tokenizers

from bench.nano import ROOT
from bench.nano.questions.text import colours, language, relations
from bench.nano.scenes.objects import COLOURS, load_objects

TOKENIZER_JSON = ROOT / "assets" / "nano" / "tokenizer.json"

VOCABULARY_SIZE = 2320
CONTROL = (
    "<|endoftext|>", "<|skill|>", "<|argument|>", "<|answer|>", "<|thinking|>", "<|coord|>", "<|size|>",
    "<|ground_points|>", "<|ground_text|>", "<|end_ground|>", *(f"<|reserved_{i}|>" for i in range(10, 21)),
)  # fmt: skip
FIRST_INTEGER = len(CONTROL)
INTEGERS = 961

# Three letters or more and the ending of a plural: "es" after a hiss, else "s", but not that of "glass" or "tennis".
_ENDING = r"(?<=\p{L}(?:ch|sh|ss)|\p{L}\p{L}x)(?=es(?!\p{L}))|(?<=\p{L}\p{L}[\p{L}&&[^siu]])(?=s(?!\p{L}))"
_STEM = rf" ?(?<!\p{{L}})\p{{L}}+?(?:{_ENDING})"
# Numbers never join the space before them, so that "7" is one token wherever it stands.
_PIECES = rf"[0-9]{{1,3}}|{_STEM}| ?\p{{L}}+| ?[^\s\p{{L}}0-9]+|\s+(?!\S)|\s+"
# What text in UTF-8 never holds.
_NEVER = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))
_SKILL_WORDS = "caption describe query detect point segment short normal long"
# How answers begin, but for names.
_ANSWERS = ("Yes", "No", "Nothing", "objects", *COLOURS)
# What captions say, and words of questions that scenes can answer.
_CAPTION = "A picture of nothing, 1 and 2. The at the top left right bottom centre everywhere is are."
_SCENE_WORDS = "grey gray where which between near behind front biggest smallest bigger smaller than next"
# Runs of punctuation in compact JSON: each is one piece, and would be spelled byte by byte.
_JSON_RUNS = """ {" [{" [" [] ":[{" ":[" ":[ ":[]} ": ," "," "},{" },{" ":" "} "}] }] "] "]} ]} "}]} }]} """
_JSON_WORDS = (
    "true false null yes no name thing item kind label what count how many number total present there visible found "
    "colour color box bbox where position point center centre place left right above below bottom largest biggest "
    "smallest list fruit food animal vehicle plant shape"
)
_JSON_QUESTION_WORDS = "json as their largest about shelf fruit food animal vehicle shape"


def load_tokenizer(path: Path = TOKENIZER_JSON) -> Tokenizer:
    """Load the tokenizer so that control tokens spelled out in text stay plain text."""
    tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return tokenizer


def load_answer_tokenizer(path: Path = TOKENIZER_JSON) -> Tokenizer:
    """Load the tokenizer for text that the model writes: capitals are kept."""
    content = json.loads(path.read_text(encoding="utf-8")) | {"normalizer": None}
    tokenizer: Tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.encode_special_tokens = True
    return tokenizer


def corpus(rng: random.Random, rounds: int = 60) -> Iterator[str]:
    """Generate what users and the model say, every object in turn, `rounds` times; prompts begin with a space."""
    count, directions = len(load_objects()), tuple(relations.RELATION_QUESTIONS)
    for _ in range(rounds):
        for index in range(count):
            yield from (_prompt(language.phrase(rng, language.name_pair(rng, index))) for _ in range(2))
            yield _prompt(language.count_question(rng, language.name_pair(rng, index)))
            yield _prompt(language.existence_question(rng, language.name_pair(rng, index)))
            templates = relations.RELATION_QUESTIONS[rng.choice(directions)]
            yield _prompt(language.ask(rng, templates, language.name_pair(rng, index)[0]))
            kinds = [index, *(rng.randrange(count) for _ in range(rng.randrange(5)))]
            scene = [(rng.choice(kinds), rng.random(), rng.random()) for _ in range(rng.randint(1, 10))]
            yield language.caption(scene, rng.choice(("short", "normal", "long")))
        for _ in range(100):
            yield _prompt(language.phrase(rng, language.unknown_pair(rng, "train")))


def _prompt(text: str) -> str:
    return " " + " ".join(text.lower().split())


def build() -> dict[str, Any]:
    splitter = _pre_tokenizer()
    counts = collections.Counter(piece for text in corpus(random.Random(0)) for piece in _split(splitter, text))
    digits = set("0123456789")
    # Insertion order gives the ids.
    vocabulary = dict.fromkeys([*CONTROL, *map(str, range(INTEGERS))])
    vocabulary |= dict.fromkeys(char for char in _byte_alphabet() if char not in digits)
    required = dict.fromkeys(piece for text in _required_texts() for piece in _split(splitter, text))
    vocabulary |= {piece: None for piece in required if not digits & set(piece)}
    spelled = {piece: count for piece, count in counts.items() if piece not in vocabulary and not digits & set(piece)}
    typed = dict.fromkeys(piece for text in _typed_texts() for piece in _split(splitter, text))
    merges = []
    for pair in _learn_merges(spelled):
        if "".join(pair) not in vocabulary and len(vocabulary | typed) == VOCABULARY_SIZE:
            break
        vocabulary["".join(pair)] = None
        merges.append(pair)
    return _tokenizer_json(vocabulary | typed, merges)


def _byte_alphabet() -> list[str]:
    """Return the characters that byte-level vocabularies write for bytes, but for those that no text holds."""
    never = {chr(byte) for byte in _NEVER}  # these are printable and stand for themselves
    return [char for char in sorted(pre_tokenizers.ByteLevel.alphabet()) if char not in never]


def _required_texts() -> Iterator[str]:
    yield from (_prompt(f"{_SKILL_WORDS} {_SCENE_WORDS} {' '.join(COLOURS)}"), _CAPTION, *_ANSWERS)
    for item in load_objects():
        yield from (item.name, item.plural)
        yield from map(_prompt, (*item.names, *item.plurals))
    yield from map(_prompt, _questions())


def _typed_texts() -> Iterator[str]:
    yield from _JSON_RUNS.split()
    yield from _JSON_WORDS.split()
    yield _prompt(_JSON_QUESTION_WORDS)


def _questions() -> Iterator[str]:
    """Return every template, its gaps filled with a word that is in the vocabulary anyhow."""
    phrases = [template for template, _ in language.PHRASES]
    questions = (language.COUNT_QUESTIONS, language.EXISTENCE_QUESTIONS, language.TOTAL_QUESTIONS)
    by_direction = (relations.RELATION_QUESTIONS, relations.PLACE_QUESTIONS, relations.COMPARISON_QUESTIONS)
    grouped = (*(group.values() for group in by_direction), language.REFERENCE_QUESTIONS.values())
    plain = chain(phrases, *questions, language.LIST_QUESTIONS, colours.COLOUR_QUESTIONS)
    for template in chain(plain, *chain.from_iterable(grouped)):
        yield template.format("red", "red", "red")


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _split(splitter: pre_tokenizers.PreTokenizer, text: str) -> list[str]:
    return [piece for piece, _ in splitter.pre_tokenize_str(text)]


def _learn_merges(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Return BPE merges, the most frequent pair first, ties in alphabetic order; ends when no pair occurs twice."""
    spellings = {piece: tuple(piece) for piece in counts}
    while True:
        pairs: collections.Counter[tuple[str, str]] = collections.Counter()
        for piece, symbols in spellings.items():
            for pair in pairwise(symbols):
                pairs[pair] += counts[piece]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None or pairs[best] < 2:
            return
        yield best
        spellings = {piece: _merge(symbols, best) for piece, symbols in spellings.items()}


def _merge(symbols: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    merged: list[str] = []
    at = 0
    while at < len(symbols):
        joined = symbols[at : at + 2] == pair
        merged.append("".join(pair) if joined else symbols[at])
        at += 2 if joined else 1
    return tuple(merged)


def _tokenizer_json(vocabulary: Iterable[str], merges: Iterable[tuple[str, str]]) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": _PIECES}, "behavior": "Isolated", "invert": False}
    normalizers = [
        {"type": "Lowercase"},
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
        {"type": "Prepend", "prepend": " "},
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": content, **flags} for index, content in enumerate(CONTROL)],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": {token: index for index, token in enumerate(vocabulary)},
            "merges": [list(pair) for pair in merges],
        },
    }


if __name__ == "__main__":
    TOKENIZER_JSON.write_text(json.dumps(build(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
