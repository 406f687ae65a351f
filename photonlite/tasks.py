"""What can be asked, as tasks: a request, the image it is about, and how its tokens become a result.

The methods of :class:`photonlite.api.VisionModel`, their async twins and `batch` all ask for the same tasks.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from photonlite.engine.sequel import Further
from photonlite.errors import ImageError, InputError, SettingsError
from photonlite.hints import did_you_mean
from photonlite.images.pool import ImagePool, PreparedImage
from photonlite.images.source import ImageSource
from photonlite.options import check_names
from photonlite.request import Completion, Request, SamplingSettings, Token
from photonlite.results import Answer, Caption, Detections, Metrics, Points, Segments
from photonlite.skills import caption, detect, encode, point, query, segment
from photonlite.skills.base import OnEnd, Prompts, SpatialRefs
from photonlite.skills.query import CheckedQuestion
from photonlite.skills.typed.choices import ChoiceQuestion
from photonlite.skills.typed.forms import ChoicesForm, Form, form_of
from photonlite.skills.typed.question import DeferredRequest, TypedQuestion

R = TypeVar("R")
Settings: TypeAlias = Mapping[str, Any]


class EncodedImage:
    """An image that a model has read: may be handed in wherever that model takes an image, and is not decoded again.

    What the model has read lies in its prefix cache for as long as nothing else needs the memory; after that, and
    unnoticed but for the time it takes, the image is read again from its pixels, which this object keeps.

    Attributes:
        metrics: What encoding took.
        picture_size: Width and height of the image, in pixels.
    """

    def __init__(self, prepared: PreparedImage, metrics: Metrics) -> None:
        self._prepared = prepared
        self.metrics = metrics
        self.picture_size = prepared.size

    def prepared_for(self, pool: ImagePool, cache_salt: str) -> PreparedImage:
        """Give the image to the model whose pool prepared it.

        Raises:
            ImageError: It was another one.
            SettingsError: It was encoded with another cache_salt.
        """
        if self._prepared.pool is not pool:
            raise ImageError("this encoded image belongs to another model: encode the image with this one")
        if cache_salt and cache_salt != self._prepared.cache_salt:
            raise SettingsError(
                "this encoded image was made with another cache_salt: leave cache_salt out, or encode it with this"
            )
        return self._prepared


ImageInput: TypeAlias = ImageSource | EncodedImage
"""What methods take as an image: PIL image, H x W x 3 uint8 array, path, bytes, file object, or an encoded image."""


@dataclass(frozen=True)
class Task(Generic[R]):
    """One thing to ask.

    Attributes:
        request: For the engine; it can run once.
        image: What it is about; None for text alone.
        finish: Reads the result.
        stream: Reads it as it comes; None where it is wanted whole.
        astream: The same from tokens that are awaited.
        late: Gives the request its grammar, which takes time; None where it has one.
        further: Gives the requests that the answer takes as well once this one has ended; None for none.
    """

    request: Request
    image: ImageInput | None
    finish: Callable[[Completion], R]
    stream: Callable[[Iterator[Token], OnEnd], R] | None = None
    astream: Callable[[AsyncIterator[Token], OnEnd], R] | None = None
    late: DeferredRequest | None = None
    further: Further | None = None


class Tasks:
    """Builds tasks; arguments, their order and errors are those of the methods of `VisionModel`.

    Args:
        prompts: The checkpoint's.
    """

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._builders: dict[str, Callable[..., Task[Any]]] = {
            "caption": self.caption,
            "query": self.query,
            "detect": self.detect,
            "point": self.point,
            "segment": self.segment,
        }

    def detect(self, image: ImageInput, object: str, settings: Settings | None = None) -> Task[Detections]:
        """Find every instance of an object."""
        request = detect.build(self._prompts, object, settings=SamplingSettings.from_dict(settings))
        return Task(request, _required(image), partial(detect.finish, request))

    def point(
        self,
        image: ImageInput,
        object: str,
        settings: Settings | None = None,
        *,
        spatial_refs: SpatialRefs | None = None,
    ) -> Task[Points]:
        """Point at every instance of an object."""
        sampling = SamplingSettings.from_dict(settings)
        request = point.build(self._prompts, object, refs=spatial_refs, settings=sampling)
        return Task(request, _required(image), partial(point.finish, request))

    def segment(
        self,
        image: ImageInput,
        object: str,
        *,
        spatial_refs: SpatialRefs | None = None,
        settings: Settings | None = None,
    ) -> Task[Segments]:
        """Draw the outline of an object."""
        sampling = SamplingSettings.from_dict(settings)
        request = segment.build(self._prompts, object, refs=spatial_refs, settings=sampling)
        return Task(request, _required(image), partial(segment.finish, request, self._prompts))

    def caption(
        self, image: ImageInput, length: str = "normal", stream: bool = False, settings: Settings | None = None
    ) -> Task[Caption]:
        """Describe an image."""
        prompts = self._prompts
        request = caption.build(prompts, length, settings=SamplingSettings.from_dict(settings))
        streams = (partial(caption.stream, prompts), partial(caption.astream, prompts)) if stream else ()
        return Task(request, _required(image), partial(caption.finish, prompts), *streams)

    def query(
        self,
        image: ImageInput | None = None,
        question: str | None = None,
        stream: bool = False,
        settings: Settings | None = None,
        *,
        reasoning: bool = False,
        spatial_refs: SpatialRefs | None = None,
        schema: Any = None,
        choices: Any = None,
        regex: Any = None,
    ) -> Task[Answer]:
        """Answer a question."""
        prompts, sampling, with_image = self._prompts, SamplingSettings.from_dict(settings), image is not None
        form = form_of(schema, choices, regex)
        if form is not None:
            asked = query.read_question(
                prompts, question, with_image=with_image, reasoning=reasoning, refs=spatial_refs, settings=sampling
            )
            return self._typed(asked, form, image, stream)
        request = query.build(
            prompts, question, with_image=with_image, reasoning=reasoning, refs=spatial_refs, settings=sampling
        )
        streams = (partial(query.stream, request, prompts), partial(query.astream, request, prompts)) if stream else ()
        return Task(request, image, partial(query.finish, request, prompts), *streams)

    def _typed(self, asked: CheckedQuestion, form: Form, image: ImageInput | None, stream: bool) -> Task[Answer]:
        if isinstance(form, ChoicesForm):
            late: ChoiceQuestion | TypedQuestion = ChoiceQuestion(self._prompts, asked, form)
        else:
            late = TypedQuestion(self._prompts, asked, form)
        return Task(
            late.draft,
            image,
            late.finish,
            late.stream if stream else None,
            late.astream if stream else None,
            late,
            late.further if isinstance(late, ChoiceQuestion) else None,
        )

    def encode(self, image: ImageInput) -> Task[Completion]:
        """Read an image, and nothing more."""
        return Task(encode.build(), _required(image), lambda completion: completion)

    def from_mapping(self, task: Mapping[str, Any]) -> Task[Any]:
        """Build what a mapping asks for: `{"skill": "detect", "image": ..., "object": ...}`.

        Raises:
            InputError: It is no mapping, or has a skill or an argument that there is not, or wants a stream.
        """
        skill = task.get("skill") if isinstance(task, Mapping) else None
        if not isinstance(skill, str) or skill not in self._builders:
            hint = "" if skill is None else f"there is no skill {skill!r:.60}{did_you_mean(skill, self._builders)}: "
            example = "{'skill': 'detect', 'image': ..., 'object': ...}"
            raise InputError(f"{hint}a task is a dict such as {example}; the skills are {', '.join(self._builders)}")
        arguments = {name: value for name, value in task.items() if name != "skill"}
        build = self._builders[skill]
        check_names(map(str, arguments), skill, build)
        try:
            inspect.signature(build).bind(**arguments)
        except TypeError as cause:
            raise InputError(f"the task {skill!r} lacks something: {cause}") from cause
        if arguments.get("stream"):
            raise InputError("a batch gives whole texts: leave stream out, or ask for this one by itself")
        return build(**arguments)


def _required(image: ImageInput) -> ImageInput:
    if image is None:
        raise ImageError("there is no image (None): hand one in; only a query can do without")
    return image
