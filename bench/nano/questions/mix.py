"""The training mix: what a row asks about its scene, how many tokens each slot has, and how often each case comes.

A row has every slot of `ROW` once, side by side. Shares are probabilities, odds are relative; the rules for correct
answers are in `questions.text`.
"""

from collections.abc import Mapping

from bench.nano.questions.text.typed import Role

QUESTIONS = COUNT, EXISTENCE, TOTAL, RELATION, PLACE, COMPARISON, COLOUR, REFERENCE = (
    "count", "existence", "total", "relation", "place", "comparison", "colour", "reference",
)  # fmt: skip
"""Questions that are answered with a word."""
Mix = Mapping[str, float]

ROW = (
    "objects", "objects", "objects", "typed", "outline", "number", "existence", "spatial", "marked", "text",
)  # fmt: skip
LENGTHS = {
    "objects": 46,  # boxes; in the last of these slots mostly points
    "typed": 128,  # an answer in JSON
    "outline": 88,  # an outline, or a question with reasoning
    "number": 36,
    "existence": 28,
    "spatial": 36,
    "marked": 36,
    "text": 112,  # a caption, or a list of what is there
}
"""Tokens of a slot: prompt and answer."""

# Relations between two things are the hardest to learn: all slots of words but one ask for them.
QUERIES: dict[str, Mix] = {
    "number": {COUNT: 2.0, TOTAL: 1.0, RELATION: 1.0, PLACE: 0.75, COMPARISON: 0.25},
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
OUTLINE_SHARE = 0.8  # the others are questions with reasoning
MARKED_OUTLINE_SHARE = 0.5
ABSENT_OUTLINE_SHARE = 0.15

# Words.
FREE_SHARE = 0.15  # of references: points at the background
LOWER_CASE_SHARE = 0.12  # of "Yes" and "No": as in lists of choices, where only their odds are compared
DROPPED_MARK_SHARE = 0.12  # of questions: without the question mark

# Typed answers: by form (a value, an object, a list of objects, a list of values), and by form what they are about
# (the scene, a kind, a group, outermost things, a group that names a property).
FORM_ODDS = (0.14, 0.46, 0.24, 0.16)
ABOUT_ODDS = (
    (0.35, 0.55, 0.10, 0.0, 0.0),
    (0.25, 0.45, 0.08, 0.12, 0.10),
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
COUNTED_LIST_SHARE = 0.2  # of the others: after their length
WHERE_ODDS = (0.5, 0.8)  # cumulative: a point, a zone, a box
OUTER_ODDS = (0.25, 0.75)  # cumulative: a point, a name, a box
MAIN_SHARE = 0.45  # of questions about the scene: about its largest thing
BOXES_SHARE = 0.6  # of lists with boxes: the question asks for boxes
APART_SHARE = 0.4
"""Share of strings, and of lists of strings or objects, whose quote or brace is a token of its own, as the grammar
needs it where the model has written the colon of a number and the schema wants a string."""

# Weights in the loss.
ANSWER_WEIGHT = 4.0  # words
FORCED_WEIGHT = 0.2  # JSON tokens that the grammar forces, or nearly so
# Without a grammar the same questions are answered in words, so how JSON begins is left to the grammar; whether a list
# is empty is not.
BEGUN_WEIGHT, BEGUN_LIST_WEIGHT = 0.02, 0.3


def span(slot: str) -> tuple[int, int]:
    """Return where a slot begins and ends in a row, in tokens."""
    start = sum(LENGTHS[one] for one in ROW[: ROW.index(slot)])
    return start, start + LENGTHS[slot]
