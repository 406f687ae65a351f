"""Phrases, questions, answers and captions about a scene, for training and evaluation.

Everything is a pure function of its arguments and of a `random.Random`. A scene is a list of
`(class index, cx, cy)`, the centre of an instance in fractions of the image, in any order.
"""

import functools
import hashlib
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from bench.nano.scenes.english import article, join_list, pluralize
from bench.nano.scenes.objects import SceneObject, load_objects

Instance = tuple[int, float, float]
Split = Literal["train", "held_out"]
Length = Literal["short", "normal", "long"]

UNKNOWN_FILE = Path(__file__).parent / "unknown.txt"
ROWS = 12
MAX_LOCATED_KINDS = 4
MAX_ZONES = 4

ZONES = (("top left", "top", "top right"), ("left", "centre", "right"), ("bottom left", "bottom", "bottom right"))

# {0} singular, {1} plural, {2} singular with a or an. Weights: people mostly type the bare word.
PHRASES = (("{0}", 40), ("{1}", 22), ("{2}", 8), ("the {0}", 8), ("the {1}", 5), ("all {1}", 4), ("all the {1}", 3),
           ("every {0}", 4), ("each {0}", 2), ("any {0}", 2), ("any {1}", 2), ("some {1}", 1), ("one {0}", 1),
           ("my {0}", 1), ("this {0}", 1), ("these {1}", 1), ("that {0}", 1), ("small {0}", 1), ("big {0}", 1),
           ("find the {0}", 2), ("find {1}", 1), ("find all {1}", 1), ("show me the {0}", 1), ("locate the {0}", 1),
           ("where is the {0}", 2), ("where are the {1}", 1), ("point to the {0}", 1), ("{0} please", 1),
           ("{0} emoji", 1), ("{1} in the picture", 1))  # fmt: skip
NAME_SHARE = 0.65

COUNT_QUESTIONS = (
    "how many {1} are there?", "how many {1}?", "how many {1}?", "count the {1}", "count all {1}", "count {1}",
    "how many {1} are in the picture?", "how many {1} are in the image?", "how many {1} are in this picture?",
    "how many {1} do you see?", "how many {1} can you see?", "what is the number of {1}?", "number of {1}?",
    "how many {1} are there in the picture?", "how many {1} are here?", "{0} count?", "{1} count?",
    "how many {1} does the picture show?", "tell me how many {1} there are", "please count the {1}",
    "how many {1} can be seen?", "how many {1} are visible?", "how many {1} can you find?",
    "how many {1} can you spot?", "give me the number of {1}", "what's the number of {1}?",
    "how many of the objects are {1}?",
)  # fmt: skip
EXISTENCE_QUESTIONS = (
    "is there {2}?", "is there {2} in the picture?", "is there {2} in the image?", "is there {2} here?",
    "is there any {0}?", "are there any {1}?", "are there any {1} in the picture?", "are there {1}?",
    "are there {1} in the image?", "do you see {2}?", "do you see any {1}?", "can you see {2}?", "can you see any {1}?",
    "does the picture show {2}?", "does the image contain {2}?", "does this picture show any {1}?",
    "is {2} in the picture?", "any {1}?", "any {1} in the picture?", "is {2} there?", "is {2} visible?",
    "is there {2} visible?", "are any {1} visible?", "are {1} visible?", "can you spot {2}?", "can you spot any {1}?",
    "can you find {2}?", "can {2} be seen?", "is there at least one {0}?", "does it show {2}?", "any {1} here?",
)  # fmt: skip
TOTAL_QUESTIONS = (
    "how many objects are there?", "how many things are there?", "how many objects are in the picture?",
    "how many things do you see?", "count the objects", "count everything", "how many objects?", "count all objects",
    "how many objects do you see?", "how many things are in the image?", "how many objects are there in total?",
    "what is the number of objects?", "how many things are here?", "how many objects are in this picture?",
    "count all the things", "how many objects can you see?", "how many items are there?", "how many items?",
    "how many items do you see?", "how many items are in the picture?", "count the items", "count all items",
    "total number of objects?", "number of objects?", "how many objects can be seen?", "how many objects are visible?",
    "how many emoji are there?",
)  # fmt: skip
LIST_QUESTIONS = (
    "what is in the picture?", "what is in the image?", "what do you see?", "what can you see?", "list everything",
    "list the objects", "list all objects", "what objects are there?", "what things are in the picture?",
    "describe the picture", "describe the image", "what is this?", "what's this?", "what's in this picture?",
    "what is here?", "what's here?", "which objects are in the image?", "which objects do you see?",
    "what objects do you see?", "name everything you see", "name all objects", "what does the picture show?",
    "what is in this image?", "what can be seen in the picture?", "which things are there?", "what is there?",
    "enumerate all objects", "enumerate everything", "what items are there?", "list all items", "list the items",
    "what's there?", "tell me what you see", "what can be seen here?", "identify all objects", "what is visible?",
    "which objects can you find?", "what do you find in this picture?", "describe what you see",
)  # fmt: skip
LATER_LIST_QUESTIONS = (
    *(f"what is on the {place}?" for place in ("shelf", "table", "desk", "wall", "floor")),
    "describe the scene", "look at the picture", "tell me about the picture", "tell me about the image",
    "what is shown?", "what is in the photo?", "what does the photo show?", "describe the photo",
)  # fmt: skip
"""The same in words that were asked with a schema only, or not at all; the tokenizer was made before they came."""

