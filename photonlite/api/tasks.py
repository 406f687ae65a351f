"""Tasks: a checked request, the images it is about, and how its tokens become a result."""

import dataclasses
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, Generic, TypeAlias, TypedDict, TypeVar, cast

from photonlite.engine.handle import RequestHandle
from photonlite.errors import ImageError, SettingsError, UnknownArgumentError
from photonlite.grammar.prompts import Size
from photonlite.hints import did_you_mean
from photonlite.images.pool import ImagePool, PreparedImage
from photonlite.images.source import ImageSource
from photonlite.images.tensors import is_tensor, tensor_to_array
from photonlite.request import SETTINGS, AdapterRef, Completion, Request
from photonlite.results import Metrics
from photonlite.results.spatial import SpatialBase
from photonlite.skills.tiles import Region
from photonlite.skills.typed.question import DeferredRequest

R = TypeVar("R")


class EncodedImage:
    """An image that a model has read: may be handed in wherever that model takes an image, and is not decoded again.

    What the model has read lies in its prefix cache until the memory is needed. After that the image is read again from
    its pixels, which this object keeps.

    Attributes:
        metrics: What encoding took.
        picture_size: Width and height of the image, in pixels.
        cache_salt: The one of its encoding, which requests about it have unless they give it themselves.
    """

    def __init__(self, prepared: PreparedImage, metrics: Metrics) -> None:
        self._prepared = prepared
        self.metrics = metrics
        self.picture_size = prepared.size
        self.cache_salt = prepared.cache_salt

    def __repr__(self) -> str:
        return "EncodedImage({} x {} pixels, {:.3f} s)".format(*self.picture_size, self.metrics.total_s)

    def _repr_jpeg_(self) -> bytes:
        return self._prepared.thumbnail

    def prepared_for(self, pool: ImagePool, cache_salt: str, adapter_key: str = "") -> PreparedImage:
        if self._prepared.pool is not pool:
            raise ImageError("this encoded image belongs to another model: encode the image with this one")
        if cache_salt and cache_salt != self._prepared.cache_salt:
            raise SettingsError(
                "this encoded image was made with another cache_salt: leave cache_salt out, or encode it with this"
            )
        return self._prepared.for_adapter(adapter_key)


ImageInput: TypeAlias = ImageSource | EncodedImage
"""What methods take as an image: PIL image, array, tensor, path, bytes, file object, data URI, or an encoded image."""


class Options(TypedDict, total=False):
    """Options of a call, by name; :class:`photonlite.VisionModel` says what they mean."""

    caller: str | None
    deadline_s: float | None
    cache_salt: str | None
    realtime: bool
    strict: bool
    adapter: str | None


OPTIONS: Final = tuple(Options.__annotations__)

# Names in other libraries, behind what they are called here.
_SYNONYMS: Final = {
    "deadline_s": ("timeout", "timeout_s", "deadline", "deadline_ms"),
    "realtime": ("priority",),
    "adapter": ("lora", "variant", "lora_request"),
    "cache_salt": ("salt",),
    "max_tokens": ("max_new_tokens", "max_length"),
    "schema": ("response_format", "json_schema", "output_type"),
    "regex": ("pattern",),
    "object": ("label", "text", "objects", "labels", "classes", "names"),
    "question": ("prompt",),
    "spatial_refs": ("refs",),
    "min_score": ("threshold", "conf", "confidence", "box_threshold", "score_threshold"),
}


@dataclass(frozen=True)
class Task(Generic[R]):
    """One call: what to ask the engine, and how to read its answer."""

    request: Request  # carries cache salt, realtime and strict of the call; can run once
    images: tuple[ImageInput, ...]
    finish: Callable[[Completion], R] | None  # reads the result; None: the result is the encoded image
    deadline_s: float | None = None
    caller: str = ""
    stream: Callable[..., R] | None = None  # reads the result from tokens as they come; None: it is wanted whole
    typed: DeferredRequest | None = None  # makes the request once its grammar is compiled
    # Returns the follow-up requests, by name, of a completion and the name of its request (None: the first).
    further: Callable[[Any, Completion], Iterable[tuple[Any, Request]]] | None = None
    retried: bool = False  # the last of these requests has the answer, not the first
    # Returns the requests whose completions make the result together, where it has several, and the tile of each.
    parts: Callable[[tuple[int, int]], Iterable[tuple[Region | None, Request]]] | None = None
    # Makes the request once the sizes of its images are known, where it depends on them.
    sized: Callable[[Sequence[Size]], Request] | None = None
    fits: Callable[[Sequence[Size]], object] | None = None  # see `check_sizes`; None where there is nothing to check
    draws: bool = False  # the result keeps a small copy of the image, to show itself in notebooks

    @property
    def reads_images(self) -> bool:
        """Whether there is an image that has not been encoded before the call."""
        return not all(isinstance(image, EncodedImage) for image in self.images)

    def check_sizes(self, sizes: Sequence[Any]) -> None:
        """Raise a CapacityError where images of these widths and heights leave no room in the context."""
        if self.fits is not None:
            self.fits(sizes)

    def result_of(self, handle: RequestHandle) -> R:
        completion, image = handle.result(), handle.image
        if self.finish is not None:
            result = self.finish(completion)
            if self.draws and image is not None and isinstance(result, SpatialBase):
                result.thumbnail = image.thumbnail
            return result
        assert image is not None, "an encoding has completed without an image"
        image.drop_crops()  # page-locked megabytes, which are still there if the image was cached
        return cast(R, EncodedImage(image, completion.metrics))


