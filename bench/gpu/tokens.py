"""Tokenizers for models with random weights: a token for each byte, and the special ones of a family."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

from photonlite.models.tokenizer import Tokenizer


def byte_tokenizer(special: Mapping[str, int], vocab_size: int) -> Tokenizer:
    """Return a tokenizer whose tokens are bytes, with the lowest ids, and special ones with these."""
    # Special tokens get the ids that they are given only where the vocabulary has no holes before them.
    first, last = min(special.values()), max(special.values())
    named = dict(special) | {f"<|unused {index}|>": index for index in {*range(first, last)} - {*special.values()}}
    vocab = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab |= {f"unused {index}": index for index in range(len(vocab), first)}
    made = tokenizers.Tokenizer(BPE(vocab, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    raw = json.loads(made.to_str())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    ordered = sorted(named.items(), key=lambda item: item[1])
    raw["added_tokens"] = [{"id": index, "content": text, "special": True, **flags} for text, index in ordered]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_text(json.dumps(raw), encoding="utf-8")
        return Tokenizer(path, vocab_size=vocab_size)
