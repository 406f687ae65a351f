"""Short answers as rows of one table: numbers, yes and no, names, colours."""

import torch
from torch import Tensor

from bench.nano.questions.layout import NONE, padded
from bench.nano.questions.names import Encode
from bench.nano.questions.text.reasoning import EVERYTHING
from bench.nano.scenes.objects import COLOURS, load_objects

NUMBERS = 32
_LOWER_SHARE = 0.12


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
        lower = torch.rand(answer.shape, device=answer.device) < _LOWER_SHARE
        return answer + 2 * (said & lower).long()

    @property
    def longest(self) -> int:
        return self.ids.shape[1]

    @property
    def longest_fixed(self) -> int:
        return int((self.ids[: self.name] != NONE).sum(1).max())
