"""Text to token ids and back, over the `tokenizers` library and a byte-level tokenizer.json.

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

MAX_CHARACTERS = 8000  # longer texts are refused before tokenization; the context length is checked later
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(_OTHERS)}
"""Byte-level vocabularies write a byte as one printable character (Radford et al., 2019, GPT-2)."""


class Tokenizer:
    """A checkpoint's byte-level tokenizer.json; CheckpointError for another kind, or more tokens than `vocab_size`.

    Added tokens with ids below `controls_to` are control tokens, whatever the file says. Text is never encoded to these
    or to `control_ids`.
    """

    def __init__(
        self, path: Path, *, vocab_size: int | None = None, controls_to: int = 0, control_ids: Iterable[int] = ()
    ) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as cause:  # the library raises bare exceptions
            raise CheckpointError(f"{path} is not a readable tokenizer.json: {cause}; fetch the file again") from cause
        if not isinstance(self._tokenizer.decoder, decoders.ByteLevel):
            kind = type(self._tokenizer.decoder).__name__
            raise CheckpointError(f"{path} has a decoder of type {kind}: only byte-level tokenizers are supported")
        size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        if vocab_size is not None and size > vocab_size:
            raise CheckpointError(
                f"{path} has {size} tokens but the model has {vocab_size} rows: use the tokenizer.json of this model"
            )
        self._special = self._make_special(controls_to)
        self._controls = self._special | frozenset(control_ids)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._unnormalized = self._tokenizer  # for text as the model writes it: only user text is normalized
        if self._tokenizer.normalizer is not None:
            raw = json.loads(self._tokenizer.to_str()) | {"normalizer": None}
            self._unnormalized = tokenizers.Tokenizer.from_str(json.dumps(raw))
        self._tokenizer.encode_special_tokens = self._unnormalized.encode_special_tokens = True
        self._bytes: dict[int, bytes] = {}
        spelled = {token.content: index for index, token in self._tokenizer.get_added_tokens_decoder().items()}
        self.special = {text: index for text, index in spelled.items() if index in self._special}
        longest_first = sorted(map(re.escape, self.special), key=len, reverse=True)
        self._spelled = re.compile(f"({'|'.join(longest_first) or '(?!)'})")
        self._openings = re.compile("|".join({re.escape(text[0]) for text in self.special}) or "(?!)")

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
        """Return text that spells no special token: a mark follows each character that such a spelling begins with."""
        return self._openings.sub(rf"\g<0>{mark}", text)

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
            # A token with characters outside the byte alphabet is plain text.
            is_bytes = all(character in _BYTE_OF for character in token)
            self._bytes[index] = bytes(map(_BYTE_OF.__getitem__, token)) if is_bytes else token.encode()
        return self._bytes[index]

    def pieces(self, count: int) -> list[bytes]:
        """Return the bytes of the first `count` ids; none for those that text is never encoded to."""
        return [b"" if index in self._controls else self.piece(index) for index in range(count)]


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
