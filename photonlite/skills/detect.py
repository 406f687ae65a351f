"""Find every instance of an object: boxes."""

from photonlite.grammar.decoding.grammars import DetectGrammar
from photonlite.grammar.prompts import Prompts
from photonlite.request import Completion, Request, SamplingSettings
from photonlite.results import Detections
from photonlite.skills.base import box, clean_object, groups, room_after, score, spatial_info


def build(prompts: Prompts, subject: str, *, settings: SamplingSettings) -> Request:
    """Make the request for the boxes of a subject of at most 1,000 characters."""
    subject = clean_object(subject)
    prompt = prompts.detect(subject)
    # Like the public reference, a list is limited by max_objects and the context, not by max_tokens.
    budget = min(3 * settings.max_objects, room_after(prompt, prompts, with_image=True))
    grammar = DetectGrammar(prompts.vocabulary, budget, settings.max_objects)
    return Request("detect", prompt, grammar, budget, settings, subject)


def finish(request: Request, completion: Completion) -> Detections:
    """Read the boxes, in the model's order."""
    found = groups(completion.tokens, size=3)
    objects = [{**box(tokens), "label": request.subject, "score": score(tokens)} for tokens in found]
    return Detections(objects, **spatial_info(completion))