_ONSETS = "b bl c d dr f fl g gr h j k l m n p pr qu r s sl t tr v w z"
_SYLLABLES = tuple(onset + vowel for onset in _ONSETS.split() for vowel in "aeiou")
_ENDINGS = ("", "n", "r", "x", "p", "k", "m", "sh", "ng", "lt", "ster")


def reading_order(boxes: Sequence[Sequence[float]]) -> list[int]:
    """Return the order of boxes (x_min, y_min, x_max, y_max) by `centre_order` of their centres."""
    return centre_order([((x0 + x1) / 2, (y0 + y1) / 2) for x0, y0, x1, y1 in boxes])


def centre_order(centres: Sequence[tuple[float, float]]) -> list[int]:
    """Return the order of (cx, cy) by row of one twelfth of the image height, then by cx, then by cy."""
    return sorted(range(len(centres)), key=lambda i: (math.floor(centres[i][1] * ROWS), *centres[i], i))


@functools.cache
def unknown_words(split: Split) -> tuple[str, ...]:
    """Return everyday nouns that no object is called; one in five is held out.

    A hash decides, so that the list can grow without a word changing sides.
    """
    known = _known_words()
    lines = [line for line in UNKNOWN_FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    words = list(dict.fromkeys(word.strip() for line in lines for word in line.split(",")))
    if clash := [word for word in words if word in known or pluralize(word) in known]:
        raise ValueError(f"{UNKNOWN_FILE.name} lists words that name objects: {clash}")
    return tuple(word for word in words if _is_held_out(word) == (split == "held_out"))


@functools.cache
def _known_words() -> frozenset[str]:
    return frozenset(word for item in load_objects() for word in (*item.names, *item.plurals))


def _is_held_out(word: str) -> bool:
    return hashlib.sha256(word.encode()).digest()[0] % 5 == 0


def nonsense_word(rng: random.Random, split: Split) -> str:
    """Invent a word of two or three syllables that means nothing; the two splits never share one."""
    while True:
        word = "".join(rng.choices(_SYLLABLES, k=rng.randint(2, 3))) + rng.choice(_ENDINGS)
        real = word in _known_words() or word in unknown_words("train") or word in unknown_words("held_out")
        if not real and _is_held_out(word) == (split == "held_out"):
            return word


def unknown_pair(rng: random.Random, split: Split, nonsense: float = 0.15) -> tuple[str, str]:
    """Choose singular and plural of a word that names no object, with a share `nonsense` of invented ones."""
    word = nonsense_word(rng, split) if rng.random() < nonsense else rng.choice(unknown_words(split))
    return word, pluralize(word)


def name_pair(rng: random.Random, index: int) -> tuple[str, str]:
    """Choose singular and plural of an object's name, or of a synonym (35 %)."""
    item = load_objects()[index]
    if not item.synonyms or rng.random() < NAME_SHARE:
        return item.name, item.plural
    synonym = rng.choice(item.synonyms)
    return synonym, pluralize(synonym)


def phrase(rng: random.Random, pair: tuple[str, str]) -> str:
    """Write a (singular, plural) pair as users type it for detect or point: "the bananas", "A Banana"."""
    templates, weights = zip(*PHRASES, strict=True)
    return vary_phrase(rng, fill_template(rng.choices(templates, weights)[0], pair))


def ask(rng: random.Random, templates: Sequence[str], *names: str) -> str:
    """Write a question from one of several templates, its gaps filled with names."""
    return vary_question(rng, rng.choice(templates).format(*names))


def count_question(rng: random.Random, pair: tuple[str, str]) -> str:
    """Ask how many there are of a (singular, plural) pair."""
    return vary_question(rng, fill_template(rng.choice(COUNT_QUESTIONS), pair))


def existence_question(rng: random.Random, pair: tuple[str, str]) -> str:
    """Ask whether there is any of a (singular, plural) pair."""
    templates: tuple[str, ...] = EXISTENCE_QUESTIONS
    if has_no_singular(pair):
        templates = tuple(template for template in templates if "{1}" in template)
    return vary_question(rng, fill_template(rng.choice(templates), pair))


def caption(scene: Sequence[Instance], length: Length) -> str:
    """Describe a scene."""
    if length not in ("short", "normal", "long"):
        raise ValueError(f"caption length {length!r} is none of 'short', 'normal', 'long'")
    order = centre_order([(cx, cy) for _, cx, cy in scene])
    kinds: dict[int, list[tuple[float, float]]] = {}
    for i in order:
        index, cx, cy = scene[i]
        kinds.setdefault(index, []).append((cx, cy))
    listing = join_list([_counted(index, len(places)) for index, places in kinds.items()]) or "nothing"
    if length == "short":
        return f"{listing[0].upper()}{listing[1:]}."
    sentences = [f"A picture of {listing}."]
    if length == "long":
        sentences += [_located(index, places) for index, places in list(kinds.items())[:MAX_LOCATED_KINDS]]
    return " ".join(sentences)


def _counted(index: int, count: int) -> str:
    item = load_objects()[index]
    return f"{count} {item.name if count == 1 else item.plural}"


def _located(index: int, places: Sequence[tuple[float, float]]) -> str:
    zones = sorted({(min(2, max(0, int(cy * 3))), min(2, max(0, int(cx * 3)))) for cx, cy in places})
    subject = subject_of(load_objects()[index], many=len(places) > 1)
    if len(zones) > MAX_ZONES:
        return f"{subject} everywhere."
    return f"{subject} at the {join_list([ZONES[row][column] for row, column in zones])}."


def subject_of(item: SceneObject, many: bool) -> str:
    """Begin a sentence on where something is: "The dog is", "The dogs are", "The scissors are"."""
    plural = many or has_no_singular((item.name, item.plural))
    return f"The {item.plural if many else item.name} {'are' if plural else 'is'}"


def fill_template(template: str, pair: tuple[str, str]) -> str:
    singular, plural = pair
    # Nouns without a singular, such as scissors, take no article.
    single = singular if has_no_singular(pair) else f"{article(singular)} {singular}"
    return template.format(singular, plural, single)


def has_no_singular(pair: tuple[str, str]) -> bool:
    """Whether a word is a plural without a singular: "scissors", but not "fish"."""
    return pair[0] == pair[1] and pair[0].endswith("s")


def vary_phrase(rng: random.Random, text: str) -> str:
    style = rng.random()
    if style < 0.84:
        return text
    if style < 0.92:
        return text.capitalize()
    return text.upper() if style < 0.96 else text.title()


def vary_question(rng: random.Random, text: str) -> str:
    """Write a question as users type it: with or without a capital letter and a question mark."""
    if rng.random() < 0.5:
        text = text[0].upper() + text[1:]
    if rng.random() < 0.04:
        text = text.upper()
    dropped = rng.random() < 0.12
    if not text.endswith("?"):
        return text + "." if dropped else text
    return text[:-1] if dropped else text


Reference = Literal["point", "box"]

_MARKED = (
    "what is this?", "what's this?", "what is here?", "what's here?", "what object is this?", "which object is this?",
    "which object is marked?", "what is marked?", "which object is here?", "what thing is this?", "name this object",
    "name this", "name the marked object", "what do you see here?", "what is it?", "what is the name of this object?",
    "identify this", "identify this object", "identify the marked object", "tell me what this is", "what item is this?",
    "which item is this?", "what is shown here?", "what did i mark?", "which one is this?",
)  # fmt: skip
REFERENCE_QUESTIONS: dict[Reference, tuple[str, ...]] = {
    "point": (
        *_MARKED, "what is at this point?", "what's at this point?", "what object is at this point?",
        "which object is at this point?", "what is at this place?", "what is at this spot?", "what is at the point?",
        "what do you see at this point?", "what am i pointing at?", "what am i pointing to?", "what did i click on?",
        "what is at this location?", "which object is at this spot?", "what is here at this point?",
    ),
    "box": (
        *_MARKED, "what is in this box?", "what's in this box?", "what object is in this box?",
        "which object is in this box?", "what is in the box?", "what is inside this box?", "what is in this area?",
        "what is in this region?", "what do you see in this box?", "what's inside the box?",
        "what is in this rectangle?",
        "which object is inside the box?", "what does the box show?", "what is in the marked area?",
    ),
}  # fmt: skip
"""Templates without a gap, by what the reference is."""

EVERYTHING = "objects"
"""What reasoning calls things of all kinds."""
