"""Find every instance of an object: boxes."""

from collections.abc import Sequence

from photonlite.grammar.decoding.corners import CornersGrammar
from photonlite.grammar.decoding.grammars import DetectGrammar
from photonlite.grammar.decoding.items import ItemsGrammar
from photonlite.grammar.prompts import Prompts, Size
from photonlite.request import Completion, Request, SamplingSettings
from photonlite.results import Detections
from photonlite.skills.base import (
    box,
    clean_object,
    corner_box,
    groups,
    listed,
    listed_box,
    room_after,
    score,
    spatial_info,
)


def build(prompts: Prompts, subject: str, *, settings: SamplingSettings, sizes: Sequence[Size] = ()) -> Request:
    """Make the request for the boxes of a subject of at most 1,000 characters."""
    subject = clean_object(subject)
    prompt = prompts.detect(subject)
    if prompts.inline is not None:
        return listed(prompts, prompts.inline, "detect", prompt, subject, settings, sizes)
    # Like the public reference, a list is limited by max_objects and the context, not by max_tokens.
    budget = min(3 * settings.max_objects, room_after(prompt, prompts, images=1))
    grammar = DetectGrammar(prompts.vocabulary, budget, settings.max_objects)
    return Request("detect", prompt, grammar, budget, settings, subject)


def finish(request: Request, completion: Completion) -> Detections:
    """Read the boxes, in the model's order."""
    grammar = request.grammar
    if isinstance(grammar, ItemsGrammar):
        items = [(listed_box(item, grammar.bounds), item.score) for item in grammar.read(completion.tokens)]
        found = [(place, request.subject, sure) for place, sure in items if place is not None]
    elif isinstance(grammar, CornersGrammar):
        corners = [(corner_box(item.corners), item) for item in grammar.read(completion.tokens)]
        found = [(place, item.label, score(item.corners)) for place, item in corners if place is not None]
    else:
        found = [(box(tokens), request.subject, score(tokens)) for tokens in groups(completion.tokens, size=3)]
    objects = [{**place, "label": label, "score": sure} for place, label, sure in found]
    return Detections(objects, **spatial_info(completion))
