"""Topics of typed questions and their true values, for batches.

The rules are those of `questions.text.typed`, for B scenes of N places; R is the number of `typed.ROLES`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.nano.questions import mix
from bench.nano.questions.choices import Relations, chance, reading_order, weighted_choice
from bench.nano.questions.layout import COORD, NONE, SIZE, arange, masked, scalar
from bench.nano.questions.names import random_below
from bench.nano.questions.text import typed
from bench.nano.questions.typed.tables import About, Form, Property, Values, colours_of_kinds, groups_of_kinds, odds
from bench.nano.scenes.batched.compose import Scenes
from bench.nano.scenes.batched.painting import constant

PROPERTIES = 4
"""Most properties of an object."""
_LISTED_PROPERTIES = 3
LARGER = math.log(typed.CLEARLY_LARGEST)
"""Least difference between the logarithms of the areas of what is clearly the largest and the next."""


@dataclass(frozen=True)
class TypedTopic:
    form: Tensor  # A `Form`, [B]
    about: Tensor  # An `About`, [B]
    kind: Tensor  # Asked for, NONE for an unknown word, [B]; also where it is about something else
    group: Tensor  # Asked for, [B]; likewise
    match: Tensor  # The instances that are meant, [B, N]
    target: Tensor  # The largest of them, [B]
    outer: Tensor  # The leftmost, rightmost, topmost, lowest, largest and smallest instance of all, [B, 6]
    roles: Tensor  # The properties in their order, [B, PROPERTIES]
    properties: Tensor  # How many of `roles` are used, [B]
    wrapped: Tensor  # Whether a list is the value of a property, [B]
    counted: Tensor  # Whether a list that is has its length before it, [B]

    @property
    def single(self) -> Tensor:
        return self.form <= Form.OBJECT

    @property
    def objects(self) -> Tensor:
        """1 where the answer is made of objects, 0 where of values, [B]."""
        return ((self.form == Form.OBJECT) | (self.form == Form.LIST)).long()

    @property
    def used(self) -> Tensor:
        """Which places of `roles` are used, [B, PROPERTIES]."""
        return arange(PROPERTIES, self.roles.device) < self.properties[:, None]

    def has(self, role: int) -> Tensor:
        return ((self.roles == role) & self.used).any(1)

    @property
    def counts_all(self) -> Tensor:
        """Whether a count is of everything that is meant: nothing was asked for or named before it, [B]."""
        place = arange(PROPERTIES, self.roles.device)
        name, count = (
            torch.where((self.roles == role) & self.used, place, scalar(PROPERTIES, place.device)).amin(1)
            for role in (Property.NAME, Property.COUNT)
        )
        return self.single & (self.about != About.KIND) & (count < name)


class TopicChooser:
    def __init__(self, device: torch.device) -> None:
        self.colours = colours_of_kinds(device)
        self._members, self._unclear = groups_of_kinds(device)
        self._forms = torch.tensor(mix.FORM_ODDS, device=device)
        self._abouts = torch.tensor(mix.ABOUT_ODDS, device=device)
        self._odds = odds(device)

    def __call__(self, scenes: Scenes, relations: Relations, kind: Tensor) -> TypedTopic:
        """Choose for every scene; `kind` [B] is what may be asked for."""
        labels, device = scenes.labels, scenes.labels.device
        there = labels >= 0
        form = weighted_choice(torch.ones_like(self._forms, dtype=torch.bool).expand(len(labels), -1), self._forms)
        about = weighted_choice(self._abouts[form] > 0, self._abouts[form])
        askable = ~self._unclear[:, labels].any(2).T  # [B, groups]
        present = self._members[:, labels].any(2).T
        group = weighted_choice(askable, torch.where(present, 1.0, mix.ABSENT_GROUP_ODDS))
        of_group = (about == About.GROUP) | (about == About.CALLED)
        grouped = of_group & askable.any(1)
        about = torch.where(of_group & ~grouped, scalar(About.SCENE, device), about)
        alike = (labels == kind[:, None]) & (kind >= 0)[:, None]
        member = self._members[group[:, None], labels] & there
        match = torch.where((about == About.KIND)[:, None], alike, torch.where(grouped[:, None], member, there))
        area = scenes.boxes[..., 2:].prod(2).clamp(min=1e-9).log()
        target, clear = first_place(area, match, LARGER)
        # A property can ask for the largest of a group only where there is one, or none of them.
        vague = (about == About.CALLED) & (form == Form.OBJECT) & match.any(1) & ~clear
        about = torch.where(vague, scalar(About.SCENE, device), about)
        match = torch.where(vague[:, None], there, match)
        of_all = first_place(area, there, LARGER)
        target, clear = (torch.where(vague, all_, one) for all_, one in zip(of_all, (target, clear), strict=True))
        outer, outermost = self._outer(scenes, area)
        valid = self._valid(labels, relations, about, match, target, clear, outermost)
        single = form <= Form.OBJECT
        valid = torch.where(single[:, None], valid, self._listed(labels, match))
        roles, properties = self._roles(form, about, valid)
        wrapped = (about == About.CALLED) | ~chance(mix.TOP_LIST_SHARE, form.shape, device)
        count_first = chance(mix.COUNTED_LIST_SHARE, form.shape, device)
        return TypedTopic(form, about, kind, group, match, target, outer, roles, properties, wrapped, count_first)

    @staticmethod
    def _outer(scenes: Scenes, area: Tensor) -> tuple[Tensor, Tensor]:
        """Find the leftmost, rightmost, topmost, lowest, largest and smallest, and tell whether they are clearly so."""
        x, y = scenes.boxes[..., 0], scenes.boxes[..., 1]
        values = torch.stack((-x, x, -y, y, area, -area), 1)
        margins = constant((*[typed.CLEARLY_OUTERMOST] * 4, *[LARGER] * 2), torch.float32, area.device)
        return first_place(values, (scenes.labels >= 0)[:, None], margins)

    def _valid(
        self,
        labels: Tensor,
        relations: Relations,
        about: Tensor,
        match: Tensor,
        target: Tensor,
        clear: Tensor,
        outermost: Tensor,
    ) -> Tensor:
        """Which properties of one thing have a clear value, [B, R]."""
        scene = arange(len(labels), labels.device)
        of_kind, empty = about == About.KIND, ~match.any(1)
        known = clear | empty
        named = known | of_kind
        coloured = (self.colours[labels[scene, target]] != NONE) & (clear | of_kind) & ~empty
        sided = torch.where(of_kind[:, None], relations.clear[scene, :, target] & ~empty[:, None], outermost[:, :4])
        columns = [named, torch.ones_like(empty), of_kind, coloured, known, known, *sided.unbind(1)]
        return torch.stack([*columns, outermost[:, 4], outermost[:, 5]], 1)

    def _listed(self, labels: Tensor, match: Tensor) -> Tensor:
        """Which properties of several things have a clear value, [B, R]."""
        yes, no = torch.ones_like(match[:, 0]), torch.zeros_like(match[:, 0])
        coloured = (~match | (self.colours[labels] != NONE)).all(1)
        known: dict[int, Tensor] = {
            Property.NAME: yes,
            Property.COUNT: yes,
            Property.COLOUR: coloured,
            Property.BOX: yes,
            Property.WHERE: yes,
        }
        return torch.stack([known.get(role, no) for role in range(len(typed.ROLES))], 1)

    def _roles(self, form: Tensor, about: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Choose properties in an order, those of larger odds earlier."""
        of_list = form == Form.LIST
        named_list = of_list & (about != About.KIND)
        first = (about == About.CALLED) & (form == Form.OBJECT) | named_list & chance(
            mix.NAME_FIRST_SHARE, form.shape, form.device
        )
        role = arange(valid.shape[1], valid.device)
        valid = valid & ~((role == Property.COUNT) & (named_list & ~first)[:, None])
        rate = self._odds[form, about] * valid
        rings = torch.rand(rate.shape, device=rate.device).clamp(min=1e-30).log().neg() / rate
        rings = torch.where((role == Property.NAME) & first[:, None] & (rate > 0), -1.0, rings)
        order = rings.argsort(1)[:, :PROPERTIES]
        most = torch.where(of_list, scalar(_LISTED_PROPERTIES, form.device), scalar(PROPERTIES, form.device))
        alone = (form == Form.SCALAR) | (form == Form.BARE)
        most = torch.minimum((rate > 0).sum(1), torch.where(alone, scalar(1, form.device), most))
        return order, 1 + random_below(most)


