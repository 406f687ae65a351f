"""Wording of questions: templates cut at their gaps, filled with names by table look-up.

Words keep the space before them, so that a question is a concatenation of pieces and names: no text is tokenised
during training.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from bench.nano.questions import mix
from bench.nano.questions.layout import NONE, masked, padded
from bench.nano.questions.names import Encode, Names, random_below
from bench.nano.questions.text import colours, language, relations, typed

DIRECTIONS: tuple[relations.Direction, ...] = get_args(relations.Direction)
COMPARISONS: tuple[relations.Comparison, ...] = get_args(relations.Comparison)
_GAP = re.compile(r" \{([012])\}")  # names bring the space before them
_SINGULAR = 0
_GAPS = 2


@dataclass(frozen=True)
class Group:
    """Wordings of one question."""

    templates: Sequence[str]  # Each as often as it is to be taken
    plural_only: Sequence[str]  # Those for a first name that has no singular
    forms: bool = True  # True if {0}, {1}, {2} are forms of one name, False if they are the singulars of several
    mark: bool = True  # Whether a question mark can be dropped


def _group(templates: Iterable[str], forms: bool = True) -> Group:
    chosen = tuple(templates)
    return Group(chosen, chosen, forms)


def _groups() -> dict[str, Group]:
    phrases = [template for template, weight in language.PHRASES for _ in range(weight)]
    exists = language.EXISTENCE_QUESTIONS
    places = relations.PLACE_QUESTIONS
    return {
        "phrase": Group(phrases, phrases, mark=False),
        "count": _group(language.COUNT_QUESTIONS),
        "existence": Group(exists, [template for template in exists if "{1}" in template]),
        "total": _group(language.TOTAL_QUESTIONS),
        "list": _group((*language.LIST_QUESTIONS, *language.LATER_LIST_QUESTIONS)),
        "colour": _group(colours.COLOUR_QUESTIONS),
        "point": _group(language.REFERENCE_QUESTIONS["point"]),
        "box": _group(language.REFERENCE_QUESTIONS["box"]),
        **{f"typed {name}": _typed(templates) for name, templates in typed.TYPED_QUESTIONS.items()},
        **{f"relation {d}": _group(relations.RELATION_QUESTIONS[d], forms=False) for d in DIRECTIONS},
        **{f"place {d}": Group(places[d], [_are(t) for t in places[d]], forms=False) for d in DIRECTIONS},
        **{f"comparison {c}": _group(relations.COMPARISON_QUESTIONS[c], forms=False) for c in COMPARISONS},
    }


def _typed(templates: Sequence[str]) -> Group:
    """For scissors, which have no singular: what is said of several, or of nothing by name."""
    plural = [template for template in templates if "{0}" not in template and "{2}" not in template]
    return Group(templates, plural or templates)


def _are(template: str) -> str:
    return "are " + template.removeprefix("is ") if template.startswith("is ") else template


@dataclass(frozen=True)
class _Cut:
    """A template in pieces: up to three texts, two gaps (thing, form), and how it ends with and without its mark."""

    pieces: list[list[int]]
    things: list[int]
    forms: list[int]
    ends: list[list[int]]


def _cut(template: str, group: Group, encode: Encode) -> _Cut:
    text = f" {template.removesuffix('?')}"
    pieces = _GAP.split(text)[::2]
    numbers = [int(found) for found in _GAP.findall(text)]
    if len(numbers) > _GAPS or "{" in "".join(pieces):
        raise ValueError(f"{template!r}: a template has up to {_GAPS} gaps with a space before each")
    things, forms = ([0] * len(numbers), numbers) if group.forms else (numbers, [_SINGULAR] * len(numbers))
    ends = [["?"], []] if template.endswith("?") else [[], ["."]]
    missing = _GAPS - len(numbers)
    return _Cut(
        [encode(piece) for piece in pieces] + [[]] * missing,
        things + [0] * missing,
        forms + [NONE] * missing,
        [encode("".join(end)) for end in (ends if group.mark else [[], []])],
    )


class Wording:
    """All templates of all groups; `group` numbers stand for their names."""

    def __init__(self, encode: Encode, names: Names, device: torch.device) -> None:
        self._names, groups = names, _groups()
        self.group: Mapping[str, int] = {name: number for number, name in enumerate(groups)}
        cuts: list[_Cut] = []
        lots: list[list[list[int]]] = [[], []]  # for names without and with a singular, by group
        for group in groups.values():
            for lot, templates in zip(lots, (group.plural_only, group.templates), strict=True):
                lot.append(list(range(len(cuts), len(cuts) + len(templates))))
                cuts += [_cut(template, group, encode) for template in templates]
        lengths = [_length(cut, names) for cut in cuts]
        self._longest = {
            name: max(lengths[i] for lot in lots for i in lot[number]) for name, number in self.group.items()
        }
        width = max(len(piece) for cut in cuts for piece in cut.pieces)
        self._pieces = torch.stack([padded(cut.pieces, device, width) for cut in cuts])
        self._things = torch.tensor([cut.things for cut in cuts], device=device)
        self._forms = torch.tensor([cut.forms for cut in cuts], device=device)
        self._ends = torch.stack([padded(cut.ends, device, 1) for cut in cuts])
        most = max(len(lot) for group in lots for lot in group)
        self._lots = torch.stack([padded(group, device, most) for group in lots])
        self._sizes = torch.tensor([[len(lot) for lot in group] for group in lots], device=device)

    def __call__(self, group: Tensor, first: Tensor, second: Tensor | None = None) -> Tensor:
        """Word questions at random. `group`: [R]; `first`: rows of names, [R]; anything where the group's templates
        have no gap; `second`: the same for the second name. Returns ids with gaps, [R, W].
        """
        singular = self._names.has_singular[first].long()
        template = self._lots[singular, group, random_below(self._sizes[singular, group])]
        things = torch.stack((first, first if second is None else second), 1).gather(1, self._things[template])
        forms = self._forms[template]
        words = self._names.ids[things, forms.clamp(min=0)]
        words = masked((forms != NONE)[..., None], words)  # [R, gaps, W]
        pieces = self._pieces[template]
        dropped = torch.rand(group.shape, device=group.device) < mix.DROPPED_MARK_SHARE
        end = self._ends[template, dropped.long()]
        return torch.cat((pieces[:, 0], words[:, 0], pieces[:, 1], words[:, 1], pieces[:, 2], end), 1)

    def longest(self, name: str) -> int:
        return max(length for group, length in self._longest.items() if group.startswith(name))


def _length(cut: _Cut, names: Names) -> int:
    gaps = sum(names.longest[form] for form in cut.forms if form != NONE)
    return sum(map(len, cut.pieces)) + gaps + max(map(len, cut.ends))
