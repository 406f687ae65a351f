"""The plain engine: drives one request at a time through the runner, step by step.

```
encode ─ prefill_image ─ extend(prompt) ─┬─ next_token ─ grammar ─ extend(token) ─┐
                                         └────────────────────<───────────────────┘   until the grammar has finished
```

Steps of different requests may alternate: a lock lets one step through at a time, whichever thread it comes from, and
each request has a cache of its own. Nothing is computed before somebody asks for the first token.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from photonlite.errors import ImageError, ModelError
from photonlite.images.crops import Crops
from photonlite.models.base import Model
from photonlite.request import Completion, Request, Token
from photonlite.results import Metrics
from photonlite.runner.plain import DenseCache, PlainRunner
from photonlite.runner.sampler import Sampler


class EncodedImage:
    """A picture that a model has read: may be handed in wherever that model takes a picture.

    It holds keys and values of the picture's positions in the model's memory, until it is garbage.

    Attributes:
        metrics: What encoding took.
        picture_size: Width and height of the picture, in pixels.
    """

    def __init__(
        self, engine: "Engine", prefix: DenseCache, metrics: Metrics, picture_size: tuple[int, int] | None
    ) -> None:
        self._engine = engine
        self._prefix = prefix
        self.metrics = metrics
        self.picture_size = picture_size

    def prefix_for(self, engine: "Engine") -> DenseCache:
        """Give the cached positions to the engine that computed them.

        Raises:
            ImageError: It was another one.
        """
        if engine is not self._engine:
            raise ImageError("this encoded image belongs to another model: encode the picture with this one")
        return self._prefix


@dataclass
class _Progress:
    """What has happened to a request so far."""

    preprocess_s: float = 0.0
    encode_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    first_token_s: float = 0.0
    prompt_tokens: int = 0
    tokens: list[Token] = field(default_factory=list)

    def metrics(self) -> Metrics:
        return Metrics(
            preprocess_s=self.preprocess_s,
            encode_s=self.encode_s,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            prompt_tokens=self.prompt_tokens,
            output_tokens=len(self.tokens),
            time_to_first_token_s=self.first_token_s,
        )


class Generation(Iterator[Token]):
    """A request on its way: an iterator of tokens that computes them as they are asked for.

    Args:
        request: What was asked.
        steps: Computes.
        progress: What `steps` keeps up to date.
        picture_size: Width and height of the picture, if there is one.
    """

    def __init__(
        self,
        request: Request,
        steps: Iterator[Token],
        progress: _Progress,
        picture_size: tuple[int, int] | None,
    ) -> None:
        self._request = request
        self._steps = steps
        self._progress = progress
        self._picture_size = picture_size

    def __next__(self) -> Token:
        return next(self._steps)

    def complete(self) -> Completion:
        """Compute what is left and give everything.

        Raises:
            ModelError: The model was closed meanwhile.
            NumericalError: The network computed something that is not finite.
        """
        for _ in self:
            pass
        metrics, reason = self.outcome()
        return Completion(tuple(self._progress.tokens), reason, metrics, self._picture_size)

    def outcome(self) -> tuple[Metrics, str | None]:
        """Give the metrics and the finish reason so far."""
        return self._progress.metrics(), self._request.grammar.finish_reason


class Engine:
    """Runs requests on one model.

    Args:
        model: In evaluation mode, on the device.
        device: Where it is.
        dtype: Of its weights.
    """

    def __init__(self, model: Model, device: torch.device, dtype: torch.dtype) -> None:
        self._shape = model.shape
        self._device = device
        self._runner: PlainRunner | None = PlainRunner(model, device, dtype)
        self._lock = threading.Lock()

    def generate(
        self, request: Request, image: Crops | EncodedImage | None = None, *, preprocess_s: float = 0.0
    ) -> Generation:
        """Begin a request; the first token asked for starts the work.

        Args:
            request: From a skill.
            image: The picture it is about, if any.
            preprocess_s: What cutting the crops took, for the metrics.

        Raises:
            ImageError: The encoded image belongs to another engine.
            ModelError: The engine is closed.
        """
        self._open_runner()
        prefix = image.prefix_for(self) if isinstance(image, EncodedImage) else None
        crops = image if isinstance(image, Crops) else None
        before = 1 if image is None else self._shape.prefix_length
        progress = _Progress(preprocess_s=preprocess_s, prompt_tokens=before + len(request.prompt))
        # The last token produced is never fed back.
        capacity = progress.prompt_tokens + request.budget - 1
        steps = self._steps(request, crops, prefix, capacity, progress)
        return Generation(request, steps, progress, None if image is None else image.picture_size)

    def encode(self, crops: Crops, *, preprocess_s: float = 0.0) -> EncodedImage:
        """Read a picture once, for several requests.

        Raises:
            ModelError: The engine is closed.
        """
        progress = _Progress(preprocess_s=preprocess_s, prompt_tokens=self._shape.prefix_length)
        with self._lock:
            cache = self._open_runner().new_cache(self._shape.prefix_length)
            self._read(crops, cache, progress)
        return EncodedImage(self, cache, progress.metrics(), crops.picture_size)

    def close(self) -> None:
        """Let go of the model; requests that are not finished fail at their next token."""
        with self._lock:
            self._runner = None

    def _steps(
        self, request: Request, crops: Crops | None, prefix: DenseCache | None, capacity: int, progress: _Progress
    ) -> Iterator[Token]:
        grammar, sampler = request.grammar, Sampler(request.settings, self._device)
        with self._lock:
            runner = self._open_runner()
            cache = runner.new_cache(capacity)
            if crops is not None:
                self._read(crops, cache, progress)
            start = time.perf_counter()
            if prefix is not None:
                runner.copy(prefix, cache)
            hidden = runner.extend(cache, request.prompt)
            token = runner.next_token(hidden, grammar.allowed, sampler)
            progress.prefill_s += time.perf_counter() - start
        progress.first_token_s = progress.preprocess_s + progress.encode_s + progress.prefill_s
        while True:
            grammar.accept(token)
            progress.tokens.append(token)
            yield token
            if grammar.finish_reason is not None:
                return
            with self._lock:
                runner = self._open_runner()
                start = time.perf_counter()
                hidden = runner.extend(cache, (token,))
                token = runner.next_token(hidden, grammar.allowed, sampler)
                progress.decode_s += time.perf_counter() - start

    def _read(self, crops: Crops, cache: DenseCache, progress: _Progress) -> None:
        """Encode a picture and put it into an empty cache."""
        runner = self._open_runner()
        start = time.perf_counter()
        embeddings = runner.encode(crops.pixels, crops.tiling)
        encoded = time.perf_counter()
        runner.prefill_image(cache, embeddings)
        progress.encode_s = encoded - start
        progress.prefill_s = time.perf_counter() - encoded

    def _open_runner(self) -> PlainRunner:
        if self._runner is None:
            raise ModelError("the model is closed: load it again")
        return self._runner
