"""Draw the outline of an object, or of every instance: a box, and an SVG path relative to it.

Some checkpoints write the path. Others write codes of a mask, whose outline is traced.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from photonlite.grammar.decoding.corners import CornersGrammar
from photonlite.grammar.decoding.grammars import PATH_GRID, PathIds, SegmentGrammar
from photonlite.grammar.prompts import Prompts, Size
from photonlite.request import Completion, Request, SamplingSettings
from photonlite.results import Segments
from photonlite.results.contours import trace_path
from photonlite.results.svg import path_to_polygon
from photonlite.skills.base import (
    SpatialRefs,
    box,
    clean_object,
    clean_refs,
    corner_box,
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
    """Make the request for the outline of a subject of at most 1,000 characters."""
    subject = clean_object(subject)
    prompt = prompts.segment(subject, refs=clean_refs(refs))
    if prompts.inline is not None:
        return listed(prompts, prompts.inline, "segment", prompt, subject, settings, sizes)
    budget = min(settings.max_tokens, room_after(prompt, prompts, images=1, sizes=sizes))
    grammar = SegmentGrammar(prompts.vocabulary, prompts.path_ids, budget)
    return Request("segment", prompt, grammar, budget, settings, subject)


def finish(prompts: Prompts, request: Request, completion: Completion) -> Segments:
    """Read the outline; there is none where no object was found, or where the token limit cut the path short."""
    if isinstance(request.grammar, CornersGrammar):
        return Segments(_outlines(prompts, request.grammar, completion), **spatial_info(completion))
    tokens, end = completion.tokens, prompts.vocabulary.end
    segments = []
    if (found := groups(tokens, size=3)) and tokens[-1].id == end:
        path = path_text((token.id for token in tokens if not token.values and token.id != end), prompts.path_ids)
        bbox = box(found[0])
        outline = {"path": path, "bbox": bbox, "polygon": path_to_polygon(path, bbox)}
        segments.append({**outline, "label": request.subject, "score": score(found[0])})
    return Segments(segments, **spatial_info(completion))


def _outlines(prompts: Prompts, grammar: CornersGrammar, completion: Completion) -> list[dict[str, Any]]:
    """Trace the masks of an answer's items; one without an area, of its box or of its mask, is left out."""
    found = []
    for item in grammar.read(completion.tokens):
        bbox = corner_box(item.corners)
        if bbox is None or prompts.inline is None:
            continue
        if path := trace_path(prompts.inline.mask(item.codes)):
            outline = {"path": path, "bbox": bbox, "polygon": path_to_polygon(path, bbox)}
            found.append({**outline, "label": item.label, "score": score(item.corners)})
    return found


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
