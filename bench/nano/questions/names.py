"""Token tables of names in all forms and of short answers, and random choice among them."""

import random
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from bench.nano.questions import mix
from bench.nano.questions.layout import NONE, padded
from bench.nano.questions.text import language
from bench.nano.questions.text.colours import COLOUR_NOUNS
from bench.nano.questions.text.language import EVERYTHING
from bench.nano.questions.text.typed import GROUPS
from bench.nano.scenes.english import article, pluralize
from bench.nano.scenes.objects import COLOURS, load_objects

NAME_TOKENS = 7
"""Longer synonyms and unknown words are left out of training: a question has room for two names and an answer."""
_NONSENSE_WORDS = 1024

Encode = Callable[[str], list[int]]


class Names:
    """Names of objects, unknown words, nouns that have a colour, and words for groups.

    `ids` [names, 3, W]: singular, plural, singular with its article, each after a space. `has_singular` [names].
    """

    def __init__(self, encode: Encode, rng: random.Random, device: torch.device) -> None:
        known = [list(_short(zip(o.names, o.plurals, strict=True), encode)) for o in load_objects()]
        for item, pairs in zip(load_objects(), known, strict=True):
            if not pairs or pairs[0][0] != item.name:
                raise ValueError(f"{item.name!r} is longer than {NAME_TOKENS} tokens")
        words = list(_short(((word, pluralize(word)) for word in language.unknown_words("train")), encode))
        nonsense = [language.nonsense_word(rng, "train") for _ in range(_NONSENSE_WORDS)]
        invented = list(_short(((word, pluralize(word)) for word in nonsense), encode))
        nouns = [(noun, noun) for noun in COLOUR_NOUNS]
        pairs = [*(pair for names in known for pair in names), *words, *invented, *nouns, *GROUPS]
        rows = [[encode(" " + form) for form in _forms(pair)] for pair in pairs]
        width = max(len(ids) for row in rows for ids in row)
        self.ids = torch.stack([padded(row, device, width) for row in rows])
        self.has_singular = torch.tensor([not language.has_no_singular(pair) for pair in pairs], device=device)
        sizes = torch.tensor([len(names) for names in known])
        self._first, self._synonyms = (sizes.cumsum(0) - sizes).to(device), (sizes - 1).to(device)
        self._words, self._invented = (int(sizes.sum()), len(words)), (int(sizes.sum()) + len(words), len(invented))
        self.nouns = sum(self._invented)
        self.groups = self.nouns + len(nouns)

    def __call__(self, kind: Tensor) -> Tensor:
        """Call every kind [...] by a random name, NONE by a word that names nothing: rows of the table."""
        synonyms = self._synonyms[kind.clamp(min=0)]
        other = 1 + random_below(synonyms)
        synonym = (torch.rand(kind.shape, device=kind.device) >= language.NAME_SHARE) & (synonyms > 0)
        known = self._first[kind.clamp(min=0)] + other * synonym
        return torch.where(kind == NONE, self._unknown(kind), known)

    def _unknown(self, like: Tensor) -> Tensor:
        ranges = (self._words, self._invented)
        word, invented = (first + torch.randint(count, like.shape, device=like.device) for first, count in ranges)
        return torch.where(torch.rand(like.shape, device=like.device) < mix.NONSENSE_SHARE, invented, word)

    @property
    def longest(self) -> tuple[int, ...]:
        return tuple((self.ids != NONE).sum(-1).amax(0).tolist())


def random_below(count: Tensor) -> Tensor:
    """Draw a whole number from 0 to `count - 1` for every count; 0 where the count is 0."""
    drawn = (torch.rand(count.shape, device=count.device) * count).long()
    # A product can round up to the count.
    return torch.minimum(drawn, (count - 1).clamp(min=0))


def _forms(pair: tuple[str, str]) -> tuple[str, str, str]:
    singular, plural = pair
    single = singular if language.has_no_singular(pair) else f"{article(singular)} {singular}"
    return singular, plural, single


def _short(pairs: Iterable[tuple[str, str]], encode: Encode) -> Iterator[tuple[str, str]]:
    for pair in pairs:
        if all(len(encode(" " + word)) <= NAME_TOKENS for word in pair):
            yield pair


NUMBERS = 64


class Answers:
    """Every short answer. `ids`: [answers, W]; the other attributes are rows of it."""

    def __init__(self, encode: Encode, device: torch.device) -> None:
        objects = load_objects()
        texts = [*map(str, range(NUMBERS)), "No", "Yes", "no", "yes", "Nothing", EVERYTHING, *COLOURS]
        self.number, self.no_yes, self.nothing = 0, NUMBERS, NUMBERS + 4
        self.everything, self.colour, self.name = NUMBERS + 5, NUMBERS + 6, len(texts)
        self.plural = self.name + len(objects)
        texts += [*(item.name for item in objects), *(item.plural for item in objects)]
        self.ids = padded([encode(text) for text in texts], device)

    def respelled(self, answer: Tensor) -> Tensor:
        """Spell one "Yes" or "No" in eight in lower case: users list choices so, and only their odds are compared."""
        said = (answer == self.no_yes) | (answer == self.no_yes + 1)
        lower = torch.rand(answer.shape, device=answer.device) < mix.LOWER_CASE_SHARE
        return answer + 2 * (said & lower).long()

    @property
    def longest(self) -> int:
        return self.ids.shape[1]

    @property
    def longest_fixed(self) -> int:
        return int((self.ids[: self.name] != NONE).sum(1).max())
