"""Questions about what a point or a box of the image marks; the answer is the bare name, or "Nothing"."""

import random
from typing import Literal

from bench.nano.questions.text.language import asked
from bench.nano.scenes.objects import load_objects

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


def reference_question(rng: random.Random, kind: Reference) -> str:
    return asked(rng, rng.choice(REFERENCE_QUESTIONS[kind]))


def reference_answer(kind: int | None) -> str:
    """Name the marked object by its class index; None where the reference marks none."""
    return "Nothing" if kind is None else load_objects()[kind].name
