"""Text to token ids and back, over the `tokenizers` library and a tokenizer.json of one of two kinds.

| kind | a token is written | spaces |
|---|---|---|
| byte-level | byte by byte, each as one printable character | as any byte |
| byte fallback (SentencePiece's) | as text, or as one byte `<0xAB>` of a character without a token | as "▁" |

User text is only ever text: the spelling of a special token is encoded letter by letter. On the way back every id
stands for bytes, so text can be streamed as soon as its characters are complete, in time linear in its length.
"""

import codecs
import json
import re
from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import decoders

from photonlite.errors import CheckpointError, PromptError
from photonlite.models.shards import TOKENIZER_BYTES, TOKENIZER_NAME, read_bounded

MAX_CHARACTERS = 8000  # longer texts are refused before tokenization; the context length is checked later
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(_OTHERS)}
"""Byte-level vocabularies write a byte as one printable character (Radford et al., 2019, GPT-2)."""

_SPACE, _BYTE = "▁", re.compile(r"<0x([0-9A-F]{2})>")


class Tokenizer:
    """A checkpoint's tokenizer.json; CheckpointError for another kind, or more tokens than `vocab_size`.

    Added tokens with ids below `controls_to` are control tokens, whatever the file says. Text is never encoded to
    these, to `control_ids`, or to added tokens whose spelling matches `control_names`.
    """

    def __init__(
        self,
        path: Path,
        *,
        vocab_size: int | None = None,
        controls_to: int = 0,
        control_ids: Iterable[int] = (),
        control_names: str = "(?!)",
    ) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(read_bounded(path, CheckpointError, TOKENIZER_BYTES))
        except Exception as cause:  # the library raises bare exceptions
            raise CheckpointError(f"{path} is not a readable tokenizer.json: {cause}; fetch the file again") from cause
        self._byte_level = isinstance(self._tokenizer.decoder, decoders.ByteLevel)
        if not self._byte_level and not _falls_back(self._tokenizer):
            kind = type(self._tokenizer.decoder).__name__
            raise CheckpointError(
                f"{path} has a decoder of type {kind}: only byte-level tokenizers are supported, and those that fall "
                "back to bytes"
            )
        size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        if vocab_size is not None and size > vocab_size:
            raise CheckpointError(
                f"{path} has {size} tokens but the model has {vocab_size} rows: use the tokenizer.json of this model"
            )
        self._special = self._make_special(controls_to)
        self.added = {token.content: index for index, token in self._tokenizer.get_added_tokens_decoder().items()}
        named = {index for text, index in self.added.items() if re.fullmatch(control_names, text)}
        self._controls = self._special | frozenset(control_ids) | named
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # For text as the model writes it: only user text is normalized, but for spaces as "▁".
        self._unnormalized = self._tokenizer
        if self._byte_level and self._tokenizer.normalizer is not None:
            raw = json.loads(self._tokenizer.to_str()) | {"normalizer": None}
            self._unnormalized = tokenizers.Tokenizer.from_str(json.dumps(raw))
        self._tokenizer.encode_special_tokens = self._unnormalized.encode_special_tokens = True
        self._bytes: dict[int, bytes] = {}
        self.special = {text: index for text, index in self.added.items() if index in self._special}
        longest_first = sorted(map(re.escape, self.special), key=len, reverse=True)
        self._spelled = re.compile(f"({'|'.join(longest_first) or '(?!)'})")
        self._openings = frozenset(text[:1] for text in self.special)
        self._beginnings = re.compile(f"(?={self._spelled.pattern})")

    def _make_special(self, controls_to: int) -> frozenset[int]:
        """Make added tokens below an id special, and return the ids of all special ones."""
        added = self._tokenizer.get_added_tokens_decoder().items()
        plain = [token for index, token in added if index < controls_to and not token.special]
        self._tokenizer.add_special_tokens(
            [tokenizers.AddedToken(token.content, normalized=token.normalized, special=True) for token in plain]
        )
        return frozenset(index for index, token in self._tokenizer.get_added_tokens_decoder().items() if token.special)

    def encode(self, text: str) -> list[int]:
        """Encode user text; PromptError if blank, over `MAX_CHARACTERS`, not Unicode, or in need of control ids."""
        return self._encode(self._tokenizer, text)

    def normalize(self, text: str) -> str:
        """Return user text as `encode` reads it: that of Qwen in NFC; PromptError if it is not Unicode."""
        _check_unicode(text)
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None or not self._byte_level else str(normalizer.normalize_str(text))

    def spell(self, text: str) -> list[int]:
        """Encode text as the model writes it, without normalization; errors as for `encode`."""
        return self._encode(self._unnormalized, text)

    def _encode(self, tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
        if not isinstance(text, str):
            raise PromptError(f"the text is of type {type(text).__name__}: give a str")
        if not text.strip():
            raise PromptError("the text is empty: say what to look for or ask")
        if len(text) > MAX_CHARACTERS:
            raise PromptError(f"the text has {len(text)} characters: give at most {MAX_CHARACTERS}")
        _check_unicode(text)
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        if not self._controls.isdisjoint(ids):
            spelled = self._tokenizer.id_to_token(min(self._controls.intersection(ids)))
            raise PromptError(f"the text holds {spelled!r}, which this model keeps for control: leave it out")
        return ids

    def hide(self, text: str, mark: str) -> str:
        """Return text that spells no special token, nor begins one that what follows may end.

        A mark follows the first character of each such spelling; all other text stays as a template may look for it.
        """
        if self._openings.isdisjoint(text):
            return text
        found = {match.start() for match in self._beginnings.finditer(text)}
        tails = range(max(0, len(text) - max(map(len, self.special), default=0)), len(text))
        found |= {place for place in tails if any(one.startswith(text[place:]) for one in self.special)}
        return "".join(one + mark if place in found else one for place, one in enumerate(text))

    def encode_template(self, text: str, mark: str) -> list[int]:
        """Encode a filled-in template, whose special tokens are meant as such; marks of `hide` are taken out again."""
        _check_unicode(text)
        ids: list[int] = []
        for number, part in enumerate(self._spelled.split(text)):
            if number % 2:
                ids.append(self.special[part])
            elif part:
                ids += self._tokenizer.encode(part.replace(mark, ""), add_special_tokens=False).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids; special tokens and ids without a token vanish, broken UTF-8 becomes U+FFFD."""
        return b"".join(map(self.piece, ids)).decode(errors="replace")

    def piece(self, index: int) -> bytes:
        """Return the bytes of an id: none for a special token or an id without a token."""
        if index not in self._bytes:
            token = "" if index in self._special else self._tokenizer.id_to_token(index) or ""
            self._bytes[index] = self._spelled_bytes(token)
        return self._bytes[index]

    def _spelled_bytes(self, token: str) -> bytes:
        if not self._byte_level:
            byte = _BYTE.fullmatch(token)
            return bytes.fromhex(byte[1]) if byte else token.replace(_SPACE, " ").encode()
        # A token with characters outside the byte alphabet is plain text.
        is_bytes = all(character in _BYTE_OF for character in token)
        return bytes(map(_BYTE_OF.__getitem__, token)) if is_bytes else token.encode()

    def pieces(self, count: int) -> list[bytes]:
        """Return the bytes of the first `count` ids; none for those that text is never encoded to."""
        return [b"" if index in self._controls else self.piece(index) for index in range(count)]


def find_tokenizer(folder: Path, config: object) -> Path:
    """Return the tokenizer.json of a folder, whatever its configuration; CheckpointError if there is none."""
    path = folder / TOKENIZER_NAME
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {TOKENIZER_NAME}: put the tokenizer of the model there")
    return path


def _falls_back(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether a tokenizer spells spaces and missing characters as SentencePiece does, and changes nothing else."""
    raw = json.loads(tokenizer.to_str())
    decoder, normalizer = raw["decoder"] or {}, raw["normalizer"] or {}
    space = {"pattern": {"String": _SPACE}, "content": " "}
    steps = [{"type": "Replace", **space}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    written = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    return decoder.get("decoders") == steps and normalizer == written


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as cause:
        raise PromptError(f"the text is not valid Unicode at character {cause.start}: remove that one") from cause


class IncrementalDetokenizer:
    """Decodes a stream of ids as `Tokenizer.decode` does; a character is returned once all its bytes have come."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, index: int) -> str:
        """Add the next id; return the characters that it completes: often one word, sometimes none."""
        return self._decoder.decode(self._tokenizer.piece(index))

    def flush(self) -> str:
        """End the stream: return U+FFFD if a character stayed incomplete, else nothing; ready for another stream."""
        return self._decoder.decode(b"", final=True)
