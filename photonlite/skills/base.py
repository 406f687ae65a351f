"""What skills share: checks of input, room in the context, reading of tokens, scores."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from photonlite.errors import CapacityError, PromptError, SpatialRefError
from photonlite.grammar.decoding.grammars import TextGrammar
from photonlite.grammar.decoding.items import Item
from photonlite.grammar.prompts import InlineImages, PlaceKind, Places, Prompts, Size
from photonlite.images.source import named_image
from photonlite.request import Completion, Request, SamplingSettings, Token
from photonlite.results import Box, Detections, Point, Points, Segments
from photonlite.results.spatial import ResultInfo
from photonlite.results.text import TokenReader

MAX_OBJECT_CHARACTERS = 1_000
MAX_QUESTION_CHARACTERS = 4_000

ANY_SIZE = (1_000, 1_000)
"""Stands for the size of an image that has not been read yet; the request is built again once it has."""

SpatialRefs: TypeAlias = Sequence[Sequence[float] | Mapping[str, Any] | Box | Point] | Mapping[str, Any] | Box | Point
"""Points (x, y) and boxes (x_min, y_min, x_max, y_max), normalised to [0, 1], as numbers or as results hold them.

Also a whole result of `detect`, `point` or `segment`, or one of its entries.
"""


def clean_text(text: object, what: str, limit: int) -> str:
    """Strip a question or the name of an object; raises a PromptError for anything but text within the limit."""
    if not isinstance(text, str):
        given = "missing" if text is None else f"of type {type(text).__name__}"
        raise PromptError(f"the {what} is {given}: give text")
    stripped = text.strip()
    if not stripped:
        raise PromptError(f"the {what} is empty: give at least one character that is not white space")
    if len(stripped) > limit:
        raise PromptError(f"the {what} has {len(stripped)} characters, over the limit of {limit}: shorten it")
    return stripped


def clean_object(subject: object) -> str:
    return clean_text(subject, "object", MAX_OBJECT_CHARACTERS)


def clean_refs(refs: SpatialRefs | None) -> Places:
    """Return spatial references as numbers, whose range the prompts check; raises a SpatialRefError."""
    if refs is None:
        return []
    if isinstance(refs, Detections | Points | Segments):
        refs = refs.to_pixels(1, 1)  # from pixels back to shares, where it was scaled
    if isinstance(refs, Mapping):
        entries = next((refs[key] for key in ("objects", "points", "segments") if key in refs), [refs])
    else:
        entries = [refs] if isinstance(refs, Box | Point) else refs
    try:
        return [_numbers(entry) for entry in entries]
    except TypeError as cause:
        raise SpatialRefError(
            f"spatial_refs is of type {type(refs).__name__}: give a list of points (x, y) and boxes "
            "(x_min, y_min, x_max, y_max), or a result of detect or point"
        ) from cause


def _numbers(entry: Any) -> Sequence[float]:
    if isinstance(entry, Box | Point):
        entry = entry.to_dict()
    if not isinstance(entry, Mapping):
        return cast(Sequence[float], entry)
    place = entry.get("bbox", entry)
    names = ("x", "y") if "x" in place else ("x_min", "y_min", "x_max", "y_max")
    if missing := [name for name in names if name not in place]:
        raise SpatialRefError(
            f"a spatial reference has no {missing[0]!r}: give a point with x and y, or a box with x_min, y_min, x_max "
            "and y_max"
        )
    return tuple(place[name] for name in names)


def room_after(prompt: Sequence[Token], prompts: Prompts, *, images: int, sizes: Sequence[Size] = ()) -> int:
    """Return how many tokens may follow a prompt: the last one needs no position, as nothing is computed from it.

    Raises a CapacityError where there is none, and an ImageError for an image that the model cannot read. Where images
    stand inside prompts and their sizes are not known, they count as the smallest ones.
    """
    if (inline := prompts.inline) is not None:
        taken = _positions(inline, sizes) if sizes else images * inline.least_positions
        before, what = taken - images, f"{images} image{'s' * (images > 1)}"
    elif images:
        before, what = prompts.prefix_length, "BOS and the image"
    else:
        before, what = 1, "BOS"
    needed, limits = before + len(prompt), prompts.limits
    if limits.max_input_images is not None and images > limits.max_input_images:
        raise CapacityError(
            f"the request has {images} images, over the limit max_input_images, which is {limits.max_input_images}"
        )
    if limits.max_input_tokens is not None and needed > limits.max_input_tokens:
        raise CapacityError(
            f"the request's input takes {needed} positions, over the limit max_input_tokens, which is "
            f"{limits.max_input_tokens}: {'give fewer or smaller images, or ' if sizes else ''}shorten the text"
        )
    if needed > prompts.max_context:
        parts = f" ({before} for {what} + {len(prompt)} for the prompt)" if before else ""
        smaller = "give fewer or smaller images, or " if sizes else ""
        raise CapacityError(
            f"the request needs {needed} positions{parts}, but this model's context has {prompts.max_context}: "
            f"{smaller}shorten the text by {needed - prompts.max_context} tokens or more"
        )
    room = prompts.max_context - needed + 1
    return room if limits.max_output_tokens is None else min(room, limits.max_output_tokens)


def _positions(inline: InlineImages, sizes: Sequence[Size]) -> int:
    taken = 0
    for place, size in enumerate(sizes, 1):
        with named_image(place, len(sizes)):
            rows, columns = inline.positions_of(size)
        taken += rows * columns
    return taken


def listed(
    prompts: Prompts,
    inline: InlineImages,
    kind: PlaceKind,
    prompt: tuple[Token, ...],
    subject: str,
    settings: SamplingSettings,
    sizes: Sequence[Size],
) -> Request:
    """Make the request for a list of places that prompts say how to write; the size of the image may be unknown."""
    bounds = inline.bounds(kind, sizes[0] if sizes else ANY_SIZE)
    form = inline.format(kind, subject)
    room = room_after(prompt, prompts, images=1, sizes=sizes)
    budget = min(form.budget(settings.max_objects, bounds), room)
    return Request(kind, prompt, form.grammar(bounds, budget, settings.max_objects), budget, settings, subject)


def listed_box(item: Item, bounds: Sequence[int]) -> dict[str, float] | None:
    """Return a box in [0, 1]; swapped corners are put in order, and a box without an area is None."""
    place = ordered_box(*(number / bound for number, bound in zip(item.numbers, bounds, strict=True)))
    return place if place["x_min"] < place["x_max"] and place["y_min"] < place["y_max"] else None


def corner_box(corners: Sequence[Token]) -> dict[str, float] | None:
    """Return the box of y_min, x_min, y_max and x_max; None for one without an area, or with swapped corners."""
    top, left, bottom, right = (token.values[0] for token in corners)
    place = {"x_min": left, "y_min": top, "x_max": right, "y_max": bottom}
    return place if left < right and top < bottom else None


def ordered_box(left: float, top: float, right: float, bottom: float) -> dict[str, float]:
    """Return the box between two corners, in whatever order they come."""
    return {"x_min": min(left, right), "y_min": min(top, bottom), "x_max": max(left, right), "y_max": max(top, bottom)}


class StopSequences:
    """Passes text on up to the first of some sequences, also where pieces cut one in two; then sets `met`."""

    def __init__(self, sequences: Sequence[str]) -> None:
        self._sequences = tuple(sequences)
        self._held = ""
        self.met = False

    def feed(self, piece: str) -> str:
        """Take a piece; return the text that is certain to come before any stop sequence."""
        if self.met:
            return ""
        text = self._held + piece
        # The first complete one counts, so that it does not matter how the text was cut into pieces.
        ends = [(text.find(one) + len(one), text.find(one)) for one in self._sequences if one in text]
        begun = (k for one in self._sequences for k in range(1, min(len(one), len(text) + 1)) if text.endswith(one[:k]))
        certain = min(ends)[1] if ends else len(text) - max(begun, default=0)
        self.met, self._held = bool(ends), "" if ends else text[certain:]
        return text[:certain]

    def flush(self) -> str:
        rest, self._held = self._held, ""
        return rest


class TextReader:
    """Reads tokens into text, up to the first stop sequence."""

    def __init__(self, prompts: Prompts, stop: Sequence[str] = ()) -> None:
        self._detokenizer = prompts.detokenizer()
        self._ends = (prompts.vocabulary.end, *prompts.vocabulary.other_ends)
        self._stop = StopSequences(stop)

    def feed(self, token: Token) -> str:
        return self._stop.feed("" if token.id in self._ends else self._detokenizer.feed(token.id))

    def flush(self) -> str:
        return self._stop.feed(self._detokenizer.flush()) + self._stop.flush()

    def stops_at(self, token: Token) -> bool:
        """Read a token; return whether the text has met a stop sequence."""
        self.feed(token)
        return self._stop.met


def text_grammar(prompts: Prompts, budget: int, settings: SamplingSettings) -> TextGrammar:
    """Return the grammar of a text that ends at the settings' stop sequences."""
    stops_at = TextReader(prompts, settings.stop).stops_at if settings.stop else None
    return TextGrammar(prompts.vocabulary, budget, stops_at)


