"""Token tables of the names of properties that `questions.text.properties` lists."""

import random
import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bench.nano.questions.layout import NONE, padded, scalar
from bench.nano.questions.names import Encode, random_below
from bench.nano.questions.text import language, properties
from bench.nano.questions.text.properties import MEANINGS, MENTIONS
from bench.nano.scenes.english import pluralize
from bench.nano.scenes.objects import load_objects

_RANDOM_NAMES, _PAIRS = 4000, 2000  # Names that say nothing: invented, and two of the others joined
_RANDOM_SHARE = 0.5  # of names that say nothing: these
_NAMES_OF_KIND = 2
_UNKNOWN_NAMES = 140
# At inference the model itself chooses among the spellings of a name.
_WORDS_SHARE, _SPLIT_SHARE = 0.25, 0.15


class PropertyNames:
    """Rows of names of properties. `ids` [rows, W]."""

    def __init__(self, encode: Encode, rng: random.Random, device: torch.device) -> None:
        self._encode, self._rng, self._device = encode, rng, device
        lots = [properties.variants(properties.names(meaning, "train")) for meaning in MEANINGS]
        lots.append(tuple(self._meaningless()))
        rows = [self._spelled(name) for lot in lots for name in lot]
        self._sizes = torch.tensor(list(map(len, lots)), device=device)
        self._starts = self._sizes.cumsum(0) - self._sizes
        self._random = len(lots) - 1
        self._mentions = len(rows)
        rows += self._mentioning()
        self.ids = padded(rows, device)

    def __call__(self, meaning: Tensor) -> Tensor:
        """Draw a row for each place of `MEANINGS`, [...]."""
        plain = meaning == MEANINGS.index("plain")
        invented = plain & (torch.rand(meaning.shape, device=self._device) < _RANDOM_SHARE)
        lot = torch.where(invented, scalar(self._random, self._device), meaning)
        return self._starts[lot] + random_below(self._sizes[lot])

    def mention(self, meaning: Tensor, kind: Tensor) -> Tensor:
        """Draw a row that mentions a kind, NONE for one that is in no picture; `meaning` is one of `MENTIONS`."""
        template = self._template_starts[meaning] + random_below(self._template_sizes[meaning])
        called = self._kind_starts[kind] + random_below(self._kind_sizes[kind])
        return self._mentions + template * self._called + called

    def _meaningless(self) -> Iterator[str]:
        for _ in range(_RANDOM_NAMES):
            yield properties.random_name(self._rng, "train")
        plain = properties.names("plain", "train")
        for _ in range(_PAIRS):
            name = "_".join(self._rng.sample(plain, 2))
            yield properties.styled(name, properties.random_style(self._rng))

    def _mentioning(self) -> list[list[int]]:
        """Return rows by template and by name of an object; the style is drawn for each."""
        # A box and a present are things too, but not as names of properties.
        words = [word for word in language.unknown_words("train") if word not in properties.known()]
        unknown = self._rng.sample(words, _UNKNOWN_NAMES)
        of_kinds = [
            [pair for pair in zip(item.names, item.plurals, strict=True) if pair[0] not in properties.known()]
            for item in load_objects()
        ]
        # NONE is the last place of a table.
        of_kinds = [*(pairs[:_NAMES_OF_KIND] for pairs in of_kinds), [(word, pluralize(word)) for word in unknown]]
        assert NONE == -1
        sizes = torch.tensor(list(map(len, of_kinds)))
        self._kind_sizes, self._kind_starts = sizes.to(self._device), (sizes.cumsum(0) - sizes).to(self._device)
        called = [pair for pairs in of_kinds for pair in pairs]
        self._called = len(called)
        templates = [properties.mentions(meaning, "train") if meaning in MENTIONS else () for meaning in MEANINGS]
        counts = torch.tensor(list(map(len, templates)))
        self._template_sizes = counts.to(self._device)
        self._template_starts = (counts.cumsum(0) - counts).to(self._device)
        return [self._mention(template, pair) for lot in templates for template in lot for pair in called]

    def _mention(self, template: str, pair: tuple[str, str]) -> list[int]:
        name = properties.mention(template, *pair)
        return self._spelled(properties.styled(name, properties.random_style(self._rng)))

    def _spelled(self, name: str) -> list[int]:
        """Spell a name as the tokenizer does, word by word, or cut anywhere."""
        share = self._rng.random()
        if share < _WORDS_SHARE:
            pieces: Sequence[str] = re.findall(r"[A-Z]?[^\W_A-Z]*[\W_]?|.", name)
        elif share < _WORDS_SHARE + _SPLIT_SHARE:
            cut = self._rng.randrange(len(name))
            pieces = (name[:cut], name[cut:])
        else:
            pieces = (name,)
        return [id_ for piece in pieces for id_ in self._encode(piece)]
