"""Token tables of typed answers: property names, values, JSON punctuation, and odds."""

import torch
from torch import Tensor

from bench.nano.questions.layout import NONE, padded
from bench.nano.questions.names import NUMBERS, Encode
from bench.nano.questions.text import typed
from bench.nano.questions.text.colours import COLOUR_NOUNS
from bench.nano.questions.text.language import ZONES
from bench.nano.questions.text.typed import Role
from bench.nano.scenes.objects import COLOURS, load_objects

NAME, COUNT, PRESENT, COLOUR, BOX, WHERE, LEFT, RIGHT, ABOVE, BELOW, LARGEST, SMALLEST = range(len(typed.ROLES))
SCALAR, OBJECT, LIST, BARE = range(4)
"""A value alone; an object; a list of objects; a list of values."""
SCENE, KIND, GROUP, OUTER, CALLED = range(5)
"""What it is about: the image; a kind or a group that the question names; what is outermost or largest in the
image; a group by which a property is called."""

FORM_ODDS = (0.14, 0.46, 0.24, 0.16)
ABOUT_ODDS = (
    (0.35, 0.55, 0.10, 0.0, 0.0),
    (0.25, 0.45, 0.08, 0.12, 0.10),
    (0.45, 0.30, 0.15, 0.0, 0.10),
    (0.45, 0.35, 0.12, 0.0, 0.08),
)  # fmt: skip
"""By form: how often it is about what."""
_ODDS: dict[int, tuple[dict[Role, float], ...]] = {
    SCALAR: (
        {"count": 1, "name": 1, "box": 0.7, "where": 0.7},
        {"count": 1, "present": 1, "box": 1, "where": 1},
        {"count": 1, "name": 1, "box": 0.7, "where": 0.7},
        {},
        {},
    ),
    OBJECT: (
        {"name": 5, "count": 2, "colour": 2, "box": 3, "where": 3},
        {"name": 2, "count": 2, "present": 2, "colour": 1.5, "box": 3, "where": 3,
         "left": 0.3, "right": 0.3, "above": 0.3, "below": 0.3},
        {"name": 4, "count": 1.5, "colour": 1.5, "box": 3, "where": 3},
        {"count": 0.3, "left": 1, "right": 1, "above": 1, "below": 1, "largest": 1.5, "smallest": 1},
        {"name": 4, "count": 1.5, "colour": 1.5, "box": 3, "where": 3},
    ),
    LIST: (
        {"name": 4, "count": 1.5, "colour": 1, "box": 2, "where": 1},
        {"name": 1, "box": 2, "where": 1.5},
        {"name": 4, "count": 1.5, "colour": 1, "box": 2, "where": 1},
        {},
        {"name": 4, "count": 1.5, "colour": 1, "box": 2, "where": 1},
    ),
    BARE: (
        {"name": 3, "box": 1, "where": 1},
        {"box": 1, "where": 1},
        {"name": 3, "box": 1, "where": 1},
        {},
        {"name": 3, "box": 1, "where": 1},
    ),
}  # fmt: skip
"""By form and by what it is about: how often it has which properties."""


def odds(device: torch.device) -> Tensor:
    rows = [[[float(one.get(role, 0)) for role in typed.ROLES] for one in _ODDS[form]] for form in range(len(_ODDS))]
    return torch.tensor(rows, device=device)


class Values:
    """Every value that is text, without its quotes. `ids`: [values, W]; the other attributes are rows of it, the first
    of several; `quoted`: whether it is a string, [values].
    """

    def __init__(self, encode: Encode, device: torch.device) -> None:
        plain = [*map(str, range(NUMBERS)), "false", "true", "null"]
        names = [item.name for item in load_objects()]
        texts = [*plain, *names, *COLOURS, *(zone for row in ZONES for zone in row)]
        self.ids = padded([encode(text) for text in texts], device)
        self.quoted = torch.arange(len(texts), device=device) >= len(plain)
        self.number, self.false, self.null, self.name = 0, NUMBERS, NUMBERS + 2, len(plain)
        self.colour, self.zone = self.name + len(names), self.name + len(names) + len(COLOURS)


class Keys:
    """Names of properties: a table for each role, for outermost things, for groups, and for lists. `ids`: [lots, most,
    W]; `sizes`: names in each lot, [lots].
    """

    def __init__(self, encode: Encode, device: torch.device) -> None:
        lots = [typed.NAMES[role] for role in typed.ROLES]
        self.outer = len(lots)
        lots += [typed.OUTER_NAMES[typed.ROLES[role]] for role in (LEFT, RIGHT, ABOVE, BELOW)]
        self.group = len(lots)
        lots += [(singular,) for singular, _ in typed.GROUPS]
        self.lists = len(lots)
        lots += [typed.LIST_NAMES["items"], typed.LIST_NAMES["names"], typed.LIST_NAMES["places"]]
        self.groups = len(lots)
        lots += [(plural,) for _, plural in typed.GROUPS]
        spelled = [[encode(name) for name in lot] for lot in lots]
        width, most = max(len(ids) for lot in spelled for ids in lot), max(map(len, lots))
        self.ids = torch.stack([padded([*lot, *[[]] * (most - len(lot))], device, width) for lot in spelled])
        self.sizes = torch.tensor(list(map(len, lots)), device=device)


class Runs:
    """JSON's punctuation, a run of it a row."""

    def __init__(self, encode: Encode, device: torch.device) -> None:
        self._encode, self._device = encode, device

    def __call__(self, *runs: str) -> Tensor:
        """Return a table of runs [runs, W]; an empty one has no id."""
        table = padded([self._encode(run) for run in runs], self._device, 1)
        if table.shape[1] > 1:
            raise ValueError(f"runs of punctuation are single tokens, which one of {runs} is not")
        return table


def colours_of_kinds(device: torch.device) -> Tensor:
    """Return the colour of every kind, NONE where it has none, [kinds + 1]; the last row is of empty places."""
    table = torch.full((len(load_objects()) + 1,), NONE)
    for kinds in COLOUR_NOUNS.values():
        for kind, colour in kinds.items():
            table[kind] = COLOURS.index(colour)
    return table.to(device)


def groups_of_kinds(device: torch.device) -> tuple[Tensor, Tensor]:
    """Which kinds belong to a group, and which are debatable: bool [groups, kinds + 1]."""
    shape = len(typed.GROUPS), len(load_objects()) + 1
    member, unclear = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    for row, (word, _) in enumerate(typed.GROUPS):
        member[row, sorted(typed.members(word))] = True
        unclear[row, sorted(typed.unclear(word))] = True
    return member.to(device), unclear.to(device)
