"""Plurals, articles and lists: rules for the words of `objects.txt` and `unknown.txt`, not for all of English."""

import re
from collections.abc import Sequence

_IRREGULAR = {
    "mouse": "mice", "goose": "geese", "tooth": "teeth", "foot": "feet", "die": "dice", "ox": "oxen",
    "child": "children", "man": "men", "woman": "women", "person": "people", "leaf": "leaves", "loaf": "loaves",
    "knife": "knives", "scarf": "scarves", "shelf": "shelves", "wolf": "wolves", "calf": "calves", "half": "halves",
    "tomato": "tomatoes", "potato": "potatoes", "cactus": "cacti", "snowman": "snowmen",
}  # fmt: skip

# Words without a plural of their own: already plural, or not counted.
_INVARIANT_WORDS = (
    "grapes scissors books glasses sunglasses eyeglasses spectacles jeans trousers fries chips pancakes gloves socks "
    "headphones pins dice broccoli corn popcorn cutlery luggage tennis pong bowling lightning voltage cooking pasta "
    "sheep fish deer shrimp salmon trout squid bison moose swine honey milk coffee chocolate meat toast "
    "pliers tweezers tongs binoculars shorts tights pyjamas stairs noodles billiards locked rice sugar salt flour sand "
    "snow rain fog smoke furniture money water butter jam soup tea yoghurt hail mud armour jewellery"
)
_INVARIANT = frozenset(_INVARIANT_WORDS.split())

# The head of a phrase ends before the first of these words: "head of broccoli", "flag in hole".
_HEAD_END = re.compile(r" (?:of|in|on|with|without|and|tilted|showing|pointed|not|europe-africa)\b")


def pluralize(phrase: str) -> str:
    """Return the plural of a lower-case noun phrase, the head noun inflected: "bag of money" -> "bags of money"."""
    cut = _HEAD_END.search(phrase)
    head, tail = (phrase[: cut.start()], phrase[cut.start() :]) if cut else (phrase, "")
    before, _, noun = head.rpartition(" ")
    return f"{before} {_plural_noun(noun)}{tail}" if before else _plural_noun(noun) + tail


def _plural_noun(noun: str) -> str:
    if noun in _INVARIANT:
        return noun
    if noun in _IRREGULAR:
        return _IRREGULAR[noun]
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


# Written with a vowel but said with a consonant.
_SAID_WITH_CONSONANT = ("uni", "ufo", "eu", "one", "use", "uku")
# Written with a consonant but said with a vowel.
_SAID_WITH_VOWEL = ("hour", "honest", "x-")


def article(phrase: str) -> str:
    """Return "a" or "an" for the phrase that follows it."""
    word = phrase.lower()
    if word.startswith(_SAID_WITH_VOWEL):
        return "an"
    return "an" if word[:1] in "aeiou" and not word.startswith(_SAID_WITH_CONSONANT) else "a"


def join_list(items: Sequence[str]) -> str:
    """Join as in running text: "", "a", "a and b", "a, b and c"."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"
