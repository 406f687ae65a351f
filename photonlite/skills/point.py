"""Point at every instance of an object."""

from photonlite.grammar.decoding.grammars import PointGrammar
from photonlite.grammar.prompts import Prompts
from photonlite.request import Completion, Request, SamplingSettings
from photonlite.results import Points
from photonlite.skills.base import (
    SpatialRefs,
    clamp,
    clean_object,
    clean_refs,
    groups,
    room_after,
    score,
    spatial_info,
)


def build(prompts: Prompts, subject: str, *, refs: SpatialRefs | None = None, settings: SamplingSettings) -> Request:
    """Make the request for points at a subject of at most 1,000 characters."""
    subject = clean_object(subject)
    prompt = prompts.point(subject, refs=clean_refs(refs))
    # Like the public reference, a list is limited by max_objects and the context, not by max_tokens.
    budget = min(2 * settings.max_objects, room_after(prompt, prompts, with_image=True))
    grammar = PointGrammar(prompts.vocabulary, budget, settings.max_objects)
    return Request("point", prompt, grammar, budget, settings, subject)


def finish(request: Request, completion: Completion) -> Points:
    """Read the points, in the model's order."""
    points = [
        {"x": clamp(x.values[0]), "y": clamp(y.values[0]), "label": request.subject, "score": score((x, y))}
        for x, y in groups(completion.tokens, size=2)
    ]
    return Points(points, **spatial_info(completion))
