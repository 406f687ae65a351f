"""The Python face: load a model, ask about pictures.

```python
model = photonlite.load()
model.detect("desk.png", "mug")  # {"objects": [{"x_min": ..., "label": "mug", "score": 0.97}, ...]}
```
"""

import dataclasses
import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import torch

from photonlite.config import ImageLimits
from photonlite.device import resolve_device, resolve_dtype
from photonlite.engine import EncodedImage, Engine, Generation
from photonlite.images.crops import Crops, cut_crops
from photonlite.images.decode import ImageSource, load_image
from photonlite.models.checkpoint import LoadedModel, load_checkpoint
from photonlite.request import Request, SamplingSettings
from photonlite.results import Answer, Caption, Detections, Points, Segments
from photonlite.skills import caption, detect, point, query, segment
from photonlite.skills.base import SpatialRefs

Picture = ImageSource | EncodedImage
"""What methods take as an image: PIL image, H x W x 3 uint8 array, path, bytes, file object, or an encoded image."""

Settings = Mapping[str, Any]


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
    max_pixels: int | None = None,
) -> "VisionModel":
    """Load a model.

    Args:
        model: A folder, a .safetensors file, a Hub id "owner/name", or None for the shipped checkpoint.
        device: "auto" (CUDA where there is one, else the CPU), "cpu", "cuda", "cuda:1".
        dtype: "auto" (bfloat16 on recent CUDA devices, else float32), "float32", "bfloat16", "float16".
        revision: Branch, tag or commit of a Hub repository.
        max_pixels: Largest picture accepted, width times height; 64 million, or PHOTONLITE_MAX_PIXELS, by default.

    Raises:
        ModelNotFoundError: No model of that name is at hand.
        ConfigError: Its config.json is missing or unusable.
        CheckpointError: Its weights or tokenizer are missing or unusable.
        SettingsError: An unknown device or type, or a limit that is no whole number above 0.
    """
    limits = ImageLimits.from_env()
    if max_pixels is not None:
        limits = dataclasses.replace(limits, max_pixels=max_pixels)
    where = resolve_device(device)
    kind = resolve_dtype(dtype, where)
    return VisionModel(load_checkpoint(model, device=where, dtype=kind, revision=revision), where, kind, limits)


