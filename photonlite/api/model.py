"""`VisionModel`: every skill as a method and its async twin."""

import math
import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack

import torch

from photonlite.api.adapters import Adapter, Adapters
from photonlite.api.batch import Errors, run_batch, task_from_mapping
from photonlite.api.session import open_session
from photonlite.api.signatures import async_twin, typed_caption, typed_query
from photonlite.api.tasks import EncodedImage, ImageInput, Options, Task, images_of, make_task
from photonlite.config import EngineConfig, ImageLimits, Weights
from photonlite.engine.handle import RequestHandle
from photonlite.errors import CapacityError, SettingsError
from photonlite.grammar.prompts import RequestLimits
from photonlite.images.thumbnail import in_notebook
from photonlite.models.checkpoint import LoadedModel
from photonlite.observe import Recording
from photonlite.request import Completion, Request, RequestSettings, SamplingSettings
from photonlite.results import Answer, Caption, Detections, Points, Segments
from photonlite.runner.memory import MemoryPlan
from photonlite.skills import caption, detect, encode, point, query, segment
from photonlite.skills.base import SpatialRefs
from photonlite.skills.chat import Message, read_messages, unique_images
from photonlite.skills.names import warn_of_joined
from photonlite.skills.query import CheckedQuestion
from photonlite.skills.search import Overlap, S, Scope, Search
from photonlite.skills.tiles import Tile
from photonlite.skills.typed.choices import ChoiceQuestion
from photonlite.skills.typed.forms import ChoicesForm, Form, form_of
from photonlite.skills.typed.question import TypedQuestion, check_retries

R = TypeVar("R")


