"""Draw the outline of an object: a box, and an SVG path relative to it."""

from collections.abc import Iterable, Sequence

from photonlite.grammar.decoding.grammars import PATH_GRID, PathIds, SegmentGrammar
from photonlite.grammar.prompts import Prompts, Size
from photonlite.request import Completion, Request, SamplingSettings
from photonlite.results import Segments
from photonlite.results.svg import path_to_polygon
from photonlite.skills.base import (
    SpatialRefs,
    box,
    clean_object,
    clean_refs,
    groups,
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
    """Make the request for the outline of a subject of at most 1,000 characters."""
    subject = clean_object(subject)
    prompt = prompts.segment(subject, refs=clean_refs(refs))
    budget = min(settings.max_tokens, room_after(prompt, prompts, images=1, sizes=sizes))
    grammar = SegmentGrammar(prompts.vocabulary, prompts.path_ids, budget)
    return Request("segment", prompt, grammar, budget, settings, subject)


def finish(prompts: Prompts, request: Request, completion: Completion) -> Segments:
    """Read the outline; there is none where no object was found, or where the token limit cut the path short."""
    tokens, end = completion.tokens, prompts.vocabulary.end
    segments = []
    if (found := groups(tokens, size=3)) and tokens[-1].id == end:
        path = path_text((token.id for token in tokens if not token.values and token.id != end), prompts.path_ids)
        bbox = box(found[0])
        outline = {"path": path, "bbox": bbox, "polygon": path_to_polygon(path, bbox)}
        segments.append({**outline, "label": request.subject, "score": score(found[0])})
    return Segments(segments, **spatial_info(completion))


def path_text(token_ids: Iterable[int], ids: PathIds) -> str:
    """Spell a path in SVG, in units of the box: "M 480 0 L 960 - 96" becomes "M 0.5 0 L 1 -0.1"."""
    parts, sign = [], ""
    for token_id in token_ids:
        if token_id in ids.minus:
            sign = "-"
        elif (letter := ids.commands.get(token_id)) is not None:
            parts.append(letter)
        else:
            number = f"{ids.integers[token_id] / PATH_GRID:.3f}".rstrip("0").rstrip(".")
            parts.append(number if number == "0" else sign + number)
            sign = ""
    return " ".join(parts)
