"""The training mix: what a row asks about its scene, how many tokens each slot has, and how often each case comes.

A row has every slot of `ROW` once, side by side. Shares are probabilities, odds are relative; the rules for correct
answers are in `questions.text`.
"""

from collections.abc import Mapping
from typing import Literal, get_args

from bench.nano.questions.text.properties import Meaning
from bench.nano.questions.text.typed import Role

QUESTIONS = COUNT, EXISTENCE, TOTAL, RELATION, PLACE, COMPARISON, COLOUR, REFERENCE = (
    "count", "existence", "total", "relation", "place", "comparison", "colour", "reference",
)  # fmt: skip
"""Questions that are answered with a word."""
Mix = Mapping[str, float]

# Rows that are too long are cut at their end, half of those of large crowds among them, which can spare outlines most.
ROW = (
    "objects", "objects", "typed", "named", "named", "number", "number", "existence", "spatial", "marked",
    "text", "text", "outline", "thought",
)  # fmt: skip
LENGTHS = {
    "objects": 166,  # boxes; in the last of these slots mostly points
    "typed": 200,  # an answer in JSON: up to a dozen objects with boxes
    "named": 100,  # the same, for properties of any names
    "outline": 88,
    "thought": 136,  # a question with reasoning, or a further outline
    "number": 36,
    "existence": 28,
    "spatial": 36,
    "marked": 36,
    "text": 112,  # a caption, or a list of what is there
}
"""Tokens that a slot has room for: prompt and answer. Most questions take a quarter of it."""
ASKED = 2  # times that every scene is asked all slots of `ROW`
ROOM = 896  # tokens of a row of packed questions: those of a scene take about 720, what a sixth has beyond is cut
PARTS = DECISION, TYPED, TEXT = ("decision", "typed", "text")  # of the loss on tokens
PART = {"typed": TYPED, "named": TYPED, "objects": DECISION, "outline": DECISION, "thought": DECISION}
"""Part of the loss that a slot's answers belong to; those of all others are text."""

# Relations between two things are the hardest to learn: all slots of words but one ask for them.
QUERIES: dict[str, Mix] = {
    "number": {COUNT: 3.0, TOTAL: 1.0, RELATION: 0.6, PLACE: 0.3, COMPARISON: 0.1},
    "existence": {EXISTENCE: 1.0},
    "spatial": {RELATION: 4.0, PLACE: 3.0, COMPARISON: 1.5, COLOUR: 1.5},
    "marked": {REFERENCE: 6.0, COUNT: 0.5, EXISTENCE: 0.5, RELATION: 1.5, PLACE: 1.0, COMPARISON: 0.5},
    "reasoning": {COUNT: 0.7, EXISTENCE: 0.2, TOTAL: 0.1},
}
"""Odds of questions in the slots of words, and with reasoning."""

# Kinds that are asked for.
ABSENT_SHARE = 0.25  # not in the scene
ALIKE_SHARE = 0.5  # of these: of the category of a kind that is
UNKNOWN_SHARE = 0.4  # of these: a word that is not in the vocabulary
NONSENSE_SHARE = 0.15  # of these: an invented word

# Boxes and points. Boxes teach positions too, but points asked in only every second scene are learned late.
POINT_SHARE = 0.8  # of the last slot of objects
MARKED_POINT_SHARE = 0.1  # of these: with a reference

# Outlines and reasoning.
THOUGHT_SHARE = 0.4  # of the slot after the outline: questions with reasoning; the others are outlines too
MARKED_OUTLINE_SHARE = 0.5
ABSENT_OUTLINE_SHARE = 0.15

# Words.
FREE_SHARE = 0.15  # of references: points at the background
LOWER_CASE_SHARE = 0.12  # of "Yes" and "No": as in lists of choices, where only their odds are compared
DROPPED_MARK_SHARE = 0.12  # of questions: without the question mark

