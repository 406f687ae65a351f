"""Specs to compile, texts that fit them, and vocabularies to compile them for."""

import functools
import json
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from photonlite.grammar.automata.tables import SpecialIds
from photonlite.grammar.spec import GrammarSpec
from photonlite.models.loading import resolve
from photonlite.models.tokenizer import Tokenizer

SHIPPED, LARGE = "2,320 tokens", "51,200 tokens"
_LARGE_SIZE = 51_200


@dataclass(frozen=True)
class Sample:
    """A spec, and a text that fits it.

    Attributes:
        name: For the report.
        spec: What is compiled.
        text: Fits the spec; empty where numbers of the model stand in it, which no other library knows.
    """

    name: str
    spec: GrammarSpec
    text: str


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer as grammars see it.

    Attributes:
        name: For the report.
        path: tokenizer.json.
        pieces: Bytes of every token.
        ids: Those that are no text.
    """

    name: str
    path: Path
    pieces: list[bytes]
    ids: SpecialIds

    @functools.cached_property
    def _longest_first(self) -> dict[bytes, list[int]]:
        """SpecialIds by the first byte of their pieces."""
        found: dict[bytes, list[int]] = {}
        for index in sorted(range(len(self.pieces)), key=lambda index: -len(self.pieces[index])):
            if self.pieces[index]:
                found.setdefault(self.pieces[index][:1], []).append(index)
        return found

    def encode(self, text: str) -> list[int]:
        """Return ids that spell a text, longest piece first, without the space that tokenizers put in front of it."""
        rest, ids = text.encode(), []
        while rest:
            fits = (index for index in self._longest_first[rest[:1]] if rest.startswith(self.pieces[index]))
            ids.append(next(fits))
            rest = rest[len(self.pieces[ids[-1]]) :]
        return ids


def samples() -> list[Sample]:
    """Return the specs, from small to large."""
    fruit = {"type": "string", "enum": ["apple", "banana", "cherry", "grapes", "lemon", "melon", "orange", "pear"]}
    thing: dict[str, Any] = {"fruit": fruit, "count": {"type": "integer", "minimum": 0, "maximum": 99}}
    shelf = _object({"things": {"type": "array", "items": _object(thing)}})
    boxes = _object(
        {"things": {"type": "array", "items": _object({**thing, "box": {"type": "object", "format": "box"}})}}
    )
    note = _object({"note": {"type": "string", "maxLength": 1000}})
    free = _object({f"field_{number}": {"type": "string"} for number in range(20)})
    names = [f"object number {number}" for number in range(1000)]
    listed = [{"fruit": one, "count": count} for one, count in (("apple", 3), ("banana", 12), ("pear", 0))]
    words = "a desk with a lamp and three mugs, one of them cracked; "
    return [
        Sample("serial number, a pattern", GrammarSpec("regex", r"[A-Z]{2}-\d{4}"), "AB-1234"),
        _schema("list of objects", shelf, {"things": listed}),
        _schema("list of objects with boxes", boxes, None),
        _schema("20 strings", free, {f"field_{number}": words[: number + 5] for number in range(20)}),
        _schema("string of at most 1,000", note, {"note": (20 * words)[:900]}),
        _schema("1,000 names", _object({"name": {"enum": names}}), {"name": names[777]}),
    ]


def shipped() -> Vocabulary:
    """Return the vocabulary of the shipped checkpoint."""
    files = resolve(None)
    special = files.config.tokenizer
    return _vocabulary(SHIPPED, files.tokenizer, (special.eos_id, special.coord_id, special.size_id))


@functools.cache
def large() -> Vocabulary:
    """Train a vocabulary of Moondream 2's size on the sources of Python's standard library, once on a machine."""
    path = Path(tempfile.gettempdir()) / f"photonlite-bench-{_LARGE_SIZE}-{sysconfig.get_python_version()}.json"
    if not path.exists():
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=_LARGE_SIZE,
            special_tokens=["<|endoftext|>", "<|coordinate|>", "<|size|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(_sources(), trainer)
        tokenizer.save(str(path))
    return _vocabulary(LARGE, path, (0, 1, 2))


def _vocabulary(name: str, path: Path, special: tuple[int, int, int]) -> Vocabulary:
    tokenizer = Tokenizer(path)
    size = tokenizers.Tokenizer.from_file(str(path)).get_vocab_size(with_added_tokens=True)
    return Vocabulary(
        name, path, [tokenizer.piece(index) for index in range(size)], SpecialIds(*special, vocab_size=size)
    )


def _sources() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" not in path.parts:
            yield path.read_text(errors="replace")


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _schema(name: str, schema: dict[str, Any], value: Any) -> Sample:
    text = "" if value is None else json.dumps(value, separators=(",", ":"))
    return Sample(name, GrammarSpec("schema", json.dumps(schema, separators=(",", ":"))), text)
