"""Base of all results: a mapping of plain values with metrics and finish reason as attributes."""

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self


@dataclass(frozen=True)
class Metrics:
    """Time and tokens of one call. Those of several requests are sums, but for the first token and the queue.

    Attributes:
        preprocess_s: Decoding and hashing the image and cutting crops, in seconds.
        encode_s: The vision encoder, in seconds.
        prefill_s: The prompt's forward pass, in seconds.
        decode_s: All later tokens, in seconds.
        prompt_tokens: Tokens of the prompt, including those of the image.
        output_tokens: Tokens produced.
        time_to_first_token_s: From the call to the first token, in seconds.
        queue_s: From the prepared image to the first step that carried the prompt, in seconds.
        requests: Requests of the call: one for each name, in the image and in each of its tiles.
        tiles: Tiles of the image.
    """

    preprocess_s: float = 0.0
    encode_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    time_to_first_token_s: float = 0.0
    queue_s: float = 0.0
    requests: int = 1
    tiles: int = 0

    @property
    def total_s(self) -> float:
        """Seconds of all stages together."""
        return self.preprocess_s + self.encode_s + self.prefill_s + self.decode_s

    def __add__(self, other: "Metrics") -> "Metrics":
        """Time and tokens of two requests together; the first token is that of the earlier one."""
        both = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return Metrics(**both | {"time_to_first_token_s": min(self.time_to_first_token_s, other.time_to_first_token_s)})

    def to_dict(self) -> dict[str, float | int]:
        """The fields by name, for JSON."""
        return asdict(self)


class SkillResult(dict[str, Any]):
    """An answer as a plain mapping: it equals, unpacks, pickles and dumps to JSON like the dict it is.

    The attributes are not keys, and do not take part in comparisons. Of a stream they are None until it ends.

    Attributes:
        metrics: Time and tokens; None where they were not measured.
        finish_reason: Why the answer ended: "stop", "length" or "max_objects". "length" means that `max_tokens` or the
            model's context cut it short, see `truncated`.
    """

    def __init__(self, values: Mapping[str, Any], metrics: Metrics | None, finish_reason: str | None) -> None:
        super().__init__(values)
        self.metrics = metrics
        self.finish_reason = finish_reason

    @property
    def truncated(self) -> bool | None:
        """Whether a limit cut the answer short; None while a stream has not ended yet, or where it is not known.

        True if `max_tokens`, `max_objects` or the model's context ended the answer, or excluded at any position
        something that could otherwise have followed. False if any larger limit would have given the same answer.
        """
        return None if self.finish_reason is None else self.finish_reason != "stop"

    def copy(self) -> Self:
        """A shallow copy of the same type, with its metrics."""
        return copy.copy(self)

    def _suffix(self) -> str:
        notes = [f"{self.metrics.total_s:.3f} s"] if self.metrics else []
        notes += [f"finish_reason={self.finish_reason!r}"] if self.finish_reason not in (None, "stop") else []
        return f" ({', '.join(notes)})" if notes else ""
