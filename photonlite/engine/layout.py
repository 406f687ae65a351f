"""Where the images of a request stand, and what its prompt is then."""

from collections.abc import Sequence as ListLike
from dataclasses import dataclass, replace

from photonlite.image_inputs import ImageRef
from photonlite.images.crops import CropSpec
from photonlite.models.base import Model
from photonlite.request import IMAGE, Request, Token
from photonlite.sequence import ImageSpan, PromptTurns


@dataclass(frozen=True, slots=True)
class Layout:
    """The part of a sequence that depends on the positions of its images; see `Sequence`."""

    request: Request
    prefix_len: int = 0
    image: ImageRef | None = None
    inside: tuple[ImageSpan, ...] = ()
    turns: PromptTurns | None = None
    prompt_block: int = 0


def lay_out(model: Model, request: Request, images: ListLike[ImageRef]) -> Layout:
    """Give each image of a request its positions; may raise an ImageError for one that the model cannot read.

    A request with neither a prompt nor a budget computes nothing, so its images get no positions.
    """
    shape, spec = model.shape, model.crop_spec
    marks = sum(token.id == IMAGE.id for token in request.prompt)
    if shape.prefix_length is not None or isinstance(spec, CropSpec):
        if marks or len(images) > 1:
            raise ValueError(f"{len(images)} images, {marks} of them inside the prompt: this model reads one before it")
        image = images[0] if images else None
        return Layout(request, 1 if image is None else shape.prefix_length or 1, image)
    if not request.prompt and not request.budget:
        return Layout(request)
    if marks != len(images):
        raise ValueError(f"a prompt with places for {marks} images came with {len(images)}")
    waiting = iter(images)
    tokens: list[Token] = []
    spans: list[ImageSpan] = []
    parts: list[int | tuple[int, int]] = []
    for token in request.prompt:
        if token.id != IMAGE.id:
            tokens.append(token)
            parts.append(1)
            continue
        image = next(waiting)
        rows, columns = spec.positions_of(image.size or (1, 1))
        spans.append(ImageSpan(image, len(tokens), rows * columns))
        tokens += [IMAGE] * (rows * columns)
        parts.append((rows, columns))
    block = len(tokens) - request.begun if shape.prefix_lm else 0
    laid_out = replace(request, prompt=tuple(tokens))
    return Layout(laid_out, inside=tuple(spans), turns=model.turns(parts), prompt_block=block)
