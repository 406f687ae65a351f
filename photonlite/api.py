"""The Python face: load a model, ask about images.

```python
model = photonlite.load()
model.detect("desk.png", "mug")  # {"objects": [{"x_min": ..., "label": "mug", "score": 0.97}, ...]}
```
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self, Unpack

import torch

from photonlite.batching import Batch, Errors
from photonlite.config import EngineConfig, ImageLimits
from photonlite.device.names import resolve_device, resolve_dtype
from photonlite.device.threads import in_passing
from photonlite.errors import SettingsError
from photonlite.images.isolation.pool import DecodePool, default_workers
from photonlite.models.checkpoint import LoadedModel, load_checkpoint
from photonlite.observe import Recording
from photonlite.options import Options
from photonlite.results import Answer, Caption, Detections, Points, Segments
from photonlite.session import Session
from photonlite.settings import settings_of, unknown_name
from photonlite.skills.base import SpatialRefs
from photonlite.tasks import EncodedImage, ImageInput, Settings, Tasks
from photonlite.twins import AsyncTwins


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
    max_pixels: int | None = None,
    max_bytes: int | None = None,
    isolate_images: bool = False,
    engine: EngineConfig | Mapping[str, Any] | None = None,
    check: bool = False,
) -> "VisionModel":
    """Load a model.

    Args:
        model: A folder, a .safetensors file, a Hub id "owner/name", or None for the shipped checkpoint.
        device: "auto" (CUDA where there is one, else the CPU), "cpu", "cuda", "cuda:1".
        dtype: "auto" (bfloat16 on recent CUDA devices, else float32), "float32", "bfloat16", "float16".
        revision: Branch, tag or commit of a Hub repository.
        max_pixels: Largest image accepted, width times height; 64 million, or PHOTONLITE_MAX_PIXELS, by default.
        max_bytes: Largest image file accepted; 256 MiB, or PHOTONLITE_MAX_BYTES, by default.
        isolate_images: Whether image files (paths, bytes, file objects) are opened and decoded in processes that are
            killed when one takes too much CPU time or memory: for images from strangers, of which a few kilobytes
            can keep a core busy for minutes. Linux only. Images and arrays are taken as they are.
        engine: How the engine runs: settings of :class:`photonlite.EngineConfig`, by name or as a whole. What names
            leave out comes from the environment.
        check: Whether a tiny question is asked through every skill and every head before the model is given back: it
            takes about as long as five first questions.

    Raises:
        ModelNotFoundError: No model of that name is at hand.
        ConfigError: Its config.json is missing or unusable.
        CheckpointError: Its weights or tokenizer are missing or unusable.
        SettingsError: An unknown device or type, a limit that is no whole number above 0, or an unknown setting of the
            engine, a value out of its range, or one that the device cannot do.
        CapacityError: The memory does not hold even one longest request.
        NumericalError: With `check`, the checkpoint computes something that is no finite number.
    """
    given = {"max_pixels": max_pixels, "max_bytes": max_bytes}
    limits = dataclasses.replace(
        ImageLimits.from_env(), **{name: value for name, value in given.items() if value is not None}
    )
    config = _engine_config(engine)
    where = resolve_device(device)
    kind = resolve_dtype(dtype, where)

    def start() -> VisionModel:
        loaded = load_checkpoint(model, device=where, dtype=kind, revision=revision)
        started = VisionModel(loaded, where, kind, limits, config, isolate_images=isolate_images)
        if check:
            try:
                started._session.self_test()
            except BaseException:
                started.close(drain=False)
                raise
        return started

    return in_passing(start)


def _engine_config(given: EngineConfig | Mapping[str, Any] | None) -> EngineConfig:
    if isinstance(given, EngineConfig):
        return given
    known = settings_of(EngineConfig)
    if given is not None and not isinstance(given, Mapping):
        raise SettingsError(f"engine is of type {type(given).__name__}: give a dict such as {{'max_batch': 16}}")
    for name in given or {}:
        if name not in known:
            raise unknown_name(f"engine setting {name!r:.60}", str(name), known)
    try:
        return dataclasses.replace(EngineConfig.from_env(), **(given or {}))
    except TypeError as cause:
        raise SettingsError(f"an engine setting has a value of the wrong type: {cause}") from cause


class VisionModel(AsyncTwins):
    """A model that answers about images, many questions at a time, from any number of threads and coroutines.

    Arguments that the public `moondream` client takes by position have the same place here. Every method has an async
    twin with an "a" before its name; a stream from a twin is an asynchronous iterator.

    In all methods an image is a PIL image, a numpy array (H x W x 3, uint8), a path, bytes, a file object, or what
    :meth:`encode_image` returned. Coordinates are normalised to [0, 1] with (0, 0) in the top-left corner of the
    upright image. `settings` may hold "temperature" (0: greedy, the default), "top_p" (1), "max_tokens" (768),
    "max_objects" (50) and "seed". The second question about an image does not read it again.

    Methods also take the options `deadline_s`, seconds from the call after which the answer is worthless;
    `cache_salt`, a tenant's own text: images of different salts share nothing that was computed for them; `caller`,
    who asks, for fair turns at compiling grammars, the cache salt unless given; and `realtime`, for loops that need an
    answer now: such a question comes before all others, wherever something waits, and with a deadline it is given up
    as soon as it can no longer be in time. Others are never starved. No answer depends on it. `strict=True`
    raises `TruncatedError` where a limit cut an answer short (`result.truncated`), at the end of a stream.

    Where decoded images of more than `EngineConfig.max_prepared_bytes` wait for the engine, a call waits before it
    decodes its own, at most until its deadline.

    All methods raise these when called: `ImageError` for an image that cannot be read or is over the limit,
    `SettingsError` for an unknown setting or value, `UnknownArgumentError` for any other unknown name, `PromptError`
    for text that is empty or too long, `UnsupportedSkillError` for a skill that the checkpoint lacks, `CapacityError`
    for a prompt that exceeds the context, and `ModelError` after :meth:`close`. While an answer is computed there may
    be `DeadlineError`, `RequestCancelledError`, `NumericalError` for damaged weights, `CapacityError` for what can
    never fit the KV cache, `StepError` and `EngineDiedError`; a stream raises them when it is read. Cancelling a task
    that awaits a twin, interrupting a thread that waits, or dropping a stream cancels the request.

    Args:
        loaded: The checkpoint.
        device: Where it is.
        dtype: Of its weights.
        limits: How large an image may be.
        engine: How the engine runs.
        isolate_images: See :func:`load`.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        device: torch.device,
        dtype: torch.dtype,
        limits: ImageLimits | None = None,
        engine: EngineConfig | None = None,
        *,
        isolate_images: bool = False,
    ) -> None:
        self._name = loaded.name
        self._skills = loaded.prompts.skills
        self._tasks = Tasks(loaded.prompts)
        self._limits = limits or ImageLimits()
        decoder = DecodePool(self._limits, max(1, default_workers())) if isolate_images else None
        try:
            self._session = Session(loaded, device, dtype, self._limits, engine or EngineConfig(), decoder)
        except BaseException:
            if decoder is not None:
                decoder.close()
            raise
        self._device = device
        self._dtype = dtype

    @property
    def name(self) -> str:
        """How the model was named when it was loaded; "nano" for the shipped one."""
        return self._name

    @property
    def skills(self) -> tuple[str, ...]:
        """Names of the skills that the checkpoint was trained for."""
        return self._skills

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights."""
        return self._dtype

    @property
    def image_limits(self) -> ImageLimits:
        """How large an image may be."""
        return self._limits

    @property
    def max_batch(self) -> int:
        """Requests that are decoded together: `EngineConfig.max_batch`, or what the device's default is."""
        return self._session.engine.max_batch

    @property
    def alive(self) -> bool:
        """Whether questions are taken and answered: False once closed, or when the engine has died."""
        return self._session.alive

    @property
    def open_requests(self) -> int:
        """Calls that have begun and have no answer yet, nor an error: those of streams until their last piece."""
        return self._session.engine.calls.open

    @property
    def last_tick_s(self) -> float:
        """Seconds since the engine's last sign of life: under one while it idles, else what a step takes; see `alive`.

        It grows for ever once the model is closed or the engine has died.
        """
        return self._session.engine.last_tick_s

    def detect(
        self, image: ImageInput, object: str, settings: Settings | None = None, **options: Unpack[Options]
    ) -> Detections:
        """Find every instance of an object.

        Args:
            image: The image.
            object: What to find, at most 1,000 characters.
            settings: See the class.
            **options: See the class.

        Returns:
            `{"objects": [{"x_min", "y_min", "x_max", "y_max", "label", "score"}, ...]}`, in the model's order. A score
            is how sure the model was that the object is there, and there; see `photonlite.skills.base.score`.
        """
        return self._session.run(self._tasks.detect(image, object, settings), options)

    def point(
        self,
        image: ImageInput,
        object: str,
        settings: Settings | None = None,
        *,
        spatial_refs: SpatialRefs | None = None,
        **options: Unpack[Options],
    ) -> Points:
        """Point at every instance of an object.

        Args:
            image: The image.
            object: What to point at, at most 1,000 characters.
            settings: See the class.
            spatial_refs: Points (x, y), boxes (x_min, y_min, x_max, y_max) or results that the object is about.
            **options: See the class.

        Returns:
            `{"points": [{"x", "y", "label", "score"}, ...]}`, in the model's order.

        Raises:
            SpatialRefError: A reference is neither a point nor a box inside the image.
        """
        return self._session.run(self._tasks.point(image, object, settings, spatial_refs=spatial_refs), options)

    def segment(
        self,
        image: ImageInput,
        object: str,
        *,
        spatial_refs: SpatialRefs | None = None,
        settings: Settings | None = None,
        **options: Unpack[Options],
    ) -> Segments:
        """Draw the outline of an object.

        Args:
            image: The image.
            object: What to outline, at most 1,000 characters.
            spatial_refs: Points (x, y), boxes (x_min, y_min, x_max, y_max) or results that tell which one is meant.
            settings: See the class.
            **options: See the class.

        Returns:
            `{"segments": [{"path", "bbox", "polygon", "label", "score"}]}`: `path` is SVG relative to the box.

        Raises:
            SpatialRefError: A reference is neither a point nor a box inside the image.
        """
        task = self._tasks.segment(image, object, spatial_refs=spatial_refs, settings=settings)
        return self._session.run(task, options)

    def caption(
        self,
        image: ImageInput,
        length: str = "normal",
        stream: bool = False,
        settings: Settings | None = None,
        **options: Unpack[Options],
    ) -> Caption:
        """Describe an image.

        Args:
            image: The image.
            length: "short", "normal" or "long".
            stream: Whether to give an iterator of pieces of text as they come; dropping it cancels the rest.
            settings: See the class.
            **options: See the class.

        Returns:
            `{"caption": str}`, or `{"caption": iterator of str}`.
        """
        return self._session.run(self._tasks.caption(image, length, stream, settings), options)

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
        choices: Iterable[str] | None = None,
        regex: str | re.Pattern[str] | None = None,
        **options: Unpack[Options],
    ) -> Answer:
        """Answer a question.

        Args:
            image: The image; None asks without one.
            question: At most 4,000 characters.
            stream: Whether to give an iterator of pieces of the answer as they come; dropping it cancels the rest.
            settings: See the class.
            reasoning: Whether the model writes down its reasoning first.
            spatial_refs: Points (x, y), boxes (x_min, y_min, x_max, y_max) or results that the question is about.
            schema: What the answer has to be: a pydantic model, a dataclass, a TypedDict, an Enum, a type such as
                `list[int]` or `Literal["a", "b"]`, a JSON Schema as a dict or as text, or `dict` for any JSON object.
                Fields of the types :class:`photonlite.Box` and :class:`photonlite.Point`, in a JSON Schema `{"type":
                "object", "format": "box"}` or `"point"`, are drawn as `detect` and `point` draw them. Of a JSON Schema
                properties keep their order, and what could not be enforced is refused. At most `max_tokens` tokens.
            choices: The texts to choose from, at most 5,000 of 1,000 characters; as long as they are.
            regex: The pattern that the whole answer has to match.
            **options: See the class.

        Returns:
            `{"answer": str}`, or `{"answer": iterator of str}`; with reasoning also `"reasoning": {"text",
            "grounding": [{"start_idx", "end_idx", "points"}, ...]}`, which fills with the first piece of a stream.

            With a schema `{"answer": object, "text": str}`: an object of the type, or for a JSON Schema plain values,
            and the JSON that it was read from; a stream gives the pieces of that, and its `value` the object. With
            choices `{"answer": str, "scores": {choice: float}}`: how probable each was, all together 1, up to 64
            choices; more get no scores. A greedy answer is the most probable choice, and a stream gives it in one piece
            and the scores with it.

        Raises:
            SpatialRefError: A reference is neither a point nor a box inside the image, or there is no image.
            GrammarError: More than one of schema, choices and regex; or one that is of no use: it holds what would not
                be enforced (`SchemaError`), is too large (`GrammarTooLargeError`) or allows no answer as short as
                `max_tokens` asks for. While the answer is computed there may be these as well, `GrammarTimeoutError`
                where compiling takes longer than `EngineConfig.grammar_limit_s`, and `GrammarBusyError`.
        """
        task = self._tasks.query(
            image,
            question,
            stream,
            settings,
            reasoning=reasoning,
            spatial_refs=spatial_refs,
            schema=schema,
            choices=choices,
            regex=regex,
        )
        return self._session.run(task, options)

    def encode_image(self, image: ImageInput, **options: Unpack[Options]) -> EncodedImage:
        """Read an image before there is a question.

        Args:
            image: The image; an encoded image comes back as it is.
            **options: See the class.

        Returns:
            Something to hand in as `image`, which is neither decoded nor, as long as the cache has it, read again.
        """
        if isinstance(image, EncodedImage):
            return image
        return self._session.encode(self._tasks.encode(image), options)

    def batch(
        self, tasks: Iterable[Mapping[str, Any]], *, progress: bool = False, errors: Errors = "return"
    ) -> list[Any]:
        """Ask for many things at once.

        Args:
            tasks: Mappings of a method's arguments by name, and "skill": the name of the method, such as `{"skill":
                "detect", "image": "desk.png", "object": "mug"}`. Images are prepared as their turn comes, on other
                threads: an iterator must not give the same array twice with other pixels.
            progress: Whether to show a bar.
            errors: "return" puts an error in the place of its task's result; "raise" ends the batch with the first
                error and cancels the rest. Messages begin with the index of the task.

        Returns:
            Results in the order of the tasks; an error where there is none.

        Raises:
            InputError: `tasks` is not a list or another iterable.
        """
        with Batch(self._session, self._tasks, tasks, progress=progress, errors=errors) as batch:
            while batch.fill():
                batch.wait()
                batch.settle()
        return batch.results

    def metrics(self) -> dict[str, Any]:
        """What the engine has done and how it stands: see :class:`photonlite.observe.EngineMetrics`."""
        return self._session.metrics()

    def trace(self) -> Recording:
        """Record what host and device do while a ``with`` block runs.

        ```python
        with model.trace() as trace:
            model.detect("desk.png", "mug")
        trace.save("run.json")  # for https://ui.perfetto.dev
        trace.draw("timeline.png")
        ```
        """
        return Recording(self._session.engine.tracer)

    def close(self, *, drain: bool = True) -> None:
        """Let go of the model and its memory; every later call raises `ModelError`. Closing twice is fine.

        Args:
            drain: Whether open requests are finished first; else they fail with `ModelError`.
        """
        self._session.close(drain=drain)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(drain=kind is None)

    def __repr__(self) -> str:
        dtype = str(self._dtype).removeprefix("torch.")
        return f"VisionModel({self._name!r}, device={str(self._device)!r}, dtype={dtype!r})"