# Typed answers: by form (a value, an object, a list of objects, a list of values), and by form what they are about
# (the scene, a kind, a group, outermost things, a group that names a property).
FORM_ODDS = (0.12, 0.40, 0.32, 0.16)
ABOUT_ODDS = (
    (0.35, 0.55, 0.10, 0.0, 0.0),
    (0.22, 0.38, 0.08, 0.22, 0.10),
    (0.45, 0.30, 0.15, 0.0, 0.10),
    (0.45, 0.35, 0.12, 0.0, 0.08),
)
_LISTED: dict[Role, float] = {"name": 4, "count": 1.5, "colour": 1, "box": 2, "where": 1}
_BARE: dict[Role, float] = {"name": 3, "box": 1, "where": 1}
_VALUE: dict[Role, float] = {"count": 1, "name": 1, "box": 0.7, "where": 0.7}
PROPERTY_ODDS: tuple[tuple[dict[Role, float], ...], ...] = (
    (_VALUE, {"count": 1, "present": 1, "box": 1, "where": 1}, _VALUE, {}, {}),
    (
        {"name": 5, "count": 2, "colour": 2, "box": 3, "where": 3},
        {"name": 2, "count": 2, "present": 2, "colour": 1.5, "box": 3, "where": 3,
         "left": 0.3, "right": 0.3, "above": 0.3, "below": 0.3},
        {"name": 4, "count": 1.5, "colour": 1.5, "box": 3, "where": 3},
        {"count": 0.3, "left": 1, "right": 1, "above": 1, "below": 1, "largest": 1.5, "smallest": 1},
        {"name": 4, "count": 1.5, "colour": 1.5, "box": 3, "where": 3},
    ),
    (_LISTED, {"name": 1, "box": 2, "where": 1.5}, _LISTED, {}, _LISTED),
    (_BARE, {"box": 1, "where": 1}, _BARE, {}, _BARE),
)  # fmt: skip
"""Odds of properties by form and by what they are about."""
ABSENT_GROUP_ODDS = 0.03  # of a group that is not in the scene, against one that is
NAME_FIRST_SHARE = 0.85  # of objects in lists
TOP_LIST_SHARE = 0.3  # of lists: not the value of a property
KIND_LIST_SHARE = 0.35  # of lists of a kind: called by its name
COUNTED_LIST_SHARE = 0.2  # of the others: after their length
WHERE_ODDS = (0.5, 0.8)  # cumulative: a point, a zone, a box
OUTER_ODDS = (0.25, 0.75)  # cumulative: a point, a name, a box
MAIN_SHARE = 0.45  # of questions about the scene: about its largest thing
BOXES_SHARE = 0.6  # of lists with boxes: the question asks for boxes
APART_SHARE = 0.4
"""Share of strings, and of lists of strings or objects, whose quote or brace is a token of its own, as the grammar
needs it where the model has written the colon of a number and the schema wants a string."""

