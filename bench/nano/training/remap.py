"""Give weights to a tokenizer that has changed: ``python -m bench.nano.training.remap OLD_TOKENIZER FILE [FILE ...]``.

Each file (safetensors, the public key names) is rewritten for `assets/nano/tokenizer.json`: rows of tokens that both
have move to their new ids, and those of new ones begin as the mean of the rows of the pieces they were spelled with.
"""

import argparse
import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders
from torch import Tensor

from bench.nano.questions.tokenizer import TOKENIZER_JSON, load_answer_tokenizer

TABLES = ("text.wte", "text.lm_head.weight", "text.lm_head.bias")
"""Ends of the keys whose rows stand for ids."""


def sources(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """Return for each id of `new` the ids of `old` whose mean it begins with; both without a normaliser."""
    known, decoder = old.get_vocab(), decoders.ByteLevel()
    spelled = sorted(new.get_vocab().items(), key=lambda item: item[1])
    return [
        [known[token]] if token in known else old.encode(decoder.decode([token]), add_special_tokens=False).ids
        for token, _ in spelled
    ]


def remapped(weights: dict[str, Tensor], rows: list[list[int]]) -> dict[str, Tensor]:
    """Return weights whose tables of ids have a row for each of `rows`."""

    def table(old: Tensor) -> Tensor:
        return torch.stack([old[ids].float().mean(0) for ids in rows]).to(old.dtype)

    return {name: table(value) if name.endswith(TABLES) else value for name, value in weights.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json that the weights were trained with")
    parser.add_argument("files", type=Path, nargs="+", help="safetensors; replaced")
    options = parser.parse_args()
    rows = sources(load_answer_tokenizer(options.tokenizer), load_answer_tokenizer(TOKENIZER_JSON))
    for file in options.files:
        changed = file.with_name(f"new-{file.name}")
        save_file(remapped(load_file(file), rows), changed, metadata={"format": "pt"})
        changed.chmod(file.stat().st_mode)
        os.replace(changed, file)  # a reader sees the old file or the new one


if __name__ == "__main__":
    main()