def make_task(
    method: Callable[..., object],
    image: ImageInput | Sequence[ImageInput] | None,
    request: Request,
    finish: Callable[[Completion], R] | None,
    options: Mapping[str, Any],
    draws: bool = False,
    adapter: AdapterRef | None = None,
    **more: Any,
) -> Task[R]:
    """Make the task of a call of a public method; checks that there is an image, and the options."""
    images = images_of(image)
    if not images and request.skill != "query":
        raise ImageError("there is no image (None): hand one in; only a query can do without")
    if len(images) > 1 and request.skill != "query":
        raise ImageError(
            f"{len(images)} images were handed in, but {request.skill} is about one: ask about each by itself, or "
            "about all with batch(); pixels go into a numpy array"
        )
    # At once: other threads would read a tensor on another stream of the GPU.
    images = tuple(tensor_to_array(one) if is_tensor(one) else one for one in images)
    check_names((name for name in options if name not in OPTIONS), method)
    realtime, strict = options.get("realtime", False), options.get("strict", False)
    for name, value in (("realtime", realtime), ("strict", strict)):
        if not isinstance(value, bool):
            raise SettingsError(f"{name} is {value!r:.60}: give True or False")
    cache_salt, caller = (_text(name, options.get(name)) for name in ("cache_salt", "caller"))
    salts = {one.cache_salt for one in images if isinstance(one, EncodedImage)}
    if not cache_salt and salts:  # what the model has read is found under this one
        if len(salts) > 1:  # words around the images would be shared with everybody
            raise SettingsError("the encoded images were made with different cache salts: encode them with one")
        (cache_salt,) = salts
    request = dataclasses.replace(request, cache_salt=cache_salt, realtime=realtime, strict=strict, adapter=adapter)
    deadline_s, draws = seconds_of(options.get("deadline_s")), draws and not realtime
    return Task(request, images, finish, deadline_s, caller or cache_salt, draws=draws, **more)


def images_of(image: ImageInput | Sequence[ImageInput] | None) -> tuple[ImageInput, ...]:
    """Return what a caller handed in as an image, a list of images, or None."""
    if isinstance(image, list | tuple):
        return tuple(image)
    return () if image is None else (cast(ImageInput, image),)


def check_names(names: Iterable[str], method: Callable[..., object]) -> None:
    """Raise `UnknownArgumentError` for the first name that a public method does not take."""
    for name in names:
        takes = [known for known in inspect.signature(method).parameters if known not in ("self", "options")]
        takes += OPTIONS
        if name not in takes:
            raise UnknownArgumentError(f"{method.__name__}() takes no argument {name!r:.60}{_advice(name, takes)}")


def _advice(name: str, takes: Collection[str]) -> str:
    meant = next((known for known, others in _SYNONYMS.items() if name in others), name)
    if meant in SETTINGS and "settings" in takes:
        return f": it is a setting, give it as settings={{{meant!r}: ...}}"
    return f"{did_you_mean(meant, takes)}: it takes {', '.join(takes)}"


def _text(name: str, text: object) -> str:
    """Check a cache salt or a caller here: the engine's thread hashes what it is given."""
    if text is None:
        return ""
    if not isinstance(text, str):
        raise SettingsError(f"{name} is of type {type(text).__name__}: give text, or None for none")
    try:
        return str.encode(text).decode()  # plain text, also where it was a subclass of str
    except UnicodeEncodeError as cause:
        half = f"U+{ord(cause.object[cause.start]):04X}, at {cause.start}"
        raise SettingsError(f"{name} holds half a character ({half}): give text that UTF-8 can write") from cause


def seconds_of(deadline_s: object) -> float | None:
    """Return a deadline as a float; raises `SettingsError` unless it is None, or finite and above 0."""
    if deadline_s is None:
        return None
    try:
        seconds = float(deadline_s) if isinstance(deadline_s, Real) and not isinstance(deadline_s, bool) else math.nan
    except OverflowError:  # a whole number larger than any float
        seconds = math.inf
    if not (math.isfinite(seconds) and seconds > 0):
        raise SettingsError(
            f"deadline_s is {deadline_s!r:.60}: give seconds from now, more than 0, such as 0.5, or None for none"
        )
    return seconds