def read_text(reader: TokenReader, tokens: Iterable[Token]) -> str:
    return "".join(map(reader.feed, tokens)) + reader.flush()


def groups(tokens: Iterable[Token], size: int) -> list[tuple[Token, ...]]:
    """Group the tokens that carry numbers into objects of `size` tokens, without an unfinished last one."""
    carrying = [token for token in tokens if token.values]
    whole = len(carrying) // size * size
    return [tuple(carrying[start : start + size]) for start in range(0, whole, size)]


def spatial_info(completion: Completion) -> ResultInfo:
    return {
        "metrics": completion.metrics,
        "finish_reason": completion.finish_reason,
        "picture_size": completion.picture_size,
    }


def score(tokens: Sequence[Token]) -> float:
    """Confidence in one object, in (0, 1].

    The probability that there is one more object, from the position of its first token, times the geometric mean over
    its numbers (x, y, and width and height of a box, or its corners) of the probability mass around the chosen bin. The
    mass counts
    bins within 2 % of the image for a coordinate, and within 25 % for a width or height: a box that is off by that much
    mostly still has an IoU of 0.5 with the object, and on held-out scenes the score is the share of boxes that have
    (`bench.nano.evaluation`). Both probabilities are those of the model at temperature 1.
    """
    masses = [mass for token in tokens for mass in token.masses]
    logarithm = sum(math.log(max(mass, _TINY)) for mass in masses) / len(masses)
    return min(1.0, max(_TINY, tokens[0].probability * math.exp(logarithm)))


# A probability may round to 0 in float32.
_TINY = 1e-9


def box(tokens: Sequence[Token]) -> dict[str, float]:
    """Return the corners of a centre and a size, clamped to the image."""
    (x,), (y,), (width, height) = (token.values for token in tokens)
    return {
        "x_min": clamp(x - width / 2),
        "y_min": clamp(y - height / 2),
        "x_max": clamp(x + width / 2),
        "y_max": clamp(y + height / 2),
    }


def clamp(value: float) -> float:
    return min(1.0, max(0.0, value))
