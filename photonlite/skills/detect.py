"""Find every instance of an object: boxes."""

from photonlite.grammar.decoding.spatial import DetectGrammar
from photonlite.request import Completion, Request, SamplingSettings
from photonlite.results import Detections
from photonlite.skills.base import MAX_OBJECT_CHARACTERS, Prompts, box, clean_text, groups, room_after, score


def build(prompts: Prompts, subject: str, *, settings: SamplingSettings) -> Request:
    """Make the request for the boxes of a subject of at most 1,000 characters.

    Raises:
        PromptError: The subject is no text, empty or too long.
        UnsupportedSkillError: The checkpoint draws no boxes.
        CapacityError: The prompt exceeds the context.
    """
    subject = clean_text(subject, "object", MAX_OBJECT_CHARACTERS)
    prompt = prompts.detect(subject)
    # Like the public reference, a list is limited by max_objects and the context, not by max_tokens.
    budget = min(3 * settings.max_objects, room_after(prompt, prompts, with_image=True))
    grammar = DetectGrammar(prompts.vocabulary, budget, settings.max_objects)
    return Request("detect", prompt, grammar, budget, settings, subject)


def finish(request: Request, completion: Completion) -> Detections:
    """Read the boxes, in the model's order."""
    objects = [
        {**box(found), "label": request.subject, "score": score(found)} for found in groups(completion.tokens, size=3)
    ]
    return Detections(
        objects,
        metrics=completion.metrics,
        finish_reason=completion.finish_reason,
        picture_size=completion.picture_size,
    )
