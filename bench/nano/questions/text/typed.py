"""Typed answers: property names, question templates, and the rules for correct values.

The schema is never part of the prompt: the grammar forces it. So an answer's value depends on the image, on the
question, and on the names of the properties that have been written so far:

- A question about one thing ("the mug") is answered about all things of the kind together (how many, whether there is
  one), and about the largest of them (its box, where it is).
- A question about the image ("what is on the shelf?") is answered about its largest thing. Properties such as
  "leftmost" or "largest" are about the thing that they describe.
- "count" is how many there are of what was asked about or named before it; where nothing was, of all things.
- A property that is called by a group, such as "fruit", asks for the largest of that group where it comes first, and a
  list that is called so holds the group alone.
- A list has one item for each instance in reading order. A list of bare names, or one whose items have a "count", has
  one for each kind instead, in reading order of their first instances.
- Nothing found is null, 0, false or an empty list.

Which of several types a property has ("where" may be a point, a box or a zone) is for the grammar to decide.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from bench.nano.questions.text import properties
from bench.nano.questions.text.language import LIST_QUESTIONS, ZONES
from bench.nano.scenes.objects import load_objects

Role = Literal[
    "name", "count", "present", "colour", "box", "where", "left", "right", "above", "below", "largest", "smallest",
]  # fmt: skip
ROLES: tuple[Role, ...] = get_args(Role)

CLEARLY_LARGEST = 1.15
"""The largest of several things is asked about where its box has so many times the area of the next."""
CLEARLY_OUTERMOST = 0.04
"""The leftmost, rightmost, topmost or lowest thing is asked about where the next one's centre is so far from its own
(fractions of the image)."""

_COMMON: Mapping[Role, tuple[str, ...]] = {
    "name": ("name", "name", "object", "object", "thing", "item", "kind", "label", "what", "type", "title"),
    "count": ("count", "count", "how_many", "number", "amount", "total", "quantity"),
    "present": ("present", "is_there", "visible", "found", "there", "exists", "is_visible"),
    "colour": ("colour", "color", "colour", "color", "colour_name", "color_name"),
    "box": ("box", "box", "bbox", "bounding_box", "region", "area", "frame"),
    "where": ("where", "where", "position", "point", "center", "centre", "location", "place", "spot"),
    "left": ("left", "left", "left_of", "to_the_left"),
    "right": ("right", "right", "right_of", "to_the_right"),
    "above": ("above", "above", "over"),
    "below": ("below", "below", "under"),
    "largest": ("largest", "biggest", "main", "main_object"),
    "smallest": ("smallest", "smallest_object"),
}
NAMES: Mapping[Role, tuple[str, ...]] = {
    role: (*common * 4, *(properties.variants(properties.names(role, "train")) if role in properties.MEANINGS else ()))
    for role, common in _COMMON.items()
}
"""Names of properties, each as often as it is to be taken; no name has two roles."""
OUTER_NAMES: Mapping[Role, tuple[str, ...]] = {
    "left": ("left", "leftmost"), "right": ("right", "rightmost"),
    "above": ("top", "topmost", "highest"), "below": ("bottom", "lowest"),
}  # fmt: skip
"""The same where the question is about the image: the outermost thing of all."""
_LISTS: Mapping[Literal["items", "names", "places"], str] = {
    "items": "objects objects items things list found all contents objects items things list found all contents "
    "object_list item_list all_objects visible_objects detected_objects elements entries detections results result "
    "answer value output response data everything objects_found scene_objects instances findings x payload",
    "names": "objects items things names kinds labels contents what objects items things names kinds labels contents "
    "what object_names kinds_of_things object_labels classes types result answer value output categories x entries",
    "places": "objects boxes points positions places locations where found objects boxes points positions places "
    "locations bounding_boxes bboxes coordinates regions result answer value output x centers",
}
LIST_NAMES = {role: properties.variants(names.split()) for role, names in _LISTS.items()}
"""Names of properties that hold a list: of objects, of names, of boxes or points."""

KIND_LIST_NAMES = ("{1}", "{1}", "{1}", "all_{1}", "the_{1}", "{0}_list", "{0}_boxes", "{1}_found", "{0}_positions")
"""Names of properties that hold the list of a kind: {0} is its singular, {1} its plural."""
GROUPS: tuple[tuple[str, str], ...] = (
    ("fruit", "fruit"), ("food", "food"), ("animal", "animals"), ("vehicle", "vehicles"), ("plant", "plants"),
    ("instrument", "instruments"), ("building", "buildings"), ("shape", "shapes"),
)  # fmt: skip
"""Words for things of several kinds: singular and plural."""
_CATEGORIES = {
    "food": "food", "animal": "animals", "vehicle": "vehicles", "plant": "plants", "instrument": "music",
    "building": "buildings", "shape": "shapes",
}  # fmt: skip
_FRUIT = (
    "banana, red apple, green apple, pear, tangerine, lemon, strawberry, watermelon, grapes, cherry, peach, pineapple"
)
# Of these one person says that they belong to a group and another that they do not: then the group is not asked for.
_UNCLEAR = {
    "fruit": "tomato, eggplant, avocado, hot pepper, corn cob",
    "food": "cup, wine glass, beer",
    "animal": "shell, teddy bear",
    "vehicle": "skateboard, flying saucer",
    "plant": "blossom, maple leaf, four leaf clover, mushroom, broccoli",
    "instrument": "bell, microphone",
    "building": "tent, ferris wheel",
    "shape": "star, crescent moon, gem",
}
_OUTSIDE = {"food": "fork and knife, spoon, kitchen knife", "vehicle": "anchor, traffic light"}

_HERE = ("on the shelf", "on the table", "on the desk", "on the wall", "on the floor", "here", "in the picture",
         "in the image", "there", "in this picture")  # fmt: skip
SCENE_QUESTIONS = (
    *(f"what is {place}?" for place in _HERE), "what do you see?", "what can you see?", "describe the picture",
    "describe the image", "describe the picture as json", "describe the scene", "describe it as json", "what is this?",
    "what does the picture show?", "look at the picture", "describe what you see", "as json", "give me json",
)  # fmt: skip
"""Questions about the whole image, for any properties."""
_KIND_QUESTIONS = (
    "describe the {0}", "describe the {0} as json", "tell me about the {0}", "tell me about the {1}", "the {0}",
    "the {1}", "{0}", "{1}", "where is the {0}?", "find the {0}", "what about the {0}?", "what about the {1}?",
    "{0} as json", "describe the {1} as json",
)  # fmt: skip
TYPED_QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "scene": SCENE_QUESTIONS,
    "list": (*SCENE_QUESTIONS, *LIST_QUESTIONS),
    "list boxes": (
        "list everything with boxes", "list the objects with their boxes", "list all objects with their boxes",
        "find all objects", "find all objects with their boxes", "where is everything?", "what is where?",
        "what is on the shelf and where?", "what is on the table and where?", "the objects and their boxes",
    ),
    "main": (
        "what is the largest object?", "what is the biggest thing?", "describe the largest object",
        "describe the biggest thing", "which object is the largest?", "which thing is the biggest?",
        "where is the largest object?", "describe the largest thing as json", "tell me about the largest object",
    ),
    "about": _KIND_QUESTIONS,
    "kind": (
        *_KIND_QUESTIONS, "is there {2}?", "is there {2} in the picture?", "any {1}?", "how many {1} are there?",
        "how many {1}?", "do you see {2}?", "do you see any {1}?",
    ),
    "kind list": (
        "list the {1}", "list all {1}", "list the {1} as json", "find all {1}", "find the {1}", "where are the {1}?",
        "all {1}", "all the {1}", "every {0}", "each {0}", "{1}", "the {1}", "show me the {1}", "which {1} do you see?",
    ),
    "kind boxes": (
        "list the {1} with their boxes", "list all {1} with their boxes", "find all {1} with their boxes",
        "boxes of the {1}", "boxes of all {1}", "the {1} and their boxes", "where are the {1}?",
    ),
    "kind place": (
        "where is the {0}?", "where is the {0} in the picture?", "find the {0}", "locate the {0}", "the {0}", "{0}",
        "where do you see the {0}?", "the {1}",
    ),
    "group": (
        "describe the largest {0}", "what is the largest {0}?", "which {0} is the largest?", "tell me about the {0}",
        "where is the largest {0}?", "describe the {0}", "which {0} is this?", "what is the biggest {0}?",
    ),
    "group list": (
        "list the {1}", "list all {1}", "list the {1} as json", "find all {1}", "which {1} do you see?",
        "what {1} do you see?", "what {1} can you see?", "name the {1}", "name all {1}", "show me the {1}", "{1}",
    ),
    "group boxes": (
        "list the {1} with their boxes", "list all {1} with their boxes", "find all {1} with their boxes",
        "boxes of the {1}", "where are the {1}?", "the {1} and their boxes",
    ),
}  # fmt: skip
"""Templates by what they ask about, as in `language`; those with boxes are taken where there is a box to tell."""


def members(word: str) -> frozenset[int]:
    if word == "fruit":
        return _kinds(_FRUIT)
    inside = (i for i, item in enumerate(load_objects()) if item.category == _CATEGORIES[word])
    return frozenset(inside) - unclear(word) - _kinds(_OUTSIDE.get(word, ""))


def unclear(word: str) -> frozenset[int]:
    """Return the class indices whose membership is debatable: scenes with one are not asked for the group."""
    return _kinds(_UNCLEAR[word])


def _kinds(names: str) -> frozenset[int]:
    wanted = set(filter(None, names.split(", ")))
    found = frozenset(index for index, item in enumerate(load_objects()) if item.name in wanted)
    if len(found) != len(wanted):
        raise ValueError(f"not all of {sorted(wanted)} are objects")
    return found


def zone_of(cx: float, cy: float) -> str:
    row, column = (min(2, max(0, int(3 * part))) for part in (cy, cx))
    return ZONES[row][column]


def clearly_first(values: Sequence[float], *, ratio: float = 1.0, margin: float = 0.0) -> int | None:
    """Return the place of the largest number, None where the next one is not that much smaller; None of none."""
    order = sorted(range(len(values)), key=lambda place: -values[place])
    if len(order) > 1 and values[order[0]] < max(ratio * values[order[1]], values[order[1]] + margin):
        return None
    return order[0] if order else None