class VisionModel:
    """A model that answers about images, many requests at a time, from any number of threads and coroutines.

    ```python
    model = photonlite.load()
    model.detect("desk.png", "mug")  # {"objects": [{"x_min": ..., "label": "mug", "score": 0.97}, ...]}
    ```

    Arguments that the public `moondream` client takes by position have the same place here. Every method has an async
    twin with an "a" before its name and the same arguments, results and errors; a stream of a twin is an asynchronous
    iterator. Twins read images on other threads: an array or a PIL image must not change before the answer is there.

    In all methods an image is a PIL image, an array (H x W x 3, uint8), a torch tensor, a path, bytes, a file object, a
    data URI, where :func:`photonlite.load` was told to `allow_urls` an https URL, or what
    :meth:`encode_image` returned. Coordinates are normalised to [0, 1] with (0, 0) in the top-left corner of the
    upright image. `settings` may hold "temperature" (0: greedy, the default), "top_p" (1), "top_k" (all),
    "repetition_penalty" (1), "max_tokens" (768), "max_objects" (50), "seed" and "stop". A setting that a method has no
    use for, such as "max_objects" for `query`, is checked and changes nothing. The second question about an image does
    not encode it again.

    All methods take these options as well:

    - `deadline_s`: seconds from the call after which the answer is worthless.
    - `realtime`: the request goes before others wherever something waits, though none starves, and with a deadline it
      is given up as soon as it can no longer be in time. No answer depends on it.
    - `cache_salt`: requests of different cache salts share nothing that was computed for them, so that tenants of a
      server learn nothing of each other from timing.
    - `caller`: who asks, for fair turns at compiling grammars; the cache salt unless given.
    - `adapter`: the name of a loaded adapter (:meth:`load_adapter`), which answers; None for the model alone. Requests
      with different adapters run together, and share nothing that was computed.
    - `strict`: where a limit cut an answer short (`result.truncated`), `TruncatedError` is raised, at a stream's end.

    A call waits before it decodes an image while `EngineConfig.max_prepared_bytes` of others wait for the engine.

    All methods raise these when called: `ImageError` for an image that cannot be read or is over the limit,
    `SettingsError` for an unknown setting or value, `UnknownAdapterError` for an adapter that is not loaded,
    `UnknownArgumentError` for any other unknown name, `PromptError` for text that is empty or too long,
    `SpatialRefError` for a reference that is neither a point nor a box inside the image, `UnsupportedSkillError` for a
    skill that the checkpoint lacks, `CapacityError` for a prompt that exceeds the context, and `ModelError` after
    :meth:`close`. While an answer is computed there may be `DeadlineError`, `AdapterError` for an adapter whose files
    are gone, `RequestCancelledError`, `NumericalError` for damaged weights, `CapacityError` for what can never fit the
    KV cache, `StepError` and `EngineDiedError`; a stream raises them when it is read. Cancelling a task that awaits a
    twin, interrupting a thread that waits, or dropping a stream cancels the request.

    Attributes:
        name: How the model was named when it was loaded; "nano" for the shipped one.
        skills: Names of the skills that the checkpoint was trained for.
        device: Where the model runs.
        dtype: The type of its weights, where they are not quantised.
        weights: Precision of the text decoder's linear layers: "auto" for `dtype`, "int8", "fp8" or "int4".
        vision_weights: The same of the image encoder.
        image_limits: How large an image may be, and whether transparent ones are drawn on white.
        reads_several: Whether questions and conversations may be about several images.
        sight: Pixels along a side of an image that the model reads without shrinking it; tile="auto" goes by that.
        max_batch: Requests that are decoded together: `EngineConfig.max_batch`, or the device's default.
        sampling_defaults: Settings for text in the checkpoint's generation_config.json, by names of `settings`; empty
            for greedy decoding. `load(sampling="checkpoint")` uses them as defaults.
        thumbnails: Whether results keep a JPEG of their image, of at most 512 pixels a side and 64 KiB, and draw
            themselves on it in notebooks. Those of real-time requests never do.
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
        allow_urls: bool = False,
        thumbnails: bool | None = None,
        sampling: Literal["greedy", "checkpoint"] = "greedy",
    ) -> None:
        self.name = loaded.name
        self.sampling_defaults: RequestSettings = {**loaded.sampling}
        self._text_defaults = loaded.sampling if sampling == "checkpoint" else {}
        self.skills = loaded.prompts.skills
        self.device = device
        self.dtype = dtype
        self.weights: Weights = loaded.precisions.text or "auto"
        self.vision_weights: Weights = loaded.precisions.vision or "auto"
        self.image_limits = replace(limits or ImageLimits(), on_white=loaded.model.crop_spec.on_white)
        self.thumbnails = in_notebook() if thumbnails is None else thumbnails
        config = engine or EngineConfig()
        limits_of_request = RequestLimits(config.max_input_tokens, config.max_output_tokens, config.max_input_images)
        self._prompts = prompts = loaded.prompts.limited(limits_of_request)
        if prompts.inline is None and (config.max_input_tokens or math.inf) <= prompts.prefix_length:
            raise CapacityError(
                f"max_input_tokens is {config.max_input_tokens}, but BOS and an image take {prompts.prefix_length} "
                "positions, and a prompt follows: raise it"
            )
        self.reads_several = loaded.prompts.conversations is not None
        self.sight = loaded.model.crop_spec.sight
        images = {"isolate_images": isolate_images, "allow_urls": allow_urls}
        self._session = open_session(loaded, device, dtype, self.image_limits, config, **images)
        self._adapters = Adapters(loaded, dtype, config, self._session.engine)
        self.max_batch = self._session.engine.max_batch
        self._prefix = ""  # of method names in errors
        self._answer: Callable[[Task[Any]], Any] = self._session.run
        self._awaiting = self._answering(self._session.arun, "a")
        self._building = self._answering(lambda task: task)

    def memory_plan(self) -> MemoryPlan:
        """Return what the model takes on the device, in host memory and on disk: `str` makes a table of it."""
        return self._session.memory_plan()

    @property
    def alive(self) -> bool:
        """Whether questions are taken and answered: False once closed, or when the engine has died."""
        return self._session.alive

    @property
    def open_requests(self) -> int:
        """Calls that have begun and have neither an answer nor an error yet: streams count until their last piece."""
        return sum(not handle.future.done() for handle in list(self._session.open))

    @property
    def last_tick_s(self) -> float:
        """Seconds since the engine's last sign of life: under one while it idles; keeps growing once it has ended."""
        return self._session.engine.last_tick_s

    @property
    def waits_for_device(self) -> bool:
        """Whether the engine waits for a step on the device; else silence means work on the host, such as compiling."""
        return self._session.engine.waits_for_device

    def detect(
        self,
        image: ImageInput,
        object: str | Sequence[str],
        settings: RequestSettings | None = None,
        *,
        min_score: float = 0.0,
        overlap: Overlap = "keep",
        tile: Tile | None = None,
        **options: Unpack[Options],
    ) -> Detections:
        """Find every instance of an object, or of several.

        Args:
            object: What to find, at most 1,000 characters; or a list of up to 64 names, which are looked for at the
                same time behind one encoding of the image; `result.names` and `result.class_ids` follow the list.
                `settings` count for each name by itself.
            min_score: Items with a lower score are left out.
            overlap: "best" keeps only the best score of boxes of different names whose intersection over union is 0.5
                or more.
            tile: Also search overlapping tiles of the image, for small and many objects: (rows, columns), the side
                of a tile in pixels, or "auto". Each name is one request for the image and one for every
                tile, at most 256 in all; an object found in several of them is returned once.

        Returns:
            `{"objects": [{"x_min", "y_min", "x_max", "y_max", "label", "score"}, ...]}`, in the model's order. Scores
            are confidences in presence and location, in (0, 1]; see `photonlite.skills.base.score`.
        """
        build = partial(detect.build, self._prompts, settings=SamplingSettings.from_dict(settings))
        scope = Scope(min_score, overlap, tile)
        return self._search("detect", image, Search(object, build, detect.finish, scope, self.sight), options)

    adetect = async_twin(detect)

    def point(
        self,
        image: ImageInput,
        object: str | Sequence[str],
        settings: RequestSettings | None = None,
        *,
        spatial_refs: SpatialRefs | None = None,
        min_score: float = 0.0,
        overlap: Overlap = "keep",
        tile: Tile | None = None,
        **options: Unpack[Options],
    ) -> Points:
        """Point at every instance of an object, or of several.

        Args:
            object: What to point at: one name or a list, as for `detect`.
            spatial_refs: Points (x, y), boxes (x_min, y_min, x_max, y_max) or results that the object is about.
            min_score, overlap, tile: As for `detect`; a point counts as a box of 5 % of the image's width and height.
                Tiles do not go together with spatial_refs.

        Returns:
            `{"points": [{"x", "y", "label", "score"}, ...]}`, in the model's order.
        """
        sampling = SamplingSettings.from_dict(settings)
        build = partial(point.build, self._prompts, refs=spatial_refs, settings=sampling)
        scope = Scope(min_score, overlap, tile, spatial_refs)
        return self._search("point", image, Search(object, build, point.finish, scope, self.sight), options)

    apoint = async_twin(point)

    def segment(
        self,
        image: ImageInput,
        object: str | Sequence[str],
        *,
        spatial_refs: SpatialRefs | None = None,
        settings: RequestSettings | None = None,
        min_score: float = 0.0,
        overlap: Overlap = "keep",
        tile: Tile | None = None,
        **options: Unpack[Options],
    ) -> Segments:
        """Draw the outline of an object, or one of each of several.

        Args:
            object: What to outline: one name or a list, as for `detect`.
            spatial_refs: Points (x, y), boxes (x_min, y_min, x_max, y_max) or results that tell which one is meant.
            min_score, overlap, tile: As for `point`, by the segments' boxes.

        Returns:
            `{"segments": [{"path", "bbox", "polygon", "label", "score"}]}`: `path` is SVG relative to the box.
        """
        sampling = SamplingSettings.from_dict(settings)
        build = partial(segment.build, self._prompts, refs=spatial_refs, settings=sampling)
        finish = partial(segment.finish, self._prompts)
        scope = Scope(min_score, overlap, tile, spatial_refs)
        return self._search("segment", image, Search(object, build, finish, scope, self.sight), options)

    asegment = async_twin(segment)

    @typed_caption
    def caption(
        self,
        image: ImageInput,
        length: str = "normal",
        stream: bool = False,
        settings: RequestSettings | None = None,
        **options: Unpack[Options],
    ) -> Caption[Any]:
        """Describe an image.

        Args:
            length: "short", "normal" or "long".
            stream: Whether to return an iterator of pieces of text as they come; dropping it cancels the rest.

        Returns:
            `{"caption": str}`, or `{"caption": iterator of str}`.
        """
        build = partial(caption.build, self._prompts, length, self._sampling_of(settings))
        request = build()
        finish, pieces = (partial(read, request, self._prompts) for read in (caption.finish, caption.stream))
        more: dict[str, Any] = {"sized": build, "stream": pieces if stream else None}
        return self._ask("caption", image, request, finish, options, **more)

    acaption = async_twin(caption)

    @typed_query
    def query(
        self,
        image: ImageInput | Sequence[ImageInput] | None = None,
        question: str | None = None,
        stream: bool = False,
        settings: RequestSettings | None = None,
        *,
        reasoning: bool = False,
        spatial_refs: SpatialRefs | None = None,
        schema: Any = None,
        choices: Iterable[str] | None = None,
        regex: str | re.Pattern[str] | None = None,
        retries: int = 0,
        **options: Unpack[Options],
    ) -> Answer[Any, Any]:
        """Answer a question.

        Args:
            image: None asks without one; a list asks about several, in this order, of a model that reads several. Boxes
                and points of a typed answer are then in the last one, and `picture_size` is its size.
            question: At most 4,000 characters.
            stream: Whether to return an iterator of pieces of the answer as they come; dropping it cancels the rest.
            reasoning: Whether the model writes down its reasoning first.
            spatial_refs: Points (x, y), boxes (x_min, y_min, x_max, y_max) or results that the question is about.
            schema: What the answer has to be: a pydantic model, a dataclass, a TypedDict, an Enum, a type such as
                `list[int]` or `Literal["a", "b"]`, a JSON Schema as a dict or as text, or `dict` for any JSON object.
                Fields of the types :class:`photonlite.Box` and :class:`photonlite.Point`, in a JSON Schema `{"type":
                "object", "format": "box"}` or `"point"`, are drawn as `detect` and `point` draw them. Properties of a
                JSON Schema keep their order, and what could not be enforced is refused. At most `max_tokens` tokens.
            choices: The texts to choose from, at most 5,000 of 1,000 characters; `max_tokens` does not cut them.
            regex: The pattern that the whole answer has to match.
            retries: How often, from 0 to 5, a question with a schema is asked again where the type's validators refuse
                the answer: with what was wrong behind the question. All tries together keep to the deadline, metrics
                are their sums, and the last answer's `SchemaError` is raised. Not for streams.

        Returns:
            `{"answer": str}`, or `{"answer": iterator of str}`; with reasoning also `"reasoning": {"text",
            "grounding": [{"start_idx", "end_idx", "points"}, ...]}`, which a stream fills with its first piece.

            With a schema `{"answer": object, "text": str}`: an object of the type, or plain values for a JSON Schema,
            and the JSON that it was read from; a stream gives the pieces of that, and its `value` the object. With
            choices `{"answer": str, "scores": {choice: float}}`: the probability of each, which sum to 1, for up to 64
            choices; more get no scores. A greedy answer is the most probable choice, and a stream gives it in one piece
            and the scores with it.

        Raises:
            SpatialRefError: There are references without an image.
            GrammarError: More than one of schema, choices and regex; or one that cannot be enforced (`SchemaError`), is
                too large (`GrammarTooLargeError`), or allows no answer as short as `max_tokens`. While the answer is
                computed also `GrammarTimeoutError` (see `EngineConfig.grammar_limit_s`) and `GrammarBusyError`.
        """
        form = form_of(schema, choices, regex)
        sampling = self._sampling_of(settings, form)
        asked = query.read_question(
            self._prompts,
            question,
            images=len(images_of(image)),
            reasoning=reasoning,
            refs=spatial_refs,
            settings=sampling,
        )
        return self._answer_question("query", image, asked, form, retries, options, stream=stream)

    aquery = async_twin(query)

    def chat(
        self,
        messages: Sequence[Message],
        stream: bool = False,
        settings: RequestSettings | None = None,
        *,
        reasoning: bool = False,
        schema: Any = None,
        choices: Iterable[str] | None = None,
        regex: str | re.Pattern[str] | None = None,
        retries: int = 0,
        **options: Unpack[Options],
    ) -> Answer[Any, Any]:
        """Answer the last message of a conversation.

        What was computed for earlier messages, answers included, is not computed again while the cache has it. A model
        that was trained for single questions reads the conversation as one, about at most one image.

        Args:
            messages: Up to 1,024 of `{"role": "system" | "user" | "assistant", "content": ...}`: text, or a list of
                texts, `{"type": "text", "text": ...}`, and in turns of the user also `{"type": "image", "image": ...}`
                and `{"type": "image_url", "image_url": {"url": ...}}`. The last one is the user's.
            stream, settings, reasoning, schema, choices, regex, retries: As for `query`.

        Returns:
            As `query`.
        """
        conversation, prompts = read_messages(messages), self._prompts
        if prompts.conversations is None:
            conversation = replace(conversation, images=unique_images(conversation.images))
        form = form_of(schema, choices, regex)
        sampling = self._sampling_of(settings, form)
        asked = query.read_chat(prompts, conversation, reasoning=reasoning, settings=sampling)
        return self._answer_question("chat", conversation.images, asked, form, retries, options, stream=stream)

    achat = async_twin(chat)

    def encode_image(self, image: ImageInput, **options: Unpack[Options]) -> EncodedImage:
        """Encode an image before there is a question; an encoded image is returned as it is.

        Returns:
            Something to hand in as `image`, which is not decoded and, while the cache has it, not encoded again.
        """
        if isinstance(image, EncodedImage):
            return image
        return self._ask("encode_image", image, encode.build(self._prompts), None, options)

    aencode_image = async_twin(encode_image)

    def batch(
        self, tasks: Iterable[Mapping[str, Any]], *, progress: bool = False, errors: Errors = "return"
    ) -> list[Any]:
        """Ask for many things at once.

        Args:
            tasks: Mappings of a method's arguments by name, and "skill": the name of the method, such as `{"skill":
                "detect", "image": "desk.png", "object": "mug"}`. Images are prepared as their turn comes, on other
                threads: an iterator must not return the same array twice with other pixels.
            progress: Whether to show a bar.
            errors: "return" puts an error in the place of its task's result; "raise" ends the batch with the first
                error and cancels the rest. Messages begin with the index of the task.

        Returns:
            Results in the order of the tasks; an error where there is none.
        """
        results: list[Any] = []
        with closing(self._batch(tasks, results, progress=progress, errors=errors)) as requests:
            for request in requests:
                request.wait()
        return results

    async def abatch(
        self, tasks: Iterable[Mapping[str, Any]], *, progress: bool = False, errors: Errors = "return"
    ) -> list[Any]:
        """Ask for many things at once; see `batch`."""
        results: list[Any] = []
        with closing(self._batch(tasks, results, progress=progress, errors=errors)) as requests:
            for request in requests:
                await request.wait_async()
        return results

    def load_adapter(self, adapter: str | os.PathLike[str], *, name: str | None = None) -> Adapter:
        """Load a LoRA adapter of this model, for requests to be answered with: `model.detect(..., adapter=name)`.

        Others go on meanwhile. Loading the same files again under the same name changes nothing.

        Args:
            adapter: A folder as PEFT writes it, a .safetensors file of a Moondream variant, or a Hub id "owner/name".
            name: What requests call it; the name of the folder, file or repository unless given.

        Raises:
            AdapterError: There is none, it was made for another model, uses what is not supported (which the message
                names), has a rank over `EngineConfig.adapter_rank`, or its name is in use for another one.
            SettingsError: The model runs on several ranks.
        """
        self._session.check_open()
        return self._adapters.load(adapter, name)

    def adapters(self) -> list[Adapter]:
        """Return the adapters that are loaded."""
        return self._adapters.listed()

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter: later requests for it raise `UnknownAdapterError`, open ones are answered with it.

        Raises:
            UnknownAdapterError: No adapter has this name.
        """
        self._adapters.unload(name)

    def check_call(self, method: str, **arguments: Any) -> None:
        """Raise what a method would raise at once for these arguments; nothing is computed, no image is read."""
        getattr(self._building, method)(**arguments)

    def metrics(self) -> dict[str, Any]:
        """Return what the engine has done and its present state: see :class:`photonlite.observe.EngineMetrics`."""
        return self._session.metrics()

    def trace(self) -> Recording:
        """Record what host and device do while a ``with`` block runs: `with model.trace() as trace: ...`.

        `trace.save("run.json")` writes it for https://ui.perfetto.dev, `trace.draw("timeline.png")` draws it.
        """
        return Recording(self._session.engine.tracer)

    def restart(self) -> None:
        """Start a new engine over the same weights after the engine has died; does nothing while it lives.

        What was in flight has failed with `EngineDiedError`, as every call has since; later calls are answered. Nothing
        is cached any more, and the metrics begin again. A real-time loop over the model goes on by itself.

        Raises:
            EngineDiedError: The device no longer works in this process, as after any CUDA error: start a new process.
            CapacityError: The memory does not hold even one longest request.
            ModelError: The model is closed.
        """
        self._session.restart(self._adapters.resume)

    def close(self, *, drain: bool = True) -> None:
        """Release the model and its memory; every later call raises `ModelError`. Closing twice is fine.

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
        dtype = str(self.dtype).removeprefix("torch.")
        state = "" if self.alive else ", closed"
        return f"VisionModel({self.name!r}, device={str(self.device)!r}, dtype={dtype!r}, skills={self.skills}{state})"

    def _sampling_of(self, settings: RequestSettings | None, form: Form | None = None) -> SamplingSettings:
        """Return the settings of an answer; one in words begins with those of `load(sampling=...)`."""
        if self._text_defaults and form is None and (settings is None or isinstance(settings, Mapping)):
            settings = {**self._text_defaults, **(settings or {})}
        sampling = SamplingSettings.from_dict(settings)
        if form is not None and sampling.stop:
            raise SettingsError("setting 'stop' is for answers in words: leave it out with schema, choices or regex")
        return sampling

    def _ask(
        self,
        method: str,
        image: ImageInput | Sequence[ImageInput] | None,
        request: Request,
        finish: Callable[[Completion], R] | None,
        options: Options,
        **more: Any,
    ) -> R:
        if self._prompts.inline is None:  # then no request depends on the sizes of images
            more["sized"] = None
        more |= {"draws": self.thumbnails, "adapter": self._adapters.find(options.get("adapter"))}
        public = getattr(VisionModel, self._prefix + method)
        answer: R = self._answer(make_task(public, image, request, finish, options, **more))
        return answer

    def _answer_question(
        self,
        method: str,
        image: ImageInput | Sequence[ImageInput] | None,
        asked: CheckedQuestion,
        form: Form | None,
        retries: int,
        options: Options,
        *,
        stream: bool,
    ) -> Answer[Any, Any]:
        prompts, retries = self._prompts, check_retries(retries, form, stream=stream)
        fits = partial(asked.sized, prompts)
        if form is None:
            request = query.build(prompts, asked)
            finish, pieces = partial(query.finish, request, prompts), partial(query.stream, request, prompts)
            sized = partial(query.build_sized, prompts, asked)
            more: dict[str, Any] = {"sized": sized, "fits": fits, "stream": pieces if stream else None}
            return self._ask(method, image, request, finish, options, **more)
        typed: ChoiceQuestion | TypedQuestion
        if isinstance(form, ChoicesForm):
            typed = ChoiceQuestion(prompts, asked, form)
            more = {"further": typed.further}
        else:
            typed = TypedQuestion(prompts, asked, form, retries)
            more = {"further": typed.further if retries else None, "retried": True}
        more |= {"typed": typed, "fits": fits, "stream": typed.stream if stream else None}
        return self._ask(method, image, typed.draft, typed.finish, options, **more)

    def _search(self, method: str, image: ImageInput, search: Search[S], options: Options) -> S:
        if not search.joined:
            warn_of_joined(search.names[0], stacklevel=3)
        more: dict[str, Any] = {"parts": search.parts} if search.joined else {"sized": search.sized}
        return self._ask(method, image, search.requests[0], search.finish, options, **more)

    def _answering(self, answer: Callable[[Task[Any]], Any], prefix: str = "") -> "VisionModel":
        """Return a copy whose methods return what `answer` makes of their tasks."""
        copied = copy(self)
        copied._answer, copied._prefix = answer, prefix
        return copied

    def _batch(
        self, tasks: Iterable[Mapping[str, Any]], results: list[Any], *, progress: bool, errors: Errors
    ) -> Generator[RequestHandle, None, None]:
        build = partial(task_from_mapping, self._building)
        window = 2 * self.max_batch  # keeps the engine full while the next images are prepared
        return run_batch(self._session, build, tasks, results, window=window, progress=progress, errors=errors)
