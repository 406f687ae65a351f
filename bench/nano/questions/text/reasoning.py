"""Questions that are answered after looking: which ones, and the reasoning that points at what was found.

Reasoning is one text, grounded by the points of all it speaks of: "bananas" with a point on each, then the answer as
without reasoning. Where nothing is found it is "Nothing", without points.
"""

from collections.abc import Sequence
from typing import Literal

from bench.nano.questions.text.language import Instance, centre_order
from bench.nano.scenes.objects import load_objects

Question = Literal["count", "existence", "total"]

REASONING_SHARES: dict[Question, float] = {"count": 0.7, "existence": 0.2, "total": 0.1}
"""How often each question is put with reasoning."""
EVERYTHING = "objects"


def grounded(scene: Sequence[Instance], question: Question, kind: int | None) -> list[int]:
    """Return the places in the scene that reasoning points at, in reading order; `kind` None is an unknown word."""
    places = [i for i, instance in enumerate(scene) if question == "total" or instance[0] == kind]
    return [places[i] for i in centre_order([scene[place][1:] for place in places])]


def reasoning_text(question: Question, kind: int | None, count: int) -> str:
    """Return the text of the reasoning about `count` things found of a kind (class index; None for an unknown word)."""
    if not count:
        return "Nothing"
    if question == "total" or kind is None:
        return EVERYTHING
    return load_objects()[kind].plural
