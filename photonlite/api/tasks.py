"""What can be asked, as tasks: a request, the image it is about, and how its tokens become a result.

The methods of :class:`photonlite.VisionModel`, their async twins and `batch` all build the same tasks.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from photonlite.api.options import OPTIONS, CallOptions, check_names, read_options
from photonlite.errors import ImageError, InputError, SettingsError
from photonlite.hints import did_you_mean
from photonlite.images.pool import ImagePool, PreparedImage
from photonlite.images.source import ImageSource
from photonlite.request import Completion, Request, SamplingSettings
from photonlite.results import Answer, Metrics
from photonlite.skills import caption, detect, encode, point, query, segment
from photonlite.skills.base import Prompts
from photonlite.skills.typed.choices import ChoiceQuestion
from photonlite.skills.typed.forms import ChoicesForm, form_of
from photonlite.skills.typed.question import DeferredRequest, TypedQuestion

R = TypeVar("R")
Settings: TypeAlias = Mapping[str, Any]
SKILLS = ("caption", "query", "detect", "point", "segment")
"""What a task of `batch` may name."""


class EncodedImage:
    """An image that a model has read: may be handed in wherever that model takes an image, and is not decoded again.

    What the model has read lies in its prefix cache until the memory is needed. After that the image is read again from
    its pixels, which this object keeps.

    Attributes:
        metrics: What encoding took.
        picture_size: Width and height of the image, in pixels.
    """

    def __init__(self, prepared: PreparedImage, metrics: Metrics) -> None:
        self._prepared = prepared
        self.metrics = metrics
        self.picture_size = prepared.size

    def prepared_for(self, pool: ImagePool, cache_salt: str) -> PreparedImage:
        """Return the image, if it was prepared by this pool and for this cache salt, or for any."""
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
        options: Of the call.
        stream: Reads the result as it comes, from its tokens; None where it is wanted whole.
        typed: Compiles to the grammar that the request lacks; None where it has one.
        further: Returns the follow-up requests, by name, of a completion and the name of its request (None: the first).
    """

    request: Request
    image: ImageInput | None
    finish: Callable[[Completion], R]
    options: CallOptions
    stream: Callable[..., R] | None = None
    typed: DeferredRequest | None = None
    further: Callable[[Any, Completion], Iterable[tuple[Any, Request]]] | None = None


def build_task(
    prompts: Prompts,
    method: Callable[..., object],
    image: ImageInput | None,
    options: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> Task[Any]:
    """Build the task of a call.

    Args:
        prompts: The checkpoint's.
        method: The public method that was called, for error messages and its skill.
        image: What it is about.
        options: As the method got them.
        arguments: All others by name, defaults included.
    """
    skill = method.__name__.removeprefix("a")
    sampling = SamplingSettings.from_dict(arguments.get("settings"))
    finish: Callable[[Completion], Any]
    more: dict[str, Any] = {}
    if skill == "query":
        request, finish, more = _query(prompts, arguments, sampling, with_image=image is not None)
    elif skill == "caption":
        request = caption.build(prompts, arguments["length"], settings=sampling)
        finish = partial(caption.finish, prompts)
        if arguments["stream"]:
            more = {"stream": partial(caption.stream, prompts)}
    elif skill == "detect":
        request = detect.build(prompts, arguments["object"], settings=sampling)
        finish = partial(detect.finish, request)
    elif skill == "point":
        request = point.build(prompts, arguments["object"], refs=arguments["spatial_refs"], settings=sampling)
        finish = partial(point.finish, request)
    elif skill == "segment":
        request = segment.build(prompts, arguments["object"], refs=arguments["spatial_refs"], settings=sampling)
        finish = partial(segment.finish, request, prompts)
    else:
        request, finish = encode.build(), lambda completion: completion
    if image is None and skill != "query":
        raise ImageError("there is no image (None): hand one in; only a query can do without")
    return Task(request, image, finish, read_options(options, method), **more)


def _query(
    prompts: Prompts, arguments: Mapping[str, Any], sampling: SamplingSettings, *, with_image: bool
) -> tuple[Request, Callable[[Completion], Answer], dict[str, Any]]:
    form = form_of(arguments["schema"], arguments["choices"], arguments["regex"])
    asked = query.read_question(
        prompts,
        arguments["question"],
        with_image=with_image,
        reasoning=arguments["reasoning"],
        refs=arguments["spatial_refs"],
        settings=sampling,
    )
    more: dict[str, Any] = {}
    if form is None:
        request = query.build(prompts, asked)
        finish: Callable[[Completion], Answer] = partial(query.finish, request, prompts)
        stream: Callable[..., Answer] = partial(query.stream, request, prompts)
    else:
        typed: TypedQuestion | ChoiceQuestion
        if isinstance(form, ChoicesForm):
            typed = ChoiceQuestion(prompts, asked, form)
            more["further"] = typed.further
        else:
            typed = TypedQuestion(prompts, asked, form)
        more["typed"] = typed
        request, finish, stream = typed.draft, typed.finish, typed.stream
    return request, finish, more | ({"stream": stream} if arguments["stream"] else {})


def task_from_mapping(prompts: Prompts, owner: type, task: Mapping[str, Any]) -> Task[Any]:
    """Build the task of `{"skill": "detect", "image": ..., "object": ...}`, checked against the methods of `owner`."""
    skill = task.get("skill") if isinstance(task, Mapping) else None
    if not isinstance(skill, str) or skill not in SKILLS:
        hint = "" if skill is None else f"there is no skill {skill!r:.60}{did_you_mean(skill, SKILLS)}: "
        example = "{'skill': 'detect', 'image': ..., 'object': ...}"
        raise InputError(f"{hint}a task is a dict such as {example}; the skills are {', '.join(SKILLS)}")
    options = {name: task[name] for name in OPTIONS if name in task}
    given = {name: value for name, value in task.items() if name != "skill" and name not in options}
    method = getattr(owner, skill)
    check_names(map(str, given), method)
    try:
        bound = inspect.signature(method).bind(None, **given)
    except TypeError as cause:
        raise InputError(f"the task {skill!r} lacks something: {cause}") from cause
    bound.apply_defaults()
    if bound.arguments.get("stream"):
        raise InputError("a batch gives whole texts: leave stream out, or ask for this one by itself")
    return build_task(prompts, method, bound.arguments["image"], options, bound.arguments)
