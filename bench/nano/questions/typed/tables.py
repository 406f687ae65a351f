"""Token tables of typed answers: property names, values, JSON punctuation."""

import random
from enum import IntEnum

import torch
from torch import Tensor

from bench.nano.questions.layout import NONE, padded
from bench.nano.questions.mix import PROPERTY_ODDS
from bench.nano.questions.names import NUMBERS, Encode
from bench.nano.questions.text import properties, typed
from bench.nano.questions.text.colours import COLOUR_NOUNS
from bench.nano.questions.text.language import ZONES
from bench.nano.scenes.objects import COLOURS, load_objects

_INVENTED_NAMES = 60


class Property(IntEnum):
    """Places of `typed.ROLES`."""

    NAME, COUNT, PRESENT, COLOUR, BOX, WHERE, LEFT, RIGHT, ABOVE, BELOW, LARGEST, SMALLEST = range(12)


class Form(IntEnum):
    """A value alone; an object; a list of objects; a list of values."""

    SCALAR = 0
    OBJECT = 1
    LIST = 2
    BARE = 3


class About(IntEnum):
    """What an answer is about: the scene; a kind or a group that the question names; the outermost or largest things;
    a group that names a property.
    """

    SCENE = 0
    KIND = 1
    GROUP = 2
    OUTER = 3
    CALLED = 4


def odds(device: torch.device) -> Tensor:
    """Return odds of properties by form, by what they are about, and by role: [forms, abouts, R]."""
    rows = [[[float(one.get(role, 0)) for role in typed.ROLES] for one in form] for form in PROPERTY_ODDS]
    return torch.tensor(rows, device=device)


class Values:
    """Values that are text. `ids` [values, W]; `quoted` [values]; other attributes are first rows of a kind."""

    def __init__(self, encode: Encode, device: torch.device) -> None:
        plain = [*map(str, range(NUMBERS)), "false", "true", "null"]
        names = [item.name for item in load_objects()]
        texts = [*plain, *names, *COLOURS, *(zone for row in ZONES for zone in row)]
        self.ids = padded([encode(text) for text in texts], device)
        self.quoted = torch.arange(len(texts), device=device) >= len(plain)
        self.number, self.false, self.null, self.name = 0, NUMBERS, NUMBERS + 2, len(plain)
        self.colour, self.zone = self.name + len(names), self.name + len(names) + len(COLOURS)


class Keys:
    """Names of properties in lots: by role, outermost things, groups, lists, lists of groups, lists of kinds.
    `ids` [lots, most, W]; `sizes` [lots].
    """

    def __init__(self, encode: Encode, device: torch.device) -> None:
        lots = [typed.NAMES[role] for role in typed.ROLES]
        self.outer = len(lots)
        lots += [typed.OUTER_NAMES[role] for role in ("left", "right", "above", "below")]
        self.group = len(lots)
        lots += [(singular,) for singular, _ in typed.GROUPS]
        self.lists = len(lots)
        rng = random.Random(0)
        invented = tuple(properties.random_name(rng, "train") for _ in range(_INVENTED_NAMES))
        lots += [typed.LIST_NAMES[role] + invented for role in ("items", "names", "places")]
        self.groups = len(lots)
        lots += [(plural,) for _, plural in typed.GROUPS]
        self.kinds = len(lots)
        lots += [
            tuple(properties.mention(one, item.name, item.plural) for one in typed.KIND_LIST_NAMES)
            for item in load_objects()
        ]
        spelled = [[encode(name) for name in lot] for lot in lots]
        width, most = max(len(ids) for lot in spelled for ids in lot), max(map(len, lots))
        self.ids = torch.stack([padded([*lot, *[[]] * (most - len(lot))], device, width) for lot in spelled])
        self.sizes = torch.tensor(list(map(len, lots)), device=device)


def punctuation(encode: Encode, device: torch.device, *runs: str) -> Tensor:
    """Return a table of runs of JSON's punctuation, one token each [runs, 1]; an empty one has no id."""
    table = padded([encode(run) for run in runs], device, 1)
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
