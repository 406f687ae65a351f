"""Point at every instance of an object."""

from collections.abc import Sequence

from photonlite.grammar.decoding.grammars import PointGrammar
from photonlite.grammar.decoding.items import ItemsGrammar
from photonlite.grammar.prompts import Prompts, Size
from photonlite.request import Completion, Request, SamplingSettings
from photonlite.results import Points
from photonlite.skills.base import (
    SpatialRefs,
    clamp,
    clean_object,
    clean_refs,
    groups,
    listed,
    room_after,
    score,
    spatial_info,
)


def build(
    prompts: Prompts,
    subject: str,
    *,
    refs: SpatialRefs | None = None,
    settings: SamplingSettings,
    sizes: Sequence[Size] = (),
) -> Request:
    """Make the request for points at a subject of at most 1,000 characters."""
    subject = clean_object(subject)
    prompt = prompts.point(subject, refs=clean_refs(refs))
    if prompts.inline is not None:
        return listed(prompts, prompts.inline, "point", prompt, subject, settings, sizes)
    # Like the public reference, a list is limited by max_objects and the context, not by max_tokens.
    budget = min(2 * settings.max_objects, room_after(prompt, prompts, images=1))
    grammar = PointGrammar(prompts.vocabulary, budget, settings.max_objects)
    return Request("point", prompt, grammar, budget, settings, subject)


def finish(request: Request, completion: Completion) -> Points:
    """Read the points, in the model's order."""
    grammar = request.grammar
    if isinstance(grammar, ItemsGrammar):
        (width, height), items = grammar.bounds, grammar.read(completion.tokens)
        found = [(item.numbers[0] / width, item.numbers[1] / height, item.score) for item in items]
    else:
        pairs = groups(completion.tokens, size=2)
        found = [(clamp(x.values[0]), clamp(y.values[0]), score((x, y))) for x, y in pairs]
    points = [{"x": x, "y": y, "label": request.subject, "score": sure} for x, y, sure in found]
    return Points(points, **spatial_info(completion))
