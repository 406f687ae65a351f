"""Questions about colours: which nouns have one, and what it is."""

from collections.abc import Sequence

from bench.nano.questions.text.language import Instance
from bench.nano.scenes.objects import COLOURS, SceneObject, load_objects

COLOUR_QUESTIONS = (
    "what colour is the {0}?", "what color is the {0}?", "which colour is the {0}?", "which color is the {0}?",
    "what is the colour of the {0}?", "what is the color of the {0}?", "what's the colour of the {0}?",
    "what's the color of the {0}?", "tell me the colour of the {0}", "tell me the color of the {0}",
    "which colour does the {0} have?", "which color does the {0} have?", "what colour is this {0}?",
    "what color is this {0}?", "{0} colour?", "{0} color?", "colour of the {0}?", "color of the {0}?",
)  # fmt: skip
"""Templates: {0} is a noun of `COLOUR_NOUNS`."""

# Other things are called so too, or the colour is not that of the thing drawn.
_UNCLEAR = frozenset(("flower", "wine", "wine glass", "glass of wine"))
# Words of Unicode names that people do not say; names that contain one give no colour.
_UNSAID = frozenset(("large", "pointed"))


def _split_colour(name: str) -> tuple[str, str] | None:
    """Split "red apple" into colour and noun; None where a name is not one colour and a noun."""
    colour, _, noun = name.partition(" ")
    return (colour, noun) if colour in COLOURS and noun and not _UNSAID & set(noun.split()) else None


def _colour_nouns(objects: Sequence[SceneObject]) -> dict[str, dict[int, str]]:
    """Return the nouns that have a colour: an object with a name of colour and noun lends it to its plain names too."""
    nouns: dict[str, dict[int, str]] = {}
    for index, item in enumerate(objects):
        split = [found for found in map(_split_colour, item.names) if found]
        plain = [name for name in item.names if not set(COLOURS) & set(name.split())]
        for colour, noun in split:
            for word in (noun, *plain):
                if word not in _UNCLEAR:
                    nouns.setdefault(word, {})[index] = colour
    return nouns


COLOUR_NOUNS: dict[str, dict[int, str]] = _colour_nouns(load_objects())
"""What has a colour, in the singular: noun to the class indices that it may mean and the colour of each."""


def colour_answer(scene: Sequence[Instance], noun: str) -> str | None:
    """Return the colour of a noun in a scene, None where nothing is called so or things of two colours are."""
    kinds = COLOUR_NOUNS[noun]
    colours = {kinds[kind] for kind, _, _ in scene if kind in kinds}
    return colours.pop() if len(colours) == 1 else None
