"""Text to token ids and back, over the `tokenizers` library and a byte-level tokenizer.json.

What a user types is only ever text: the spelling of a special token is encoded letter by letter. On the way back every
id stands for bytes, so text can be given out as soon as its characters are whole, in time linear in its length.
"""

import codecs
import json
from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import decoders

from photonlite.errors import CheckpointError, PromptError

MAX_CHARACTERS = 8000
"""Longer texts are refused before they cost time; what fits the model is decided by its context length."""

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(_OTHERS)}
"""Byte-level vocabularies write a byte as one printable character (Radford et al., 2019, GPT-2)."""


class Tokenizer:
    """The tokenizer of one checkpoint.

    Args:
        path: tokenizer.json, of the byte-level kind.
        vocab_size: rows of the model's embedding; None skips the comparison.
        controls_to: added tokens with ids below this are control tokens, whether or not the file calls them special.
        control_ids: further ids that text never turns into.

    Raises:
        CheckpointError: the file is unreadable, of another kind, or has more tokens than the model.
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
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._writer = self._without_normalizer()
        self._pieces: dict[int, bytes] = {}

    def _without_normalizer(self) -> tokenizers.Tokenizer:
        """Give the tokenizer of what the model writes: only what people type is normalised."""
        if self._tokenizer.normalizer is None:
            return self._tokenizer
        writer = tokenizers.Tokenizer.from_str(json.dumps(json.loads(self._tokenizer.to_str()) | {"normalizer": None}))
        writer.encode_special_tokens = True
        return writer

    def _make_special(self, controls_to: int) -> frozenset[int]:
        """Make added tokens below an id special, and give the ids of all special ones."""
        added = self._tokenizer.get_added_tokens_decoder()
        plain = [token for index, token in added.items() if index < controls_to and not token.special]
        self._tokenizer.add_special_tokens(
            [tokenizers.AddedToken(token.content, normalized=token.normalized, special=True) for token in plain]
        )
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(index for index, token in added.items() if token.special)

    def encode(self, text: str) -> list[int]:
        """Turn what people type into ids; nothing is added around it and no control id comes out.

        Raises:
            PromptError: the text is blank, longer than `MAX_CHARACTERS`, no valid Unicode, or could only be written
                with a control id.
        """
        return self._encoded(self._tokenizer, text)

    def spell(self, text: str) -> list[int]:
        """Turn text into ids as the model writes it: a normalizer, which is for what people type, has no part in it.

        Raises:
            PromptError: as for `encode`.
        """
        return self._encoded(self._writer, text)

    def _encoded(self, tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
        if not isinstance(text, str):
            raise PromptError(f"the text is of type {type(text).__name__}: give a str")
        if not text.strip():
            raise PromptError("the text is empty: say what to look for or ask")
        if len(text) > MAX_CHARACTERS:
            raise PromptError(f"the text has {len(text)} characters: give at most {MAX_CHARACTERS}")
        try:
            text.encode()
        except UnicodeEncodeError as cause:
            raise PromptError(f"the text is not valid Unicode at character {cause.start}: remove that one") from cause
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        if not self._controls.isdisjoint(ids):
            spelled = self._tokenizer.id_to_token(min(self._controls.intersection(ids)))
            raise PromptError(f"the text holds {spelled!r}, which this model keeps for control: leave it out")
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Turn ids into text; special tokens and ids without a token vanish, broken UTF-8 becomes U+FFFD."""
        return b"".join(map(self.piece, ids)).decode(errors="replace")

    def piece(self, index: int) -> bytes:
        """Give the bytes that an id stands for: none for a special token or an id without a token."""
        if index not in self._pieces:
            token = None if index in self._special else self._tokenizer.id_to_token(index)
            self._pieces[index] = _spelled(token or "")
        return self._pieces[index]

    def pieces(self, count: int) -> list[bytes]:
        """Give the bytes of the first `count` ids; none for those that text never turns into."""
        return [b"" if index in self._controls else self.piece(index) for index in range(count)]


class Detokenizer:
    """Turns a stream of ids into text, piece by piece; the pieces joined are what `decode` gives for all ids.

    A character is given out once all its bytes have come, and never as a replacement for what is still to come.

    Args:
        tokenizer: of the checkpoint that writes the ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, index: int) -> str:
        """Take the next id and give the characters that it completes; often one word, sometimes none."""
        return self._decoder.decode(self._tokenizer.piece(index))

    def flush(self) -> str:
        """End the stream: give U+FFFD if a character stayed incomplete, else nothing; ready for another stream."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def _spelled(token: str) -> bytes:
    """Give the bytes of a token; one with characters outside the byte alphabet is plain text."""
    try:
        return bytes(_BYTE_OF[character] for character in token)
    except KeyError:
        return token.encode()
