"""Typed answers read back from their ids, and judged by the rules of `questions.text.typed`."""

import json
import re

from bench.nano.questions.layout import BOS, COORD, SIZE
from bench.nano.questions.text import language, typed
from bench.nano.questions.text.colours import COLOUR_NOUNS
from bench.nano.questions.text.language import centre_order
from bench.nano.questions.tokenizer import load_answer_tokenizer
from bench.nano.scenes.objects import index_of, load_objects
from tests.nano.questions.reading import TOKENIZER, words

_ANSWERS = load_answer_tokenizer()
ROLE_OF = {name: role for role, names in typed.NAMES.items() for name in names}
SIDE_OF = {name: role for role, names in typed.OUTER_NAMES.items() for name in names}
GROUP_OF = {word: pair[0] for pair in typed.GROUPS for word in pair}


def document(row):
    """The answer as JSON, numbers as {"at": [x, y]} or {"at": [x, y], "size": [w, h]}; and the text in between."""
    parts, text, at = [], [], []
    for id_, value in zip(row.answer, row.values, strict=True):
        if id_ in (COORD, SIZE):
            if text:
                parts.append(text)
            at.append(value[:1] if id_ == COORD else value)
            text = []
            continue
        if at:
            parts.append(_place(at))
        at = []
        if id_ != BOS:
            text.append(id_)
    tail = [_place(at)] if len(at) > 1 else []  # of what is cut one coordinate may be left
    pieces = [*parts, *([text] if text else []), *tail]
    spelled = "".join(piece if isinstance(piece, str) else TOKENIZER.decode(piece) for piece in pieces)
    return spelled, [piece for piece in pieces if not isinstance(piece, str)]


def _place(numbers):
    x, y, *size = numbers
    return json.dumps({"at": [x[0], y[0]]} | ({"size": size[0]} if size else {}))


def canonical(pieces):
    """Whether pieces of ids are those that the tokenizer makes of their text."""
    return all(_ANSWERS.encode(TOKENIZER.decode(piece)).ids == piece for piece in pieces)


_OPENED = [_ANSWERS.token_to_id(run) for run in ('"', '{"')]
_FIRST = [_ANSWERS.token_to_id(run) for run in ('":', '":[', "[")]


def joined(pieces):
    """Pieces in which a quote or a brace that was written apart belongs to the run before it, and how many were."""
    whole, apart = [], 0
    for piece in pieces:
        ids = []
        for id_ in piece:
            if ids and ids[-1] in _FIRST and id_ in _OPENED:
                run = TOKENIZER.decode([ids.pop(), id_])
                id_, apart = _ANSWERS.token_to_id(run), apart + 1
            ids.append(id_)
        whole.append(ids)
    return whole, apart


TEMPLATES = sorted(
    {t for group in typed.TYPED_QUESTIONS.values() for t in group}
    | {*language.COUNT_QUESTIONS, *language.EXISTENCE_QUESTIONS, *language.TOTAL_QUESTIONS},
    key=lambda template: -len(template),
)


def subject(text):
    """(None, None) for the image, ("group", word), or ("kind", class index or None) that a question asks about."""
    found = []
    for template in TEMPLATES:
        body = re.sub(r"\\{(\d)\\}", "(?P<gap>[^?.,]+)", re.escape(template.rstrip("?")), count=1)
        body = re.sub(r"\\{(\d)\\}", "[^?.,]+", body)
        if match := re.fullmatch(body + r"[?.]?", text):
            found.append(match.groupdict().get("gap"))
    assert found, text
    if None in found:
        return None, None
    for gap in found:
        bare = re.sub(r"^an? ", "", gap)
        if bare in GROUP_OF:
            return "group", GROUP_OF[bare]
        if bare in words()[0] | words()[1]:
            return "kind", index_of(bare)
    return "kind", None


class Truth:
    """One scene: places of what can be seen, in reading order."""

    def __init__(self, scenes, number):
        self.labels, self.boxes = scenes.labels[number].tolist(), scenes.boxes[number].tolist()
        self.points = scenes.points[number].tolist()
        there = [place for place, label in enumerate(self.labels) if label >= 0]
        self.all = [there[i] for i in centre_order([self.boxes[place][:2] for place in there])]

    def largest(self, places, sign=1):
        area = [self.boxes[place][2] * self.boxes[place][3] for place in places]
        ratio = typed.CLEARLY_LARGEST * (1 - 1e-5)
        values = area if sign > 0 else [1 / one for one in area]
        found = typed.clearly_first(values, ratio=ratio)
        return None if found is None else places[found]

    def outermost(self, role):
        if role in ("largest", "smallest"):
            return self.largest(self.all, 1 if role == "largest" else -1)
        axis, sign = {"left": (0, -1), "right": (0, 1), "above": (1, -1), "below": (1, 1)}[role]
        values = [sign * self.boxes[place][axis] for place in self.all]
        found = typed.clearly_first(values, margin=typed.CLEARLY_OUTERMOST - 1e-6)
        return None if found is None else self.all[found]

    def members(self, about):
        kind, what = about
        if kind == "group":
            assert not {self.labels[place] for place in self.all} & typed.unclear(what)
            return [place for place in self.all if self.labels[place] in typed.members(what)]
        if kind == "kind":
            return [place for place in self.all if self.labels[place] == what]
        return self.all

    def name(self, place):
        return load_objects()[self.labels[place]].name

    def is_place(self, value, place):
        x, y, w, h = self.boxes[place]
        if isinstance(value, str):
            return value == typed.zone_of(x, y)
        if "size" in value:
            return value == {"at": [x, y], "size": [w, h]}
        return value == {"at": self.points[place]}

    def told(self, role, value, place):
        """Whether a property of an instance by itself is right."""
        if role == "name":
            return value == self.name(place)
        if role == "count":
            return value == self.labels.count(self.labels[place])
        if role == "colour":
            kind = self.labels[place]
            return value in {kinds[kind] for kinds in COLOUR_NOUNS.values() if kind in kinds}
        if role == "box":
            return "size" in value and self.is_place(value, place)
        return role == "where" and self.is_place(value, place)