def first_place(values: Tensor, match: Tensor, margin: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return the place of the largest of `values` [..., N], and whether it exceeds the next by a margin."""
    best = torch.where(match, values, -torch.inf).topk(2, -1)
    return best.indices[..., 0], match.any(-1) & (best.values[..., 0] >= best.values[..., 1] + margin)


POINT, TEXT, AREA = range(3)
"""A coordinate pair, a row of values, or a coordinate pair and a size."""
_ZONES = 3


@dataclass(frozen=True)
class TypedValues:
    count: Tensor  # Items, [B]; one where it is about one thing
    rows: Tensor  # Of the values of every property of every item, [B, N, R]
    type: Tensor  # POINT or AREA where the value is numbers, else TEXT, [B, R]
    seen: Tensor  # Of which instance these are, [B, N, R]


class TypedTruth:
    def __init__(self, values: Values, colours: Tensor) -> None:
        self._values, self._colours = values, colours

    def __call__(self, scenes: Scenes, relations: Relations, topic: TypedTopic) -> TypedValues:
        places, count = _items(scenes, topic)
        empty = ~topic.match.any(1) & topic.single
        rows = torch.cat((self._of_items(scenes, topic, places, empty), self._sides(scenes, relations, topic)), 2)
        values, device = self._values, rows.device
        # Of nothing there is no more to tell than that there is none of it.
        kept = (rows == values.number) | (rows == values.false)
        rows = torch.where(empty[:, None, None] & ~kept, scalar(values.null, device), rows)
        outer = topic.outer[:, None].expand(-1, places.shape[1], -1)
        seen = torch.cat((places[..., None].expand(-1, -1, Property.LEFT), outer), 2)
        return TypedValues(count, rows, _types(topic, empty), seen)

    def _of_items(self, scenes: Scenes, topic: TypedTopic, places: Tensor, empty: Tensor) -> Tensor:
        """Rows of the values of single things, [B, N, Property.LEFT]."""
        values, device = self._values, places.device
        kind = scenes.labels.gather(1, places)
        many = (scenes.labels[:, None, :] == kind[..., None]).sum(2)
        many = torch.where(topic.counts_all[:, None], topic.match.sum(1)[:, None], many)
        centre = scenes.boxes[arange(len(places), device)[:, None], places, :2]
        null = scalar(values.null, device).expand_as(kind)
        columns = [
            torch.where(kind >= 0, values.name + kind, null),
            values.number + many * ~empty[:, None],
            values.false + (~empty)[:, None].long().expand_as(kind),
            values.colour + self._colours[kind],
            null,  # a box is no text
            values.zone + zone_of(centre),
        ]
        return torch.stack(columns, 2)

    def _sides(self, scenes: Scenes, relations: Relations, topic: TypedTopic) -> Tensor:
        """Rows of names of what is beside a thing, or outermost of all, [B, N, R - Property.LEFT]."""
        outer = scenes.labels.gather(1, topic.outer)
        beside = relations.nearest[arange(len(outer), outer.device), :, topic.target]
        beside = torch.where((topic.about == About.KIND)[:, None], beside, outer[:, :4])
        kind = torch.cat((beside, outer[:, 4:]), 1)
        rows = torch.where(kind >= 0, self._values.name + kind, scalar(self._values.null, kind.device))
        return rows[:, None].expand(-1, scenes.labels.shape[1], -1)


def _items(scenes: Scenes, topic: TypedTopic) -> tuple[Tensor, Tensor]:
    """Places of the items in their order, [B, N], and how many of them there are, [B]."""
    labels, match = scenes.labels, topic.match
    order = reading_order(scenes.boxes, match)
    ranked = labels.gather(1, order)
    again = (ranked[:, :, None] == ranked[:, None, :]).tril(-1).any(2)
    of_kinds = ((topic.form == Form.LIST) & topic.has(Property.COUNT)) | (
        (topic.form == Form.BARE) & topic.has(Property.NAME)
    )
    wanted = match.gather(1, order) & ~(again & of_kinds[:, None])
    order = order.gather(1, (~wanted).int().argsort(dim=1, stable=True))
    places = torch.where(topic.single[:, None], topic.target[:, None], order)
    return places, torch.where(topic.single, scalar(1, labels.device), wanted.sum(1))


def zone_of(centre: Tensor) -> Tensor:
    """Return places in the flattened `language.ZONES` of centres [..., 2]."""
    zone = (centre * _ZONES).long().clamp(0, _ZONES - 1)
    return zone[..., 1] * _ZONES + zone[..., 0]


def _types(topic: TypedTopic, empty: Tensor) -> Tensor:
    batch, device = len(empty), empty.device

    def drawn(odds: tuple[float, float]) -> Tensor:
        share = torch.rand(batch, device=device)
        return (share >= odds[0]).long() + (share >= odds[1]).long()

    text, area, point = (scalar(kind, device).expand(batch) for kind in (TEXT, AREA, POINT))
    where = torch.where((topic.form == Form.SCALAR) | (topic.form == Form.BARE), point, drawn(mix.WHERE_ODDS))
    outer = torch.where(topic.about == About.OUTER, drawn(mix.OUTER_ODDS), text)
    types = torch.stack([*[text] * Property.BOX, area, where, *[outer] * topic.outer.shape[1]], 1)
    return torch.where(empty[:, None], text[:, None], types)


def natives(scenes: Scenes, type_: Tensor, instance: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """Return coordinates and sizes of cells, ids [B, C, 3] and values [B, C, 3, 2]; cells of text have none.

    `type_`, the `instance` they describe, and whether a cell is `there`: [B, C] each.
    """
    scene = arange(len(instance), instance.device)[:, None]
    box = scenes.boxes[scene, instance]
    area = type_ == AREA
    place = torch.where(area[..., None], box[..., :2], scenes.points[scene, instance])
    coord, size = masked(there & (type_ != TEXT), COORD), masked(there & area, SIZE)
    x, y = place[..., :1].expand_as(place), place[..., 1:].expand_as(place)
    return torch.stack((coord, coord, size), 2), torch.stack((x, y, box[..., 2:]), 2)
