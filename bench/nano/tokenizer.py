"""The tokenizer of the nano checkpoint: byte-level BPE whose frequent words and whole numbers are single tokens.

`python -m bench.nano.tokenizer` writes `assets/nano/tokenizer.json` from the corpus of `language.py`. Ids: 0..20
control, 21..981 the integers 0..960, then the bytes that are no digit, words, and what BPE merged. A piece of text that
is in the vocabulary as a whole is one token without merges ("ignore_merges"); merges spell the rest, bytes at worst.

Its normaliser lower-cases what users type: capitals mean nothing to the model and would cost it a spelling of every
word. Answers have capitals; their tokens come from the same vocabulary without the normaliser.
"""

import collections
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, pre_tokenizers

from bench.nano import language
from bench.nano.english import pluralize
from bench.nano.objects import load_objects

TOKENIZER_JSON = Path(__file__).parents[2] / "assets" / "nano" / "tokenizer.json"

VOCABULARY_SIZE = 1920
MERGED = 110
CONTROL = (
    "<|endoftext|>", "<|skill|>", "<|argument|>", "<|answer|>", "<|thinking|>", "<|coord|>", "<|size|>",
    "<|ground_points|>", "<|ground_text|>", "<|end_ground|>", *(f"<|reserved_{i}|>" for i in range(10, 21)),
)  # fmt: skip
FIRST_INTEGER = len(CONTROL)
INTEGERS = 961

# Numbers never join the space before them, so that "7" is one token wherever it stands.
_PIECES = r"[0-9]{1,3}| ?\p{L}+| ?[^\s\p{L}0-9]+|\s+(?!\S)|\s+"
# Words of the prompt templates, and answers that are one word.
_SKILL_WORDS = "caption describe query detect point segment short normal long"
_ANSWERS = "Yes No Nothing"
# Questions on colour, place and size that scenes can answer too.
_SCENE_WORDS = (
    "yellow red green blue orange purple brown black white pink grey what which color where is are left right top "
    "bottom centre above below between next near behind front biggest smallest bigger smaller than object"
)


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
    """Generate what users and the model say, every object and every absent thing in turn, `rounds` times."""
    count = len(load_objects())
    absent = language.unknown_words("train")
    for _ in range(rounds):
        for index in range(count):
            yield " " + language.object_phrase(rng, index).lower()
            yield language.count_question(rng, language.name_pair(rng, index)).lower()
            yield language.existence_question(rng, language.name_pair(rng, index)).lower()
            kinds = [index, *(rng.randrange(count) for _ in range(rng.randrange(5)))]
            scene = [(rng.choice(kinds), rng.random(), rng.random()) for _ in range(rng.randint(1, 10))]
            yield language.caption(scene, rng.choice(("short", "normal", "long")))
        yield from (language.list_question(rng).lower(), language.total_question(rng).lower())
        for word in rng.sample(absent, 100):
            yield " " + language.phrase(rng, (word, pluralize(word))).lower()


def build() -> dict[str, Any]:
    """Make the content of tokenizer.json."""
    splitter = _pre_tokenizer()
    counts = collections.Counter(piece for text in corpus(random.Random(0)) for piece in _split(splitter, text))
    digits = set("0123456789")
    # Insertion order gives the ids.
    vocabulary = dict.fromkeys([*CONTROL, *map(str, range(INTEGERS))])
    vocabulary |= dict.fromkeys(char for char in sorted(pre_tokenizers.ByteLevel.alphabet()) if char not in digits)
    frequent = sorted(filter(lambda piece: not digits & set(piece), counts), key=lambda piece: (-counts[piece], piece))
    for piece in (*(piece for text in _required_texts() for piece in _split(splitter, text)), *frequent):
        if len(vocabulary) < VOCABULARY_SIZE - MERGED:
            vocabulary[piece] = None
    merges = []
    spelled = {piece: counts[piece] for piece in frequent if piece not in vocabulary}
    for pair in _learn_merges(spelled):
        if "".join(pair) not in vocabulary and len(vocabulary) == VOCABULARY_SIZE:
            break
        vocabulary["".join(pair)] = None
        merges.append(pair)
    return _tokenizer_json(vocabulary, merges)


def _required_texts() -> Iterator[str]:
    yield from f"{_SKILL_WORDS} {_ANSWERS}".split()
    for word in f"{_SKILL_WORDS} {_SCENE_WORDS}".split():
        yield " " + word
    for item in load_objects():
        yield from (" " + item.name, " " + item.plural)


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
    """Give BPE merges, the most frequent pair first, ties in alphabetic order; ends when no pair occurs twice."""
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
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": content, **flags} for index, content in enumerate(CONTROL)],
        "normalizer": {"type": "Lowercase"},
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
