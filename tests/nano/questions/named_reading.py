"""Properties of any names read back, and judged by what the names say, by the question, and by the values' types."""

from functools import cache

from bench.nano.questions.text import language, properties, typed
from bench.nano.questions.text.colours import COLOUR_NOUNS
from bench.nano.scenes.english import pluralize
from bench.nano.scenes.objects import COLOURS, load_objects
from tests.nano.questions.reading import kind_of, meanings
from tests.nano.questions.test_maker import expected_answer, marked_place
from tests.nano.questions.typed_reading import Truth, subject

BLANK = ("", "none", "none@none.none", "2000-01-01", "00:00:00Z", 0, None)
UNKNOWABLE = ("unknown", "email", "date", "time")
_ZONES = [zone for row in language.ZONES for zone in row]
_COLOURS = {kind: colour for kinds in COLOUR_NOUNS.values() for kind, colour in kinds.items()}
_QUERIES = ("count", "existence", "total", "relation", "place", "comparison", "colour")


@cache
def names(split):
    """What names without an object say."""
    return {
        properties.styled(name, style): meaning
        for meaning in properties.MEANINGS
        for name in properties.names(meaning, split)
        for style in properties.STYLES
    }


@cache
def mentions(split):
    """What names with an object say: (meaning, class index, None for an unknown word)."""
    pairs = [(pair, i) for i, o in enumerate(load_objects()) for pair in zip(o.names, o.plurals, strict=True)]
    pairs += [((word, pluralize(word)), None) for word in language.unknown_words("train")]
    return {
        properties.styled(properties.mention(template, *pair), style): (meaning, kind)
        for meaning in properties.MENTIONS
        for template in properties.mentions(meaning, split)
        for pair, kind in pairs
        if pair[0] not in properties.known()
        for style in properties.STYLES
    }


class Asked:
    """A question: its answer in words, None without one, the places that it is about, and its kind."""

    def __init__(self, scenes, number, row):
        truth = self.truth = Truth(scenes, number)
        self.answer, self.kind, self.match, self.about = None, None, truth.all, "scene"
        found = meanings(row.text, _QUERIES)
        self.query = found.pop() if len(found) == 1 and not row.refs else None
        if row.refs:
            place = marked_place(scenes, number, row.refs[0])
            self._of("reference", None if place is None else truth.labels[place])
            self.answer = "Nothing" if place is None else truth.name(place)
        elif self.query is None or (self.query.question == "existence" and subject(row.text)[0] is None):
            about, what = subject(row.text)
            if about == "kind":
                self._of("kind", what)
                self.answer = truth.name(self.match[0]) if self.match else "Nothing"
        else:
            self.answer, self.about = expected_answer(scenes, number, self.query), self.query.question
            if self.about in ("count", "existence"):
                self._of(self.about, kind_of(self.query.names[0]))
            elif self.about in ("relation", "comparison"):
                named = [i for i, item in enumerate(load_objects()) if item.name == self.answer]
                self._of(self.about, named[0] if named else None)
            elif self.about == "place":
                self.match = truth.all[:1] if self.answer == "Yes" else []

    def _of(self, about, kind):
        self.about, self.kind, self.match = about, kind, self.truth.members(("kind", kind))


def is_true(asked, name, value):
    """Whether a value is one that the property may have, and (what the name says, about what)."""
    said = mentions("train").get(name)
    if said:
        meaning, kind = said
        match, words, about = asked.truth.members(("kind", kind)), None, "mention"
        words = asked.truth.name(match[0]) if match else "Nothing"
    else:
        meaning, kind = names("train").get(name, "plain"), asked.kind
        match, words, about = asked.match, asked.answer, asked.about
    return _holds(asked.truth, meaning, kind, match, words, value), meaning, about


def _holds(truth, meaning, kind, match, words, value):
    if meaning in UNKNOWABLE:
        return value in BLANK
    if isinstance(value, bool):
        return value == bool(match)
    if isinstance(value, int):
        return value == len(match)
    if value is None or value == "":
        return not match or (meaning == "colour" and kind not in _COLOURS)
    if isinstance(value, dict):
        return truth.is_place(value, truth.largest(match))
    if value.lower() in ("yes", "no") and (words is None or words.lower() not in ("yes", "no")):
        return (value.lower() == "yes") == bool(match)
    if value.isdigit():
        return int(value) == len(match)
    if meaning == "where":
        return truth.is_place(value, truth.largest(match))
    if meaning == "name" and match:
        return value == truth.name(match[0])
    if meaning == "colour" and kind is not None:
        return value == _COLOURS.get(kind)
    if meaning == "plain" and match and value in _ZONES:
        return truth.is_place(value, truth.largest(match))
    if meaning == "plain" and value in COLOURS and kind in _COLOURS and match:
        return value == _COLOURS[kind]
    return value.lower() == words.lower() if words else value == language.caption(_said(truth), "short")


def _said(truth):
    return [(truth.labels[place], *truth.boxes[place][:2]) for place in truth.all]


assert not set(typed.NAMES["left"]) & set(names("train"))
