"""Point at every instance of an object."""

from photonlite.grammar.decoding.spatial import PointGrammar
from photonlite.request import Completion, Request, SamplingSettings
from photonlite.results import Points
from photonlite.skills.base import (
    MAX_OBJECT_CHARACTERS,
    Prompts,
    SpatialRefs,
    clamp,
    clean_refs,
    clean_text,
    groups,
    room_after,
    score,
)


def build(prompts: Prompts, subject: str, *, refs: SpatialRefs | None = None, settings: SamplingSettings) -> Request:
    """Make the request for points.

    Args:
        prompts: The checkpoint's.
        subject: What to point at, at most 1,000 characters.
        refs: Places in the image that the subject is about.
        settings: How to choose, and how many points at most.

    Raises:
        PromptError: The subject is no text, empty or too long.
        SpatialRefError: A reference is no place in the image.
        UnsupportedSkillError: The checkpoint gives no points.
        CapacityError: The prompt exceeds the context.
    """
    subject = clean_text(subject, "object", MAX_OBJECT_CHARACTERS)
    prompt = prompts.point(subject, refs=clean_refs(refs))
    # max_tokens is for words: like the reference, a list ends with max_objects, and with the context.
    budget = min(2 * settings.max_objects, room_after(prompt, prompts, with_image=True))
    grammar = PointGrammar(prompts.vocabulary, budget, settings.max_objects)
    return Request("point", prompt, grammar, budget, settings, subject)


def finish(request: Request, completion: Completion) -> Points:
    """Read the points, in the order in which the model gave them."""
    points = [
        {"x": clamp(x.values[0]), "y": clamp(y.values[0]), "label": request.subject, "score": score((x, y))}
        for x, y in groups(completion.tokens, size=2)
    ]
    return Points(
        points,
        metrics=completion.metrics,
        finish_reason=completion.finish_reason,
        picture_size=completion.picture_size,
    )