class VisionModel:
    """A model that answers about pictures. It may be used from several threads: their steps take turns.

    Arguments that the public `moondream` client takes by position have the same place here.

    In all methods an image is a PIL image, a numpy array (H x W x 3, uint8), a path, bytes, a file object, or what
    :meth:`encode_image` returned. Coordinates are normalised to [0, 1] with (0, 0) in the top-left corner of the
    upright picture. `settings` may hold "temperature" (0: greedy, the default), "top_p" (1), "max_tokens" (768),
    "max_objects" (50) and "seed".

    All methods raise these when called: `ImageError` for a picture that cannot be read or is over the limit,
    `SettingsError` for an unknown setting or value, `PromptError` for text that is empty or too long,
    `UnsupportedSkillError` for a skill that the checkpoint lacks, `CapacityError` for a prompt that exceeds the
    context, and `ModelError` after :meth:`close`. `NumericalError` tells of damaged weights while tokens are computed.

    Args:
        loaded: The checkpoint.
        device: Where it is.
        dtype: Of its weights.
        limits: How large a picture may be.
    """

    def __init__(
        self, loaded: LoadedModel, device: torch.device, dtype: torch.dtype, limits: ImageLimits | None = None
    ) -> None:
        self._name = loaded.name
        self._prompts = loaded.prompts
        self._crop_spec = loaded.model.crop_spec
        self._engine = Engine(loaded.model, device, dtype)
        self._device = device
        self._dtype = dtype
        self._limits = limits or ImageLimits()

    @property
    def name(self) -> str:
        """How the model was named when it was loaded; "nano" for the shipped one."""
        return self._name

    @property
    def skills(self) -> tuple[str, ...]:
        """Names of the skills that the checkpoint was trained for."""
        return self._prompts.skills

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights."""
        return self._dtype

    def detect(self, image: Picture, object: str, settings: Settings | None = None) -> Detections:
        """Find every instance of an object.

        Args:
            image: The picture.
            object: What to find, at most 1,000 characters.
            settings: See the class.

        Returns:
            `{"objects": [{"x_min", "y_min", "x_max", "y_max", "label", "score"}, ...]}`, in the model's order. A score
            is how sure the model was that the object is there, and there; see `photonlite.skills.base.score`.
        """
        request = detect.build(self._prompts, object, settings=SamplingSettings.from_dict(settings))
        return detect.finish(request, self._generate(request, image).complete())

    def point(
        self,
        image: Picture,
        object: str,
        settings: Settings | None = None,
        *,
        spatial_refs: SpatialRefs | None = None,
    ) -> Points:
        """Point at every instance of an object.

        Args:
            image: The picture.
            object: What to point at, at most 1,000 characters.
            settings: See the class.
            spatial_refs: Points (x, y) and boxes (x_min, y_min, x_max, y_max) that the object is about.

        Returns:
            `{"points": [{"x", "y", "label", "score"}, ...]}`, in the model's order.

        Raises:
            SpatialRefError: A reference is neither a point nor a box inside the picture.
        """
        sampling = SamplingSettings.from_dict(settings)
        request = point.build(self._prompts, object, refs=spatial_refs, settings=sampling)
        return point.finish(request, self._generate(request, image).complete())

    def segment(
        self,
        image: Picture,
        object: str,
        *,
        spatial_refs: SpatialRefs | None = None,
        settings: Settings | None = None,
    ) -> Segments:
        """Draw the outline of an object.

        Args:
            image: The picture.
            object: What to outline, at most 1,000 characters.
            spatial_refs: Points (x, y) and boxes (x_min, y_min, x_max, y_max) that tell which instance is meant.
            settings: See the class.

        Returns:
            `{"segments": [{"path", "bbox", "polygon", "label", "score"}]}`: `path` is SVG relative to the box.

        Raises:
            SpatialRefError: A reference is neither a point nor a box inside the picture.
        """
        sampling = SamplingSettings.from_dict(settings)
        request = segment.build(self._prompts, object, refs=spatial_refs, settings=sampling)
        return segment.finish(request, self._prompts, self._generate(request, image).complete())

    def caption(
        self, image: Picture, length: str = "normal", stream: bool = False, settings: Settings | None = None
    ) -> Caption:
        """Describe a picture.

        Args:
            image: The picture.
            length: "short", "normal" or "long".
            stream: Whether to give an iterator of pieces of text, computed as they are asked for.
            settings: See the class.

        Returns:
            `{"caption": str}`, or `{"caption": iterator of str}`.
        """
        request = caption.build(self._prompts, length, settings=SamplingSettings.from_dict(settings))
        generation = self._generate(request, image)
        if stream:
            return caption.stream(self._prompts, generation, generation.outcome)
        return caption.finish(self._prompts, generation.complete())

    def query(
        self,
        image: Picture | None = None,
        question: str | None = None,
        stream: bool = False,
        settings: Settings | None = None,
        *,
        reasoning: bool = False,
        spatial_refs: SpatialRefs | None = None,
    ) -> Answer:
        """Answer a question.

        Args:
            image: The picture; None asks without one.
            question: At most 4,000 characters.
            stream: Whether to give an iterator of pieces of the answer, computed as they are asked for.
            settings: See the class.
            reasoning: Whether the model writes down its reasoning first.
            spatial_refs: Points (x, y) and boxes (x_min, y_min, x_max, y_max) that the question is about.

        Returns:
            `{"answer": str}`, or `{"answer": iterator of str}`; with reasoning also `"reasoning": {"text",
            "grounding": [{"start_idx", "end_idx", "points"}, ...]}`, which fills with the first piece of a stream.

        Raises:
            SpatialRefError: A reference is neither a point nor a box inside the picture, or there is no picture.
        """
        request = query.build(
            self._prompts,
            question,
            with_image=image is not None,
            reasoning=reasoning,
            refs=spatial_refs,
            settings=SamplingSettings.from_dict(settings),
        )
        generation = self._generate(request, image)
        if stream:
            return query.stream(request, self._prompts, generation, generation.outcome)
        return query.finish(request, self._prompts, generation.complete())

    def encode_image(self, image: Picture) -> EncodedImage:
        """Read a picture once, to ask about it several times.

        Returns:
            Something to hand in as `image`. It keeps memory on the model's device until it is garbage: what the context
            needs for one picture. An encoded image comes back as it is.
        """
        if isinstance(image, EncodedImage):
            return image
        start = time.perf_counter()
        crops = self._crops(image)
        return self._engine.encode(crops, preprocess_s=time.perf_counter() - start)

    def close(self) -> None:
        """Let go of the model and its memory; every later call raises `ModelError`. Streams under way end with it."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        dtype = str(self._dtype).removeprefix("torch.")
        return f"VisionModel({self._name!r}, device={str(self._device)!r}, dtype={dtype!r})"

    def _generate(self, request: Request, image: Picture | None) -> Generation:
        if image is None and request.skill == "query":
            return self._engine.generate(request)
        if isinstance(image, EncodedImage):
            return self._engine.generate(request, image)
        start = time.perf_counter()
        crops = self._crops(image)
        return self._engine.generate(request, crops, preprocess_s=time.perf_counter() - start)

    def _crops(self, image: Any) -> Crops:
        return cut_crops(load_image(image, self._limits), self._crop_spec)
