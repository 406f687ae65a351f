"""What typed answers say about scenes: which things, and the value of every property of each, for batches.

The rules are those of `questions.text.typed`, for B scenes of N places; R is the number of `typed.ROLES`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.nano.questions.choices import Relations, reading_order
from bench.nano.questions.layout import COORD, SIZE, counted, number, only
from bench.nano.questions.typed.choices import Choice
from bench.nano.questions.typed.tables import BARE, BOX, COUNT, KIND, LEFT, LIST, NAME, OUTER, SCALAR, Values
from bench.nano.scenes.batched.compose import Scenes

POINT, TEXT, AREA = range(3)
"""A coordinate pair, a row of values, or a coordinate pair and a size."""
_PLACE_ODDS = (0.5, 0.8)  # a place is a point, a zone of the image, or a box
_OUTER_ODDS = (0.25, 0.75)  # what is outermost is told by a point, its name, or a box
_ZONES = 3


@dataclass(frozen=True)
class Told:
    count: Tensor  # Items, [B]; one where it is about one thing
    rows: Tensor  # Of the values of every property of every item, [B, N, R]
    type: Tensor  # POINT or AREA where a property is told by numbers, else TEXT, [B, R]
    seen: Tensor  # Of which instance these are, [B, N, R]


class Teller:
    def __init__(self, values: Values, colours: Tensor) -> None:
        self._values, self._colours = values, colours

    def __call__(self, scenes: Scenes, relations: Relations, choice: Choice) -> Told:
        places, count = _items(scenes, choice)
        empty = ~choice.match.any(1) & choice.single
        rows = torch.cat((self._of_items(scenes, choice, places, empty), self._sides(scenes, relations, choice)), 2)
        values, device = self._values, rows.device
        # Of nothing there is no more to tell than that there is none of it.
        kept = (rows == values.number) | (rows == values.false)
        rows = torch.where(empty[:, None, None] & ~kept, number(values.null, device), rows)
        outer = choice.outer[:, None].expand(-1, places.shape[1], -1)
        seen = torch.cat((places[..., None].expand(-1, -1, LEFT), outer), 2)
        return Told(count, rows, _types(choice, empty), seen)

    def _of_items(self, scenes: Scenes, choice: Choice, places: Tensor, empty: Tensor) -> Tensor:
        """Rows of what is told of one thing by itself, [B, N, LEFT]."""
        values, device = self._values, places.device
        kind = scenes.labels.gather(1, places)
        many = (scenes.labels[:, None, :] == kind[..., None]).sum(2)
        many = torch.where(choice.counts_all[:, None], choice.match.sum(1)[:, None], many)
        centre = scenes.boxes[counted(len(places), device)[:, None], places, :2]
        zone = (centre * _ZONES).long().clamp(0, _ZONES - 1)
        null = number(values.null, device).expand_as(kind)
        columns = [
            torch.where(kind >= 0, values.name + kind, null),
            values.number + many * ~empty[:, None],
            values.false + (~empty)[:, None].long().expand_as(kind),
            values.colour + self._colours[kind],
            null,  # a box is no text
            values.zone + zone[..., 1] * _ZONES + zone[..., 0],
        ]
        return torch.stack(columns, 2)

    def _sides(self, scenes: Scenes, relations: Relations, choice: Choice) -> Tensor:
        """Rows of names of what is beside a thing, or outermost of all, [B, N, R - LEFT]."""
        outer = scenes.labels.gather(1, choice.outer)
        beside = relations.nearest[counted(len(outer), outer.device), :, choice.target]
        beside = torch.where((choice.about == KIND)[:, None], beside, outer[:, :4])
        kind = torch.cat((beside, outer[:, 4:]), 1)
        rows = torch.where(kind >= 0, self._values.name + kind, number(self._values.null, kind.device))
        return rows[:, None].expand(-1, scenes.labels.shape[1], -1)


def _items(scenes: Scenes, choice: Choice) -> tuple[Tensor, Tensor]:
    """Places of the items in their order, [B, N], and how many of them there are, [B]."""
    labels, match = scenes.labels, choice.match
    order = reading_order(scenes.boxes, match)
    ranked = labels.gather(1, order)
    again = (ranked[:, :, None] == ranked[:, None, :]).tril(-1).any(2)
    of_kinds = ((choice.form == LIST) & choice.has(COUNT)) | ((choice.form == BARE) & choice.has(NAME))
    wanted = match.gather(1, order) & ~(again & of_kinds[:, None])
    order = order.gather(1, (~wanted).int().argsort(dim=1, stable=True))
    places = torch.where(choice.single[:, None], choice.target[:, None], order)
    return places, torch.where(choice.single, number(1, labels.device), wanted.sum(1))


def _types(choice: Choice, empty: Tensor) -> Tensor:
    batch, device = len(empty), empty.device

    def drawn(odds: tuple[float, float]) -> Tensor:
        share = torch.rand(batch, device=device)
        return (share >= odds[0]).long() + (share >= odds[1]).long()

    text, area, point = (number(kind, device).expand(batch) for kind in (TEXT, AREA, POINT))
    where = torch.where((choice.form == SCALAR) | (choice.form == BARE), point, drawn(_PLACE_ODDS))
    outer = torch.where(choice.about == OUTER, drawn(_OUTER_ODDS), text)
    types = torch.stack([*[text] * BOX, area, where, *[outer] * choice.outer.shape[1]], 1)
    return torch.where(empty[:, None], text[:, None], types)


def natives(scenes: Scenes, type_: Tensor, instance: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of cells: ids [B, C, 3] and values [B, C, 3, 2]; cells of text have none. `type_`: of the
    cells, [B, C]; `instance`: that they speak of, [B, C]; `there`: which cells there are, [B, C].
    """
    scene = counted(len(instance), instance.device)[:, None]
    box = scenes.boxes[scene, instance]
    area = type_ == AREA
    place = torch.where(area[..., None], box[..., :2], scenes.points[scene, instance])
    coord, size = only(there & (type_ != TEXT), COORD), only(there & area, SIZE)
    x, y = place[..., :1].expand_as(place), place[..., 1:].expand_as(place)
    return torch.stack((coord, coord, size), 2), torch.stack((x, y, box[..., 2:]), 2)