# Properties of any names: what the question is (short answer, a kind, the scene); how the properties are laid out; what
# names say (nothing; what of the question's subject is meant; what no picture tells; a kind that they mention).
NamedValue = Literal[
    "number", "truth", "digits", "yes", "name", "colour", "zone", "answer", "point", "area", "empty", "null", "zero",
    "false", "filler",
]  # fmt: skip
"""Values: "number", "digits" are counts, "truth" and "yes" presence; "answer" is what is answered in words; the last
five stand for what cannot be known."""
NAMED_VALUES: tuple[NamedValue, ...] = get_args(NamedValue)
NAMED_SOURCE_ODDS = (0.5, 0.2, 0.3)  # a question with a short answer, about a kind, about the scene
NAMED_QUERIES: Mix = {
    COUNT: 3.0, EXISTENCE: 3.0, TOTAL: 1.0, RELATION: 1.0, PLACE: 0.8, COMPARISON: 0.6, COLOUR: 0.8, REFERENCE: 0.8,
}  # fmt: skip
NAMED_SHAPE_ODDS = (0.7, 0.1, 0.2)  # properties, these in one object inside, an object for each kind that is mentioned
PAIRED_SHARE = 0.5  # of the last: with two properties
CAPTION_SHARE = 0.35  # of questions about the scene: with a property that is a caption
PLAIN_CAPTION_SHARE = 0.4  # of these: under a name that says nothing
ALONE_SHARE = 0.4  # of these and of all others: nothing else
NAMED_KEY_ODDS = {"question": (0.6, 0.3, 0.08, 0.25), "scene": (0.3, 0.0, 0.15, 0.6), "nested": (0.3, 0.7, 0.0, 0.0)}
_OF_A_KIND: dict[Meaning, float] = {"count": 2, "present": 2, "name": 1, "colour": 1, "where": 1, "box": 1}
NAMED_MEANING_ODDS: dict[str, dict[Meaning, float]] = {
    "nothing": {"plain": 1},
    "plain": {"plain": 1, "caption": 0.03},
    "asked": _OF_A_KIND,
    "asked total": {"count": 1},
    "asked colour": {"colour": 1},
    "unknown": {"unknown": 6, "email": 1.2, "date": 1.2, "time": 1.2},
    "mention": {"count": 3, "present": 3, "name": 2, "colour": 1, "where": 1, "box": 0.7, "unknown": 0.5},
}
_CANNOT: dict[NamedValue, float] = {"empty": 4, "null": 3.5, "zero": 1.3, "false": 0.8}
_PLAIN: dict[NamedValue, float] = {
    "number": 3.5, "truth": 2.7, "answer": 2.7, "colour": 0.5, "zone": 0.5, "point": 0.5, "area": 0.8,
}  # fmt: skip
NAMED_VALUE_ODDS: dict[str, dict[NamedValue, float]] = {
    "count": {"number": 17, "digits": 1, "truth": 1.5},
    "present": {"truth": 16, "yes": 2.5, "number": 1.5},
    "name": {"name": 1},
    "colour": {"colour": 1},
    "where": {"zone": 1, "point": 1.5, "area": 0.3},
    "box": {"area": 1},
    "plain": _PLAIN,
    "caption": {"answer": 1},
    "unknown": _CANNOT | {"filler": 0.6},
    "email": _CANNOT | {"filler": 1},
    "date": _CANNOT | {"filler": 1},
    "time": _CANNOT | {"filler": 1},
    "mentioned name": {"number": 3, "truth": 3, "area": 1.5, "point": 1, "name": 1},
    "plain total": {"number": 3.5, "truth": 2.5, "answer": 2},
    "plain place": {"truth": 5, "answer": 3, "number": 1},
    "plain scene": {"number": 6, "truth": 4},
    "only answer": {"answer": 1},
}
BLANK_SHARE = 0.5  # of names and colours of nothing: null, the others are empty
SMALL_YES_SHARE = 0.6  # "yes" and "no" in lower case

# Weights in the loss.
ANSWER_WEIGHT = 4.0  # words
# Points beside the centre of a box by more than this share of it, as where things are thin or hollow: few are, and
# without the weight they are put between the centre and where they belong.
CENTRAL, ASIDE_WEIGHT = 0.02, 4.0
# Captions: whether a further kind follows, how many there are of one, its name, and what follows from words before it.
JOIN_WEIGHT, COUNTED_WEIGHT, NAMED_WEIGHT, PHRASE_WEIGHT = 3.0, 2.0, 2.0, 0.2
TYPED_COUNT_WEIGHT = 3.5  # counts in JSON: most values that are wrong are counts
FORCED_WEIGHT = 0.2  # JSON tokens that the grammar forces, or nearly so
# Without a grammar the same questions are answered in words, so how JSON begins is left to the grammar; whether a list
# is empty is not.
BEGUN_WEIGHT, BEGUN_LIST_WEIGHT = 0.02, 0.3

NAME_WEIGHT = 0.1
"""Names of properties, of which any may come."""
